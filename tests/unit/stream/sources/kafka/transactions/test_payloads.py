"""What messages in JSON, Avro and Protobuf say of their transactions."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from msgspec import convert

from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions import payloads as module
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import (
    Payload,
    Transaction,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payloads import PayloadReader
from tests.unit.stream.sources.formats import encoded_changes
from tests.unit.stream.sources.formats.encoded_changes import (
    CHANGE,
    Registry,
    encoder,
    header,
    optional,
    record,
)

KINDS = ("AVRO", "PROTOBUF")
SOURCE = {"name": "shop", "db": "d", "schema": "public", "table": "orders"}
CHANGES: list[dict[str, Any]] = [
    {"op": "c", "transaction": {"id": "7:1"}, "source": SOURCE},
    {"op": "u", "transaction": {"id": "7:2"}, "source": {**SOURCE, "table": "items"}},
    {"op": "r", "transaction": None, "source": SOURCE},
    {"op": "m", "transaction": {"id": "é"}, "source": None},
]
COUNTS = [{"data_collection": "public.orders", "event_count": 3}]
END = {"status": "END", "id": "7:3", "data_collections": COUNTS}
BEGIN = {"status": "BEGIN", "id": "7:0", "data_collections": []}


def payload_reader(registry: Any) -> PayloadReader:
    return PayloadReader(registry)


def read(reader: PayloadReader, messages: list[bytes]) -> list[Payload | None]:
    """Payloads, without what only those of JSON have."""
    payloads = reader.parse(messages)
    return [p and convert(p, Payload, from_attributes=True) for p in payloads]


def payloads_of(*messages: Any) -> list[Payload | None]:
    return [message and convert(message, Payload) for message in messages]


@pytest.mark.parametrize("kind", KINDS)
def test_changes_and_transactions(kind: str) -> None:
    encode, registry = encoder(kind), Registry(kind)
    messages = [*CHANGES, BEGIN, CHANGES[0], END]
    random.Random(1).shuffle(messages)
    reader = payload_reader(registry)
    assert read(reader, list(map(encode, messages))) == payloads_of(*messages)
    assert read(reader, [encode(END)]) == payloads_of(END)
    assert read(reader, []) == []
    assert sorted(registry.requests) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_topics_that_are_encoded_differently(kind: str) -> None:
    messages = [encoder(kind)(CHANGES[0]), json.dumps(END).encode(), b"{", b"[]"]
    expected = payloads_of(CHANGES[0], END, None, None)
    assert read(payload_reader(Registry(kind)), messages) == expected


def test_rows_of_all_types_of_avro() -> None:
    """The row is skipped, whatever it consists of."""
    row = {"id": 1, "amount": 2**60, "price": Decimal("1.50"), "kind": "B", "at": -1}
    row |= {"tags": {"a": "b", "ü": None}, "parts": [{"a": 1, "b": 0.5}, {"a": -1, "b": None}]}
    change = {**CHANGES[0], "before": {"id": 2}, "after": row, "ts_ms": 5}
    sparse = {**CHANGES[2], "after": {"id": 3, "parts": [], "tags": {}}}
    messages = [encoder("AVRO")(message) for message in (change, sparse)]
    expected = payloads_of(CHANGES[0], CHANGES[2])
    assert read(payload_reader(Registry("AVRO")), messages) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_cannot_be_read(kind: str) -> None:
    """They are in no transaction, and do not disturb those beside them."""
    good = encoder(kind)(CHANGES[0])
    messages = [good, good[:20], header(1), header(9) + b"\0", good[:3], b"\0", good]
    expected = payloads_of(CHANGES[0], None, None, None, None, None, CHANGES[0])
    assert read(payload_reader(Registry(kind)), messages) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_messages(kind: str) -> None:
    chance, registry = random.Random(5), Registry(kind)
    bodies = [encoder(kind)(message) for message in CHANGES]
    reader = payload_reader(registry)
    for _ in range(300):
        damaged = bytearray(chance.choice(bodies))
        for _ in range(chance.choice([1, 1, 3])):
            damaged[chance.randrange(5, len(damaged))] = chance.randrange(256)
        payloads = read(reader, [bodies[0], bytes(damaged), bodies[1]])
        assert [payloads[0], payloads[2]] == payloads_of(*CHANGES[:2])


def test_unions_of_avro() -> None:
    """Their records may be changes of several tables; others are in no transaction."""
    tree = {"type": "array", "items": "shop.Tree"}
    union = ["null", encoded_changes.CHANGE, "string", record("Tree", x=tree)]
    union += [encoded_changes.TRANSACTION]
    registry = Registry("AVRO")
    registry.schemas[3] = RegisteredSchema(3, json.dumps(union))
    change, end = (encoder("AVRO")(message)[5:] for message in (CHANGES[0], END))
    bodies = [b"\2" + change, b"\x08" + end, b"\0", b"\4\2a", b"\6\0", b"\x0a", b"", b"\2" + end]
    payloads = read(payload_reader(registry), [header(3) + body for body in bodies])
    assert payloads == payloads_of(CHANGES[0], END, *[None] * 6)


def test_other_messages_of_a_schema_in_protobuf() -> None:
    """The index before each message names its type."""
    text = """syntax = "proto3"; message A { string id = 1; message Block { string id = 1; } }
      message B { message C { string op = 1; A.Block transaction = 2; } }"""
    registry = Registry("PROTOBUF")
    registry.schemas[3] = RegisteredSchema(3, text, "PROTOBUF")
    body = b"\x0a\1u\x12\3\x0a\1\x37"
    messages = [header(3) + index + body for index in (b"\4\2\0", b"\4\2\2", b"\2\2", b"")]
    payload = Payload("u", Transaction("7"))
    assert read(payload_reader(registry), messages) == [payload, None, Payload(), None]


def test_a_schema_that_is_registered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry is not asked for each message."""
    registry = Registry("AVRO")
    missing, message = registry.schemas.pop(1), encoder("AVRO")(CHANGES[0])
    reader = payload_reader(registry)
    assert [read(reader, [message]) for _ in range(2)] == [[None], [None]]
    assert registry.requests == [1]
    registry.schemas[1] = missing
    now = module.time.monotonic() + module.MISSING_SECONDS
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    assert read(reader, [message]) == payloads_of(CHANGES[0])


def test_json_with_the_id_of_a_schema() -> None:
    registry = Registry("AVRO")
    registry.schemas[3] = RegisteredSchema(3, "{}", "JSON")
    messages = [header(number) + json.dumps(END).encode() for number in (3, 4)]
    for own in (registry, None):
        assert read(payload_reader(own), messages) == payloads_of(END, END)


def test_schemas_without_what_is_read() -> None:
    """Fields that are missing, or have other types than Debezium's, are absent."""
    fields = {"op": "bytes", "transaction": "string", "source": record("S", table="double")}
    for schema, body in (
        (record("R", x="null", y="int"), b"\0"),
        (record("R", **fields), b"\0\0" + bytes(8)),
    ):
        registry = Registry("AVRO")
        registry.schemas[1] = RegisteredSchema(1, json.dumps(schema))
        # What follows a record makes it bad, as for its batch.
        for bodies in ([body, body + b"\0"], [body, body + b"\0"] * 4):
            payloads = read(payload_reader(registry), [header(1) + own for own in bodies])
            assert payloads == [Payload(), None] * (len(bodies) // 2)


def test_schemas_that_cannot_be_read() -> None:
    registry = Registry("AVRO")
    registry.schemas[1] = RegisteredSchema(1, '"string"')
    assert read(payload_reader(registry), [header(1) + b"\2a"]) == [None]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ([*optional("string"), "long"], b"\4\2"),
        ({"type": "fixed", "name": "f", "size": 2}, b"ab"),
        (record("More", a={"type": "map", "values": {"type": "array", "items": "int"}}), b"\0"),
    ],
)
def test_other_types_than_those_of_debezium(kind: Any, body: bytes) -> None:
    changed = json.loads(json.dumps(CHANGE))
    changed["fields"].append({"name": "more", "type": kind})
    registry = Registry("AVRO")
    registry.schemas[2] = RegisteredSchema(2, json.dumps(changed))
    change = header(2) + encoder("AVRO")(CHANGES[0])[5:] + body
    for count in (1, 8):
        messages = [change] * count + [change[:-1]]
        expected = [*payloads_of(CHANGES[0]) * count, None]
        assert read(payload_reader(registry), messages) == expected


def test_texts_that_are_not_utf8() -> None:
    """Whether or not other messages are beside them."""
    good = encoder("AVRO")(END)
    bad = good.replace(b"public.orders", b"public.\xffrders")
    for count in (1, 8):
        payloads = read(payload_reader(Registry("AVRO")), [good] * count + [bad])
        assert payloads == [*payloads_of(END) * count, None]
