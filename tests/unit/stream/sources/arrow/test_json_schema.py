"""Which messages of JSON with a schema are decoded without Spark, and what they become."""

from __future__ import annotations

import base64
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.json_schema import json_decoder
from dbt.adapters.iceberg_stream.stream.sources.arrow.records import RecordDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.source import MINOR, ROW_DELETED
from tests.unit.stream.sources.formats.avro_rows import as_text, framed, numbered, rows_of
from tests.unit.stream.sources.formats.json_schema_rows import (
    JSON,
    Style,
    connect,
    messages_of,
    schemas_of,
    topics,
)


def decoder_of(*schemas: Any, envelope: Envelope = JSON, zone: str | None = "UTC") -> RecordDecoder:
    decoder = json_decoder(schemas_of(*schemas, envelope=envelope), envelope.required, zone)
    assert decoder is not None
    return decoder


def record(**properties: Any) -> Any:
    return {"type": "object", "properties": properties}


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


@settings(max_examples=150, deadline=None)
@given(st.builds(Style, st.booleans()).flatmap(topics))
def test_rows_are_those_that_were_written(topic: tuple[Any, list[str], list[Any]]) -> None:
    schema, texts, rows = topic
    assert numbered(rows_of(decoder_of(schema), messages_of(texts))) == [*map(as_text, rows)]


def test_newer_schemas_add_and_widen_fields() -> None:
    """Also within objects and arrays; messages keep their order."""
    part = record(x={**INTEGER, "connect.type": "int32"})
    wider = record(x=INTEGER, y=TEXT)
    decoder = decoder_of(
        record(id={**INTEGER, "connect.type": "int32"}, part=part),
        record(id=INTEGER, part=wider, parts={"type": "array", "items": wider}),
    )
    rows = rows_of(
        decoder,
        [
            framed(1, b'{"id": 1, "part": {"x": 2}}'),
            framed(2, b'{"part": {"y": "a", "x": 3}, "parts": [{"x": 4}, null], "more": 1}'),
            framed(1, b"{}"),
        ],
    )
    assert rows.to_pylist() == [
        {"id": 1, "part": {"x": 2, "y": None}, "parts": None},
        {"id": None, "part": {"x": 3, "y": "a"}, "parts": [{"x": 4, "y": None}, None]},
        {"id": None, "part": None, "parts": None},
    ]
    assert str(rows.schema.field("id").type) == "int64"


def test_changes_of_debezium() -> None:
    """Members that are no columns of the row need no type."""
    row = {"oneOf": [{"type": "null"}, record(id=INTEGER, at=TIMESTAMP)]}
    free = {"type": "object"}
    schema = record(before=row, after=row, op=TEXT, source=record(table=TEXT, free=free), more=free)
    decoder = decoder_of(schema, envelope=Envelope("debezium", ""))
    texts = [
        '{"op": "c", "after": {"id": 1, "at": 0}, "source": {"table": "t", "free": 5}}',
        '{"op": "m", "more": "x"}',
        '{"op": "d", "before": {"id": 1, "at": 1}, "after": null}',
    ]
    names = {name: name for name in decoder.columns.names}
    values = pa.array(messages_of(texts), pa.binary())
    batch = pa.record_batch({"value": values, "offset": pa.array(range(3), pa.int64())})
    rows = pa.Table.from_batches(decoder.decode([batch], names))
    assert rows["id"].to_pylist() == [1, 1]
    assert rows["at"].cast(pa.int64()).to_pylist() == [0, 1000]
    assert (rows[MINOR].to_pylist(), rows[ROW_DELETED].to_pylist()) == ([0, 2], [False, True])


TIMESTAMP = connect("int64", "io.debezium.time.Timestamp")
DECIMAL = connect(
    "bytes",
    "org.apache.kafka.connect.data.Decimal",
    "number",
    **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "6"}},
)


def octets(number: int) -> str:
    """A decimal in base64, in three bytes: without padding."""
    return base64.b64encode(number.to_bytes(3, "big", signed=True)).decode()


def test_decimals_whose_bytes_look_like_a_number() -> None:
    """They are told from numbers by their quotes, and never mixed."""
    digits = "1234"
    number = int.from_bytes(base64.b64decode(digits), "big", signed=True)
    schema = record(a={**DECIMAL, "connect.parameters": {"scale": "0"}})
    rows = rows_of(decoder_of(schema), messages_of([f'{{"a": "{digits}"}}']))
    assert rows.to_pylist() == [{"a": Decimal(number)}]
    rows = rows_of(decoder_of(schema), messages_of([f'{{"a": {digits}}}']))
    assert rows.to_pylist() == [{"a": Decimal(digits)}]
    with pytest.raises(ArrowFallback):
        rows_of(decoder_of(schema), messages_of([f'{{"a": "{digits}"}}', '{"a": 5}']))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (INTEGER, '"1"'),
        (INTEGER, "1.5"),
        ({**INTEGER, "connect.type": "int32"}, str(2**31)),
        (TEXT, "5"),
        ({"type": "boolean"}, '"true"'),
        ({**TEXT, "format": "date-time"}, '"yesterday"'),
        ({**TEXT, "format": "date"}, "5"),
        ({**TEXT, "connect.type": "bytes"}, '"?"'),
        ({**TEXT, "connect.type": "bytes"}, '"AAA==="'),
        ({**TEXT, "connect.type": "bytes"}, '"AB=="'),
        ({**TEXT, "connect.type": "bytes"}, "5"),
        (TIMESTAMP, str(2**62)),
        (DECIMAL, f'"{octets(1000000)}"'),
        (DECIMAL, '""'),
        (DECIMAL, "10000"),
        (DECIMAL, "true"),
        (record(x=INTEGER), "[]"),
    ],
)
def test_values_that_do_not_fit_are_left_to_spark(kind: Any, value: str) -> None:
    decoder, good = decoder_of(record(a=kind, b=TEXT)), '{"b": "x"}'
    assert rows_of(decoder, messages_of([good])).to_pylist() == [{"a": None, "b": "x"}]
    with pytest.raises(ArrowFallback):
        rows_of(decoder, messages_of([good, f'{{"a": {value}}}']))


def test_messages_that_are_left_to_spark() -> None:
    decoder = decoder_of(record(id=INTEGER), envelope=Envelope("json", "", required=("ID",)))
    good = framed(1, b'{"id": 1}')
    assert rows_of(decoder, [good]).to_pylist() == [{"id": 1}]
    for bad in (framed(2, b'{"id": 1}'), b'{"id": 1}', framed(1, b"{}"), framed(1, b""), b""):
        with pytest.raises(ArrowFallback):
            rows_of(decoder, [good, bad])


@pytest.mark.parametrize(
    ("kind", "zone"),
    [
        ({"additionalProperties": INTEGER}, "UTC"),
        ({**TEXT, "format": "date"}, None),
        ({"items": {**TEXT, "format": "date-time"}}, None),
    ],
)
def test_types_that_are_left_to_spark(kind: Any, zone: str | None) -> None:
    assert json_decoder(schemas_of(record(a=kind)), (), zone) is None


def test_numbers_that_are_times_need_no_zone() -> None:
    decoder = decoder_of(record(a=TIMESTAMP), zone=None)
    [row] = rows_of(decoder, messages_of(['{"a": 1000}'])).to_pylist()
    assert row == {"a": datetime(1970, 1, 1, 0, 0, 1)}
