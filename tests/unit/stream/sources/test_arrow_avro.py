"""Which messages of Avro are decoded without Spark, and what they become."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow_avro import avro_decoder
from dbt.adapters.iceberg_stream.stream.sources.avro_types import END

from .avro_rows import (
    as_text,
    damaged,
    decode,
    decoder_of,
    encode,
    expected,
    framed,
    numbered,
    rows_of,
    schemas_of,
    topics,
)


def record(name: str = "Row", /, **fields: Any) -> Any:
    named = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": named}


SIMPLE = record(id="int", name=["null", "string"])
COLORS = {"type": "enum", "name": "E", "symbols": ["red", "blue"]}
GOOD = framed(1, encode(SIMPLE, {"id": 1, "name": "a"}))


@settings(max_examples=150)
@given(topics())
def test_rows_are_those_of_fastavro(topic: tuple[Any, list[Any]]) -> None:
    schema, values = topic
    bodies = [encode(schema, value) for value in values]
    actual = rows_of(decoder_of(schema), [framed(1, body) for body in bodies])
    expected_rows = [as_text(expected(schema, decode(schema, body))) for body in bodies]
    assert numbered(actual) == expected_rows


@settings(max_examples=400)
@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    """What is decoded is Avro of its schema up to its last byte."""
    schema, values = data.draw(topics(2))
    body = data.draw(damaged(encode(schema, values[0])))
    messages = [framed(1, body), *(framed(1, encode(schema, value)) for value in values)]
    try:
        actual = rows_of(decoder_of(schema), messages)
    except ArrowFallback:
        return
    expected_rows = [decode(schema, message[5:]) for message in messages]
    assert numbered(actual) == [as_text(expected(schema, value)) for value in expected_rows]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0\0\0\0",
        b"\0\0\0\0\1",
        framed(2, GOOD[5:]),
        b"\1" + GOOD[1:],
        b"\3\0" + bytes(17),
        b'{"id": 1}',
        GOOD[:-1],
        GOOD + b"\0",
        GOOD + bytes.fromhex(END),
        framed(1, b"\2\4"),
        framed(1, b"\2\2\x01"),
        framed(1, b"\2\2\2\xff"),
        framed(1, b"\x80\x80\x80\x80\x10\0"),
        framed(1, b"\xff" * 9 + b"\1\0"),
        framed(1, b"\x82\x80\x80\x80\x80\0\0"),
        framed(1, b"\2" + b"\x82" + b"\x80" * 8 + b"\0\2a"),
        framed(1, b"\x82" + b"\x80" * 8 + b"\x7e\0"),
        framed(1, b"\2\2" + b"\xfe" * 8 + b"\1a"),
    ],
)
def test_what_spark_must_see(message: bytes) -> None:
    for messages in ([message], [GOOD, message, GOOD]):
        with pytest.raises(ArrowFallback):
            rows_of(decoder_of(SIMPLE), messages)


@pytest.mark.parametrize("array", [b"\xff" * 9 + b"\1\2\0", b"\2\2" + b"\xff" * 9 + b"\1\2\0"])
def test_an_array_of_a_length_that_is_none(array: bytes) -> None:
    decoder = decoder_of(record(numbers={"type": "array", "items": "long"}))
    assert rows_of(decoder, [framed(1, b"\2\2\0")]).to_pylist() == [{"numbers": [1]}]
    with pytest.raises(ArrowFallback):
        rows_of(decoder, [framed(1, array)])


def test_damage_in_a_field_that_is_not_picked() -> None:
    columns = t.StructType([t.StructField("id", t.IntegerType())])
    decoder = decoder_of(record(id="int", color=COLORS), columns=columns)
    assert rows_of(decoder, [framed(1, b"\2\2")]).to_pylist() == [{"id": 1}]
    with pytest.raises(ArrowFallback):
        rows_of(decoder, [framed(1, b"\2\4")])


def test_several_schemas_in_a_batch() -> None:
    """Each message is read with its own, and their order stays."""
    schemas = [
        record(id="int", part=record("Part", a="int"), ratio="float"),
        record(
            id="long",
            part=["null", record("Part", A="long", b=["string", "null"])],
            days=["null", {"type": "array", "items": {"type": "int", "logicalType": "date"}}],
            ratio="double",
        ),
        record(ID="int", part=record("Part", a="int"), ratio="float"),
    ]
    values = [
        (2, {"id": 2**40, "part": {"A": 2**41, "b": "x"}, "days": [1], "ratio": 0.1}),
        (1, {"id": 1, "part": {"a": 1}, "ratio": 0.5}),
        (3, {"ID": 3, "part": {"a": 3}, "ratio": 0.5}),
        (2, {"id": 2, "part": None, "days": None, "ratio": 0.2}),
        (1, {"id": 4, "part": {"a": 4}, "ratio": 0.5}),
    ]
    messages = [framed(number, encode(schemas[number - 1], value)) for number, value in values]
    actual = rows_of(decoder_of(*schemas), messages)
    small = [{"id": n, "part": {"a": n, "b": None}, "ratio": 0.5, "days": None} for n in (1, 3, 4)]
    first = {"id": 2**40, "part": {"a": 2**41, "b": "x"}, "ratio": 0.1, "days": [1]}
    last = {"id": 2, "part": None, "ratio": 0.2, "days": None}
    assert numbered(actual) == [as_text(row) for row in (first, *small[:2], last, small[2])]


def test_columns_of_the_definition() -> None:
    """Fields besides them are skipped, and columns without a field are null."""
    columns = t.StructType(
        [
            t.StructField("NAME", t.StringType()),
            t.StructField("at", t.TimestampType()),
            t.StructField("Id", t.LongType()),
        ]
    )
    actual = rows_of(decoder_of(SIMPLE, columns=columns), [GOOD])
    assert actual.to_pylist() == [{"NAME": "a", "at": None, "Id": 1}]
    assert actual.schema.field("at").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    "kind",
    [
        "bytes",
        "null",
        ["string"],
        ["null", "int", "long"],
        ["int", "string"],
        {"type": "map", "values": "int"},
        {"type": "fixed", "name": "F", "size": 2},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        {"type": "long", "logicalType": "timestamp-nanos"},
        {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"},
        {"type": "enum", "name": "E", "symbols": ["not a name"]},
        {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["a"]}},
        {"type": "array", "items": ["null", record("Part", a="int")]},
        {"type": "array", "items": record("Part", b=[record("Inner", a="int"), "null"])},
        {"type": "array", "items": record("Empty")},
        record("Empty"),
        record("Empty", nothing="null"),
    ],
)
def test_types_that_spark_reads(kind: Any) -> None:
    """Also in a field that becomes no column, and in one of several schemas."""
    columns = t.StructType([t.StructField("id", t.IntegerType())])
    assert avro_decoder(schemas_of(record(id="int", x=kind), columns=columns)) is None
    assert avro_decoder(schemas_of(SIMPLE, record(id="int", x=kind))) is None


@pytest.mark.parametrize("target", [t.StringType(), t.ShortType(), t.TimestampType()])
def test_casts_that_spark_makes(target: t.DataType) -> None:
    columns = t.StructType([t.StructField("id", target)])
    schema = record(id="long" if isinstance(target, t.TimestampType) else "int")
    assert avro_decoder(schemas_of(schema, columns=columns)) is None


def test_without_schemas_or_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert avro_decoder(schemas_of()) is None
    monkeypatch.setitem(sys.modules, "pyruhvro", None)
    assert avro_decoder(schemas_of(SIMPLE)) is None
