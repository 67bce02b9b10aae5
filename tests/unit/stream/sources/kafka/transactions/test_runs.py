"""Changes that are grouped by transaction are those that are read one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import KeptMessages
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions import ends, runs
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.ends import (
    Change,
    read_changes,
    transaction_id,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payloads import PayloadReader
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.runs import read_runs
from tests.unit.stream.sources.kafka.transactions.transaction_log import KeptMessage

# Ids of PostgreSQL with and without LSN, of MySQL, numbers, and what is no id.
IDS = [
    "1:10",
    "1:11",
    "12:10",
    "1",
    "12",
    1,
    12,
    "uuid:1-5",
    "uuid:1-6",
    "1:",
    ":1",
    "",
    None,
    "é:1",
]
TABLES = ["orders", "items", None]
OTHERS = [b"", b"{", b"[]", b"null", b"7", b"{}", b'{"payload": {}}', b'{"transaction": 7}']


def random_message(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.choice(OTHERS)
    payload: dict[str, Any] = {"op": chance.choice("crud")}
    if chance.random() < 0.9:
        payload["transaction"] = {"id": chance.choice(IDS), "total_order": 1}
    if chance.random() < 0.9:
        payload["source"] = {"name": "shop", "table": chance.choice(TABLES)}
    return orjson.dumps({"schema": {}, "payload": payload} if chance.random() < 0.2 else payload)


def identity(change: Change) -> tuple[Any, ...]:
    transaction, source = transaction_id(change.payload.transaction), change.payload.source
    table = source and (source.name, source.table)
    return change.offset, change.milliseconds, transaction, table


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_lost_or_mixed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    bodies: list[bytes] = []
    while len(bodies) < 300:
        bodies += [random_message(chance)] * chance.choice([1, 1, 2, 5])
    messages = [KeptMessage(offset, body, 1000 + offset) for offset, body in enumerate(bodies)]

    def read(*_: Any) -> Iterator[list[KeptMessage]]:
        for place in range(0, len(messages), 7):
            yield messages[place : place + 7]

    for module in (ends, runs):
        monkeypatch.setattr(module, "read_messages", read)
    consumer: Any = None
    reader = PayloadReader()
    grouped_runs = list(read_runs(consumer, reader, "t", 0, 0, 300, KeptMessages()))
    grouped = [identity(change) for run in grouped_runs for change in run.changes()]
    assert grouped == list(map(identity, read_changes(consumer, reader, "t", 0, 0, 300)))
    assert all(
        run.transaction == identity(change)[2] for run in grouped_runs for change in run.changes()
    )
    assert len(grouped_runs) < len(grouped)
