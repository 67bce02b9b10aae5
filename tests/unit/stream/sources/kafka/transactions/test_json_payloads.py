"""What planning reads of messages in JSON is what all of their members say."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.json_payloads import parse_json
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import Payload

TABLE = ("name", "db", "schema", "table")
MEMBERS = ("status", "id", "data_collections", "commit", "xid")
ROWS: list[Any] = [
    None,
    {},
    {"id": 1},
    {"id": 2, "name": "é\n"},
    {"id": 3, "name": '"transaction":{"id":"9"}', "more": [{"op": "d"}]},
    {"id": "4"},
    5,
]
SOURCES: list[Any] = [
    None,
    {},
    {"name": "shop", "db": "d", "schema": "public", "table": "orders", "lsn": 7, "txId": 1},
    {"name": "shop", "table": "items", "pos": -(2**63), "query": "select"},
    {"table": 7},
    {"name": {"a": 1}, "db": ["b"], "table": "orders"},
    {"lsn": "0/1"},
    {"lsn": 2**63},
    {"pos": 1.5},
    "text",
]
TRANSACTIONS: list[Any] = [None, {"id": "7:1", "total_order": 1}, {"id": 7}, {"id": None}, {}, 7]
OTHERS = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"7",
    b"{}",
    b'{"a": "\xff"}',
    b'{"op": "c"} {}',
    b"\0\0\0\0\1{}",
]


def random_value(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.choice(OTHERS)
    message: dict[str, Any] = {"op": chance.choice(["c", "r", "u", "d", "m", "t", None, 1])}
    members = {"before": ROWS, "after": ROWS, "source": SOURCES, "transaction": TRANSACTIONS}
    members |= {"ts_ms": [None, 1, "now", 2**63], "commit": [True, 1], "status": ["END"]}
    members |= {"other": ["x", {"payload": {}}, 1]}
    for name, values in members.items():
        if chance.random() < (0.9 if len(values) > 4 else 0.2):
            message[name] = chance.choice(values[:4] if chance.random() < 0.9 else values)
    if chance.random() < 0.05:
        message = {"other": message}
    if chance.random() < 0.05:
        message["payload"] = chance.choice([None, {}, "x"])
    if chance.random() < 0.1:
        message = {"schema": {}, "payload": chance.choice([message, None, {}, "x", [message]])}
    text = json.dumps(message, ensure_ascii=chance.random() < 0.5).encode()
    if chance.random() < 0.1:
        text = text[: chance.randrange(len(text))]
    return b"\0\0\0\0\1" + text if chance.random() < 0.1 else text


def read_of(payload: Any) -> tuple[Any, ...] | None:
    """What planning reads of a payload."""
    if not payload:
        return None
    block, source = payload.get("transaction"), payload.get("source")
    return (
        text(payload.get("op")),
        block.get("id") if isinstance(block, dict) else None,
        tuple(text(source.get(name)) for name in TABLE) if isinstance(source, dict) else None,
        *map(payload.get, MEMBERS),
    )


def text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def parsed(payload: Payload | None) -> tuple[Any, ...] | None:
    if payload is None:
        return None
    source = payload.source
    return (
        payload.op,
        payload.transaction and payload.transaction.id,
        source and tuple(getattr(source, name) for name in TABLE),
        *(getattr(payload, name) for name in MEMBERS),
    )


def parse_with_python(value: bytes) -> Any:
    try:
        payload = json.loads(str(value[5:] if value[:1] == b"\0" else value, "utf-8"))
    except ValueError:
        return None
    payload = payload.get("payload") or payload if isinstance(payload, dict) else {}
    return payload if isinstance(payload, dict) else {}


@pytest.mark.parametrize("seed", range(20))
def test_random_messages(seed: int) -> None:
    chance = random.Random(seed)
    values = [random_value(chance) for _ in range(200)]
    for value, payload in zip(values, parse_json(values), strict=True):
        assert parsed(payload) == read_of(parse_with_python(value)), value
