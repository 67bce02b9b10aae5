"""Which messages of Avro are decoded without Spark, and what they become."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.avro import avro_decoder
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import END
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR, ROW_DELETED
from tests.unit.stream.sources.formats.avro_rows import (
    DEBEZIUM,
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


def fixed(size: int, logical: str = "", **more: Any) -> Any:
    kind = {"type": "fixed", "name": f"F{size}{logical}", "size": size, **more}
    return {**kind, "logicalType": logical} if logical else kind


SIMPLE = record(id="int", name=["null", "string"])
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
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


NUMBER = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
SECONDS = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (COLORS, b"\2", b"\4"),
        ("int", b"\2", b"\x80\x80\x80\x80\x10"),
        ("string", b"\2a", b"\2\xff"),
        (NUMBER, b"\4\x27\x0f", b"\4\x27\x10"),
        (["null", NUMBER], b"\0", b"\2\0"),
        (NUMBER, b"\x20" + bytes(16), b"\x22" + bytes(17)),
        (MILLIS, b"\2", b"\xfe" + b"\xff" * 8 + b"\1"),
        (SECONDS, b"\x282026-01-31T00:00:00Z", b"\x282026-02-30T00:00:00Z"),
        (SECONDS, b"\x2c2026-01-31T00:00:00.1Z", b"\x322026-01-31T00:00:00+01:00"),
    ],
)
def test_damage_in_a_field_that_is_not_picked(kind: Any, good: bytes, bad: bytes) -> None:
    columns = t.StructType([t.StructField("id", t.IntegerType())])
    decoder = decoder_of(record(id="int", other=kind), columns=columns)
    assert rows_of(decoder, [framed(1, b"\2" + good)]).to_pylist() == [{"id": 1}]
    with pytest.raises(ArrowFallback):
        rows_of(decoder, [framed(1, b"\2" + bad)])


def test_a_key_that_is_twice_in_a_map() -> None:
    decoder = decoder_of(record(id="int", parts={"type": "map", "values": "long"}))
    once = framed(1, b"\2\4\2a\2\2b\2\0")
    assert rows_of(decoder, [once, once])["parts"].to_pylist() == [[("a", 1), ("b", 1)]] * 2
    with pytest.raises(ArrowFallback):
        rows_of(decoder, [once, framed(1, b"\2\4\2a\2\2a\4\0")])


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


@given(st.lists(st.integers(1, 5), max_size=12))
def test_messages_of_other_types_are_skipped(ids: list[int]) -> None:
    """Of five schemas, two are read; the others may come anywhere, also alone."""
    schemas = [SIMPLE, record(id="long", note="string")]
    bodies = [encode(SIMPLE, {"id": 1, "name": "a"}), encode(schemas[1], {"id": 2, "note": "b"})]
    values = [framed(n, bodies[n - 1] if n < 3 else b"other") for n in ids]
    decoder, skipped = (
        decoder_of(*schemas, is_other=lambda number: number in (3, 4, 5)),
        list[int](),
    )
    batch = pa.record_batch(
        {"value": pa.array(values, pa.binary()), "offset": pa.array(range(len(ids)), pa.int64())}
    )
    decoded = [*decoder.decode([batch, batch.slice(0, 0)], {"id": "id"}, skipped.append)]
    rows = [(row["id"], row[MINOR]) for part in decoded for row in part.to_pylist()]
    assert rows == [(number, place) for place, number in enumerate(ids) if number < 3]
    assert sum(skipped) == len(ids) - len(rows)


@pytest.mark.parametrize("message", [b"", b"{}", framed(4, b"x"), framed(3, b"")[:4]])
def test_messages_that_are_not_skipped(message: bytes) -> None:
    decoder = decoder_of(SIMPLE, is_other=lambda number: number == 3)
    with pytest.raises(ArrowFallback):
        rows_of(decoder, [GOOD, message])


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
        "null",
        ["string"],
        ["null", "int", "long"],
        ["int", "string"],
        {"type": "map", "values": COLORS},
        {"type": "map", "values": ["null", record("Part", a="int")]},
        fixed(0),
        {"type": "array", "items": fixed(2)},
        {"type": "map", "values": record("Part", a=["null", fixed(2)])},
        fixed(20, "decimal", precision=9),
        {"type": "array", "items": ["null", fixed(16)]},
        {"type": "array", "items": [fixed(16), "null"]},
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


def test_bytes_of_a_fixed() -> None:
    """Also those of numbers that are none, which processors may change."""
    patterns = ["7ff0000000000001", "fff8dead00000000", "7f800001", "ffc0dead", "80" + "00" * 7]
    octets = [bytes.fromhex(text).ljust(12, b"\1") for text in patterns]
    octets += [bytes(12), b"\xff" * 12, bytes(range(12))]
    schema = record(x=["null", fixed(12)], y=fixed(4), z={"type": "array", "items": fixed(8)})
    rows = [{"x": part, "y": part[:4], "z": [part[4:], part[:8]]} for part in octets]
    rows.insert(1, {"x": None, "y": b"abcd", "z": []})
    decoder = decoder_of(schema)
    assert rows_of(decoder, [framed(1, encode(schema, row)) for row in rows]).to_pylist() == rows
    assert rows_of(decoder, [framed(1, encode(schema, rows[1]))]).to_pylist() == rows[1:2]


def test_uuids_and_decimals_of_a_fixed() -> None:
    kinds = {"id": fixed(16, "uuid"), "price": fixed(16, "decimal", precision=38, scale=2)}
    schema = record(**kinds, other=["null", "F16uuid"])
    body = bytes(range(0xF0, 0x100)) + (-12345).to_bytes(16, "big", signed=True)
    values = [body + b"\0", body + b"\2" + bytes(16)]
    rows = rows_of(decoder_of(schema), [framed(1, value) for value in values]).to_pylist()
    number = "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"
    row = {"id": number, "price": Decimal("-123.45")}
    zero = "00000000-0000-0000-0000-000000000000"
    assert rows == [{**row, "other": None}, {**row, "other": zero}]
    most = body[:16] + (10**38).to_bytes(16, "big") + b"\0"
    for bad in (body, body + b"\0\0", most):
        with pytest.raises(ArrowFallback):
            rows_of(decoder_of(schema), [framed(1, values[0]), framed(1, bad)])


def test_a_fixed_of_any_size() -> None:
    """It is cut out of the message, also of a record that is null in others."""
    inner = record("In", a="string", b=["null", fixed(3)], c=["string", "null"])
    price = fixed(5, "decimal", precision=11, scale=2)
    schema = record(x=fixed(1), y=["null", inner], z=[fixed(6), "null"], price=price, last="int")
    one = {"a": "é", "b": b"\xff\0\x80", "c": None}
    rows = [
        {"x": b"\0", "y": one, "z": None, "price": (-1).to_bytes(5, "big", signed=True), "last": 1},
        {"x": b"\xff", "y": None, "z": b"abcdef", "price": b"\0\0\0\1\2", "last": -1},
        {"x": b"a", "y": {**one, "b": None, "c": "c"}, "z": None, "price": bytes(5), "last": 0},
    ]
    numbers = [Decimal("-0.01"), Decimal("2.58"), Decimal("0.00")]
    expected_rows = [{**row, "price": n} for row, n in zip(rows, numbers, strict=True)]
    messages = [framed(1, encode(schema, row)) for row in rows]
    decoder = decoder_of(schema)
    assert rows_of(decoder, messages).to_pylist() == expected_rows
    for place, message in enumerate(messages):
        assert rows_of(decoder, [message]).to_pylist() == expected_rows[place : place + 1]
        for length in range(5, len(message)):
            with pytest.raises(ArrowFallback):
                rows_of(decoder, [*messages, message[:length]])
    # An index that is padded, and one that the union does not have.
    for bad in (b"a\x80\0" + messages[1][7:], b"a\4" + messages[1][7:], messages[1][5:] + b"\0"):
        with pytest.raises(ArrowFallback):
            rows_of(decoder, [messages[1], framed(1, bad)])


def envelope(row: Any, **more: Any) -> Any:
    """The schema of Debezium's messages."""
    images = {"before": ["null", row], "after": ["null", row["name"]]}
    return record("Envelope", **images, op="string", **more)


def changes_of(schema: Any, *messages: Any) -> list[Any]:
    values = [framed(1, encode(schema, {"before": None, "after": None, **m})) for m in messages]
    offsets = pa.array(range(len(values)), pa.int64())
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": offsets})
    decoder = decoder_of(schema, envelope=DEBEZIUM)
    changes = pa.Table.from_batches(decoder.decode([batch], {"number": "id"})).to_pylist()
    return [(row["number"], row[MINOR], row[ROW_DELETED]) for row in changes]


def test_changes_of_debezium() -> None:
    old, new = {"id": 1, "name": "a"}, {"id": 2, "name": None}
    schema = envelope(SIMPLE, ts_ms=["null", "long"])
    assert changes_of(
        schema,
        {"op": "r", "after": old, "ts_ms": None},
        {"op": "u", "before": old, "after": new, "ts_ms": 5},
        {"op": "m", "ts_ms": 5},
        {"op": "d", "before": old, "ts_ms": 5},
    ) == [(1, 0, False), (2, 1, False), (1, 3, True)]
    # The last ones have no row.
    for operation in ("t", "", "x", "c", "d"):
        with pytest.raises(ArrowFallback):
            changes_of(schema, {"op": "c", "after": old, "ts_ms": 1}, {"op": operation, "ts_ms": 1})


def test_changes_of_several_schemas() -> None:
    wide = record(id="long", more=["null", "string"])
    schemas = [envelope(SIMPLE), envelope(wide, source=record("Source", table="string"))]
    one, two = {"id": 1, "name": "a"}, {"id": 2**40, "more": "x"}
    source = {"table": "t"}
    messages = [
        (2, {"before": two, "after": None, "op": "d", "source": source}),
        (1, {"before": None, "after": None, "op": "m"}),
        (1, {"before": one, "after": one, "op": "u"}),
        (2, {"before": None, "after": two, "op": "c", "source": source}),
    ]
    values = [framed(number, encode(schemas[number - 1], value)) for number, value in messages]
    offsets = pa.array(range(4), pa.int64())
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": offsets})
    decoder = decoder_of(*schemas, envelope=DEBEZIUM)
    columns = {"id": "id", "more": "more"}
    [decoded] = decoder.decode([batch], columns)
    assert decoded.drop_columns([MAJOR]).to_pylist() == [
        {"id": 2**40, "more": "x", MINOR: 0, ROW_DELETED: True},
        {"id": 1, "more": None, MINOR: 2, ROW_DELETED: False},
        {"id": 2**40, "more": "x", MINOR: 3, ROW_DELETED: False},
    ]


@pytest.mark.parametrize(
    "schema",
    [
        envelope(SIMPLE, source=record("Source", gtid=["int", "string"])),
        {
            **envelope(SIMPLE),
            "fields": [*envelope(SIMPLE)["fields"][:2], *record(op="bytes")["fields"]],
        },
    ],
)
def test_envelopes_that_spark_reads(schema: Any) -> None:
    assert avro_decoder(schemas_of(schema, envelope=DEBEZIUM)) is None


def test_wider_columns() -> None:
    columns = t.StructType(
        [
            t.StructField("price", t.DecimalType(9, 2)),
            t.StructField("parts", t.MapType(t.StringType(), t.LongType())),
        ]
    )
    schema = record(price=["null", NUMBER], parts={"type": "map", "values": "int"})
    actual = rows_of(decoder_of(schema, columns=columns), [framed(1, b"\2\2\x85\2\2a\4\0")])
    assert actual.to_pylist() == [{"price": Decimal("-1.23"), "parts": [("a", 2)]}]
    assert actual.schema.types == [pa.decimal128(9, 2), pa.map_(pa.string(), pa.int64())]


@pytest.mark.parametrize("target", [t.StringType(), t.ShortType(), t.TimestampType()])
def test_casts_that_spark_makes(target: t.DataType) -> None:
    columns = t.StructType([t.StructField("id", target)])
    schema = record(id="long" if isinstance(target, t.TimestampType) else "int")
    assert avro_decoder(schemas_of(schema, columns=columns)) is None


def test_without_schemas_or_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert avro_decoder(schemas_of()) is None
    monkeypatch.setitem(sys.modules, "pyruhvro", None)
    assert avro_decoder(schemas_of(SIMPLE)) is None
