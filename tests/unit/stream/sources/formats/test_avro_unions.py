"""Unions of records as schemas of messages: which record is read, and what is skipped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import (
    Decoded,
    MessageDecoder,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import (
    MessageSchemas,
    message_schemas,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    Reference,
    RegisteredSchema,
)
from tests.unit.stream.sources.formats.avro_rows import encode, framed
from tests.unit.stream.sources.formats.decoded_messages import ddl_of


def record(name: str, /, **fields: Any) -> Any:
    named = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "namespace": "shop", "fields": named}


ORDER, PAYMENT = (
    record("Order", id="int", note=["null", "string"]),
    record("Payment", amount="long"),
)
# Its column would have itself as a field.
TREE = record("Tree", children={"type": "array", "items": "shop.Tree"})
ROW = {"id": 1, "note": "a"}


def union(number: int, *members: Any, references: Any = ()) -> RegisteredSchema:
    named = tuple(Reference(f"shop.{r['name']}", json.dumps(r)) for r in references)
    return RegisteredSchema(number, json.dumps(members), references=named)


def read(*schemas: RegisteredSchema, record: str | None = "shop.Order") -> MessageSchemas:
    return message_schemas(schemas, Envelope("avro", "", record=record), None)


AVRO = Envelope("avro", "")


def decode(schemas: MessageSchemas, *bodies: bytes, envelope: Envelope = AVRO) -> Decoded:
    """What messages of the schema 1 become."""
    decoder = MessageDecoder(envelope, schemas.columns, schemas=schemas)
    return decoder.decode([framed(1, body) for body in bodies])


def decoded(
    schemas: MessageSchemas, *bodies: bytes, envelope: Envelope = AVRO
) -> tuple[list[Any], int]:
    """The places and rows of messages, and how many are skipped or null; none is bad."""
    found = decode(schemas, *bodies, envelope=envelope)
    assert not found.bad
    rows = [tuple(row.values()) for row in found.rows.to_pylist()]
    places = found.of.tolist()
    return [(place, *row) for place, row in zip(places, rows, strict=True)], found.skipped


@pytest.mark.parametrize("is_reference", [False, True])
def test_one_record_is_read(is_reference: bool) -> None:
    records = [ORDER, PAYMENT]
    members = ["shop.Order", "shop.Payment"] if is_reference else records
    schema = union(1, "null", *members, "string", references=records if is_reference else ())
    order = b"\2" + encode(ORDER, ROW)
    messages = [order, b"\4\2", b"\0", b"\6\0", b"\4", b"\2\4\0"]
    rows, skipped = decoded(read(schema), *messages)
    assert (rows, skipped) == ([(0, 1, "a"), (5, 2, None)], 3)
    rows, skipped = decoded(read(schema, record="shop.Payment"), b"\4\2", b"\0", order)
    assert (rows, skipped) == ([(0, 1)], 1)
    assert decoded(read(schema), b"\0", b"\0") == ([], 0)


NO_INDEX = "has the schema 1, whose union has no record with the index of the message"
NO_AVRO = "is not Avro of its schema 1"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", NO_INDEX),
        (b"\2", NO_AVRO),
        (b"\2\2", NO_AVRO),
        (b"\6", NO_INDEX),
        (b"\1", NO_INDEX),
        (b"\x82\0\2\0", NO_INDEX),
        (b"\0\0", NO_INDEX),
    ],
)
def test_bad_messages(bad: bytes, reason: str) -> None:
    schemas = read(union(1, "null", ORDER, PAYMENT))
    good = b"\2" + encode(ORDER, ROW)
    for count in (1, 6):
        found = decode(schemas, *[good] * count, bad)
        assert found.of.tolist() == list(range(count))
        [(place, record, why)] = found.bad
        assert (place, record) == (count, framed(1, bad).hex().upper())
        assert why.startswith(reason)


@given(st.integers(0, 200), st.integers(0, 200))
def test_indexes_of_many_members(own: int, other: int) -> None:
    """An index may have two bytes, and its first one may be another index."""
    records = [record(f"R{number}", **{f"c{number}": "int"}) for number in range(201)]
    schemas = read(union(1, *records), record=f"shop.R{own}")
    bodies = [encode("long", number) + b"\2" for number in (own, other)]
    rows, skipped = decoded(schemas, *bodies)
    assert rows == ([(0, 1), (1, 1)] if own == other else [(0, 1)])
    assert skipped == (own != other)


@pytest.mark.parametrize(
    "schema",
    [
        union(1, "null", ORDER),
        union(1, ORDER, "null"),
        union(1, ORDER),
        RegisteredSchema(1, json.dumps({"type": ["null", ORDER]})),
        union(1, "null", "shop.Order", references=[ORDER]),
    ],
)
def test_the_only_record_needs_no_name(schema: RegisteredSchema) -> None:
    members = json.loads(schema.text)
    members = members["type"] if isinstance(members, dict) else members
    bodies = [encode("long", n) + (b"" if m == "null" else b"\2\0") for n, m in enumerate(members)]
    place = next(n for n, member in enumerate(members) if member != "null")
    assert decoded(read(schema, record=None), *bodies) == ([(place, 1, None)], 0)


def test_without_a_name_the_records_are_listed() -> None:
    schemas = read(union(1, "null", ORDER, "shop.Payment", references=[PAYMENT]), record=None)
    assert schemas.unreadable == {
        1: "has the schema 1, which is a union of the record types `shop.Order`, `shop.Payment`. "
        "Set the source's `record` to the one to read, and others are skipped"
    }
    keys = Envelope("avro", "", tombstone_deletes=True)
    [reason] = message_schemas([union(1, ORDER, PAYMENT)], keys, None, {1}).unreadable.values()
    assert "Set the source's `key_record`" in reason


def test_types_without_columns() -> None:
    [reason] = read(union(1, "null", "string"), record=None).unreadable.values()
    assert reason == (
        "has the schema 1, which is a union without a record, so it has no columns. Set the "
        "source's `format: raw` to read its messages as bytes"
    )
    color = {"type": "enum", "name": "Color", "namespace": "shop", "symbols": ["red"]}
    schema = union(1, ORDER, "shop.Color", references=[color])
    [reason] = read(schema, record="shop.Color").unreadable.values()
    assert reason == "has the schema 1, which is not of a record, so it has no columns"


def test_records_of_others_may_have_no_columns() -> None:
    for members, references in (
        ((TREE, ORDER), ()),
        (("shop.Tree", "shop.Order"), (TREE, ORDER)),
    ):
        schemas = read(union(1, *members, references=references))
        assert decoded(schemas, b"\2" + encode(ORDER, ROW), b"\0\0") == ([(0, 1, "a")], 1)
        tree = read(union(1, *members, references=references), record="shop.Tree")
        assert "has the record `shop.Tree` within itself" in tree.unreadable[1]


def test_newer_unions() -> None:
    """A branch is added, and a field to another one, whose index changes."""
    newer = record("Order", note=["null", "string"], id="long", total="double")
    schemas = read(union(1, ORDER), union(2, PAYMENT, newer), union(3, PAYMENT))
    assert ddl_of(schemas.columns) == "struct<id:bigint,note:string,total:double>"
    assert [writer.ids for writer in schemas.writers] == [(1,), (2,)]
    assert schemas.others == {3: ("shop.Payment",)}


def test_debezium() -> None:
    def envelope(name: str, **fields: Any) -> Any:
        row = {**record("Value", **fields), "namespace": f"shop.{name}"}
        images = {"before": ["null", row], "after": ["null", f"shop.{name}.Value"]}
        return {**record("Envelope", **images, op="string"), "namespace": f"shop.{name}"}

    orders, items = envelope("orders", id="int"), envelope("items", x="int")
    cdc = Envelope("debezium", "", encoding="avro", record="shop.orders.Envelope")
    schemas = message_schemas([union(1, "null", orders, items)], cdc, None)
    created = encode(orders, {"before": None, "after": {"id": 5}, "op": "c"})
    messages = b"\2" + created, b"\0", b"\4any"
    rows, skipped = decoded(schemas, *messages, envelope=cdc)
    assert (rows, skipped) == ([(0, 5)], 1)
