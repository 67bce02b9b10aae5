"""Record types of JSON: titles of schemas, and which messages are read without Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.formats.json_types import OwnMessages, json_schemas
from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import record_names
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import MessageSchemas
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    Reference,
    RegisteredSchema,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import schema_header

ORDER, PAYMENT = ({"type": "object", "title": title} for title in ("Order", "Payment"))
COLUMNS = t.StructType([t.StructField("id", t.LongType())])
UNTITLED = {"type": "object"}
FILES = (Reference("order.json", json.dumps(ORDER)), Reference("none.json", "{}"))


def schema(number: int, kind: str = "JSON", **described: Any) -> RegisteredSchema:
    return RegisteredSchema(number, json.dumps(described), kind, FILES)


def orders(*schemas: RegisteredSchema) -> MessageSchemas:
    return json_schemas(schemas, "Order", COLUMNS)


@pytest.mark.parametrize(
    ("described", "names"),
    [
        ({"oneOf": [ORDER, PAYMENT]}, ("Order", "Payment")),
        ({"anyOf": [{"$ref": "order.json"}, {"type": "null"}]}, ("Order",)),
        ({"title": "Event", "oneOf": [ORDER]}, ("Event", "Order")),
        ({"oneOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": PAYMENT}}, ("Payment",)),
        ({"oneOf": [ORDER, UNTITLED]}, None),
        ({"oneOf": [{"$ref": "none.json"}]}, None),
        ({"oneOf": [{"$ref": "absent.json"}]}, None),
        ({"oneOf": [{"$ref": "#/$defs/a/b"}], "$defs": {"a": 5}}, None),
        ({"oneOf": [True]}, None),
        ({"oneOf": "x"}, ()),
    ],
)
def test_names_of_unions(described: Any, names: tuple[str, ...] | None) -> None:
    assert record_names(schema(1, **described)) == names


def test_schemas_of_a_record_type() -> None:
    schemas = orders(
        schema(1, **ORDER),
        schema(2, **PAYMENT),
        schema(3, oneOf=[{"$ref": "order.json"}, {"type": "null"}]),
        schema(4, title="Order", oneOf=[UNTITLED | {"title": "A"}, PAYMENT]),
        schema(5, oneOf=[PAYMENT, PAYMENT]),
        schema(6, type="string"),
    )
    assert [writer.ids for writer in schemas.writers] == [(1, 3, 4)]
    assert schemas.others == {2: ("Payment",), 5: ("Payment",), 6: ()}
    assert (schemas.columns, schemas.unreadable) == (COLUMNS, {})


def test_unions_are_refused() -> None:
    types = "has the schema {}, which is a union of {}, and JSON does not say which one a message "
    rest = "is of. Remove the source's `record`, and choose rows by a field in the model's query"
    avro = RegisteredSchema(3, '{"type": "record", "name": "Order", "fields": []}')
    schemas = orders(schema(1, oneOf=[PAYMENT, ORDER]), schema(2, oneOf=[UNTITLED]), avro)
    assert schemas.unreadable == {
        1: types.format(1, "the record types `Payment`, `Order`") + rest,
        2: types.format(2, "types of which one has no `title`") + rest,
        3: "has the schema 3, which is Avro and not JSON Schema. Set `format: avro`",
    }
    assert not schemas.writers


def test_messages_are_picked_by_their_ids() -> None:
    own = OwnMessages.of(orders(schema(1, **ORDER), schema(2, **ORDER)), lambda n: n == 7)
    skipped = list[int]()

    def picked(*values: bytes) -> list[bytes]:
        batch = pa.record_batch({"value": pa.array(values, pa.binary())})
        return [v for b in own.pick([batch], skipped.append) for v in b["value"].to_pylist()]

    one, two, other, unknown = (schema_header(number) + b"{}" for number in (1, 2, 7, 9))
    assert picked(one, two, one) == [one, two, one]
    assert picked() == []
    assert picked(other, one, other, two) == [one, two]
    assert picked(other) == []
    assert skipped == [2, 1]
    for bad in (b"{}", unknown, b""):
        with pytest.raises(ArrowFallback):
            picked(one, bad)
