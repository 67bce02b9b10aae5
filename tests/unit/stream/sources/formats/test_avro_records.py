"""What becomes of messages in Avro, compared with what fastavro reads."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.stream.sources.formats.avro_records import (
    AvroReader,
    fast_avro_reader,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import parse_avro
from dbt.adapters.iceberg_stream.stream.sources.formats.record_reader import (
    FastReader,
    SlowReader,
)
from tests.unit.stream.sources.formats.avro_rows import (
    ALL,
    FAST,
    damaged,
    decode,
    decoder_of,
    encode,
    expected,
    framed,
    topics,
)
from tests.unit.stream.sources.formats.decoded_messages import (
    as_text,
    numbered,
    outcomes_of,
    require_bad,
    rows_of,
)
from tests.unit.stream.sources.formats.two_readers import require_same_records


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
IS_NO_AVRO = "is not Avro of its schema 1"


def readers_of(schema: Any) -> tuple[FastReader | None, SlowReader]:
    own = parse_avro(json.dumps(schema))
    return fast_avro_reader(own), AvroReader(own)


@settings(max_examples=100, deadline=None)
@given(topics())
def test_rows_are_those_of_fastavro(topic: tuple[Any, list[Any]]) -> None:
    schema, values = topic
    bodies = [encode(schema, value) for value in values]
    rows = [as_text(expected(schema, decode(schema, body))) for body in bodies]
    decoder = decoder_of(schema)
    assert numbered(rows_of(decoder, [framed(1, body) for body in bodies])) == rows
    many = [framed(1, body) for body in bodies for _ in range(5)]
    assert numbered(rows_of(decoder, many)) == [row for row in rows for _ in range(5)]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_both_readers_read_the_same(data: st.DataObject) -> None:
    """pyruhvro reads all that is not damaged."""
    schema, values = data.draw(topics(FAST))
    fast, slow = readers_of(schema)
    assert fast is not None
    bodies = [encode(schema, value) for value in values]
    assert require_same_records(fast, slow, bodies) == len(bodies)
    spoiled = [data.draw(damaged(body)) for body in bodies]
    require_same_records(fast, slow, [*spoiled, *bodies])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    """What is decoded is Avro of its schema up to its last byte."""
    schema, values = data.draw(topics(data.draw(st.sampled_from([ALL, FAST])), 2))
    body = data.draw(damaged(encode(schema, values[0])))
    messages = [framed(1, body)] * 3 + [framed(1, encode(schema, value)) for value in values] * 2
    for message, outcome in zip(messages, outcomes_of(decoder_of(schema), messages), strict=True):
        try:
            row = as_text(expected(schema, decode(schema, message[5:])))
        except (ValueError, OverflowError):
            assert outcome.bad
            continue
        # A value may be none of its column, such as a time after the year 9999.
        assert outcome.bad or [text for text, *_ in outcome.rows] == [row]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "does not begin with a byte 0 and the four bytes of a schema id"),
        (b"\0\0\0\0", "does not begin with a byte 0"),
        (b"\1" + GOOD[1:], "does not begin with a byte 0"),
        (framed(2, GOOD[5:]), "has the schema id 2, which the registry does not have"),
        (b"\3\0" + bytes(17), "has the header of AWS Glue's schema registry"),
        (b'{"id": 1}', "is JSON without the id of a schema. Set `format: json` and the source's"),
        (b"\0\0\0\0\1", IS_NO_AVRO),
        (GOOD[:-1], IS_NO_AVRO),
        (GOOD + b"\0", IS_NO_AVRO),
        (framed(1, b"\2\4"), IS_NO_AVRO),
        (framed(1, b"\2\2\x01"), IS_NO_AVRO),
        (framed(1, b"\2\2\2\xff"), IS_NO_AVRO),
        (framed(1, b"\x80\x80\x80\x80\x10\0"), IS_NO_AVRO),
        (framed(1, b"\xff" * 9 + b"\1\0"), IS_NO_AVRO),
        (framed(1, b"\2\2" + b"\xfe" * 8 + b"\1a"), IS_NO_AVRO),
    ],
)
def test_bad_messages(message: bytes, reason: str) -> None:
    assert require_bad(decoder_of(SIMPLE), GOOD, message).startswith(reason)


@pytest.mark.parametrize(
    ("body", "row"),
    [
        (b"\x82\x80\x80\x80\x80\0\0", {"id": 1, "name": None}),
        (b"\2" + b"\x82" + b"\x80" * 8 + b"\0\2a", {"id": 1, "name": "a"}),
    ],
)
def test_padded_integers(body: bytes, row: Any) -> None:
    """Avro does not say that they are wrong."""
    for messages in ([framed(1, body)], [GOOD] * 5 + [framed(1, body)]):
        assert rows_of(decoder_of(SIMPLE), messages).to_pylist()[-1] == row


@pytest.mark.parametrize("key", [b"\xff", b"\xc3"])
def test_texts_that_are_not_utf8(key: bytes) -> None:
    """Whatever they are in."""
    text = b"\2" + key
    for kind, good, bad in (
        ("string", b"\2a", text),
        ({"type": "map", "values": "int"}, b"\2\2a\2\0", b"\2" + text + b"\2\0"),
        ({"type": "map", "values": "string"}, b"\2\2a\2a\0", b"\2\2a" + text + b"\0"),
        ({"type": "array", "items": record("Part", a="string")}, b"\2\2a\0", b"\2" + text + b"\0"),
    ):
        own = decoder_of(record(x=kind))
        assert require_bad(own, framed(1, good), framed(1, bad)) == IS_NO_AVRO


@pytest.mark.parametrize(
    ("array", "numbers"), [(b"\xff" * 9 + b"\1\2\0", []), (b"\2\2" + b"\xff" * 9 + b"\1\2\0", [1])]
)
def test_an_array_of_a_length_that_is_none(array: bytes, numbers: list[int]) -> None:
    """It is what fastavro reads, whichever messages are beside it."""
    schema, good = record(numbers={"type": "array", "items": "long"}), b"\2\2\0"
    assert decode(schema, array) == {"numbers": numbers}
    for several in ([array], [good] * 6 + [array]):
        rows = rows_of(decoder_of(schema), [framed(1, body) for body in several])
        assert rows["numbers"].to_pylist() == [[1]] * (len(several) - 1) + [numbers]


@pytest.mark.parametrize("name", ["array", "map"])
def test_blocks_of_arrays_and_maps(name: str) -> None:
    """Writers may split them, and write their sizes."""
    item = b"\2\2" if name == "array" else b"\2a\2"
    more = b"\2\4" if name == "array" else b"\2b\4"
    schema = record(x={"type": name, "items": "long", "values": "long"})
    item, more = (part[1:] if name == "array" else part for part in (item, more))
    bodies = [
        b"\4" + item + more + b"\0",
        b"\2" + item + b"\2" + more + b"\0",
        b"\1" + bytes([2 * len(item)]) + item + b"\2" + more + b"\0",
    ]
    value: Any = [1, 2] if name == "array" else [("a", 1), ("b", 2)]
    for messages in (bodies, bodies * 3):
        rows = rows_of(decoder_of(schema), [framed(1, body) for body in messages])
        assert rows["x"].to_pylist() == [value] * len(messages)


NUMBER = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
SECONDS = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}


@pytest.mark.parametrize(
    ("kind", "good", "bad", "is_avro"),
    [
        (COLORS, b"\2", b"\4", False),
        ("int", b"\2", b"\x80\x80\x80\x80\x10", False),
        (NUMBER, b"\4\x27\x0f", b"\4\x27\x10", True),
        (["null", NUMBER], b"\0", b"\2\0", True),
        (NUMBER, b"\x22" + bytes(17), b"\x22\1" + bytes(16), True),
        (MILLIS, b"\2", b"\xfe" + b"\xff" * 8 + b"\1", True),
        (SECONDS, b"\x282026-01-31T00:00:00Z", b"\x282026-02-30T00:00:00Z", True),
        (SECONDS, b"\x322026-01-31T00:00:00+01:00", b"\2a", True),
    ],
)
def test_damage_in_a_field_that_is_no_column(
    kind: Any, good: bytes, bad: bytes, is_avro: bool
) -> None:
    decoder = decoder_of(record(id="int", other=kind), columns=pa.schema([("id", pa.int32())]))
    assert rows_of(decoder, [framed(1, b"\2" + good)]).to_pylist() == [{"id": 1}]
    of_field = "has the schema 1, whose field `other` has a value that its column cannot take"
    reason = require_bad(decoder, framed(1, b"\2" + good), framed(1, b"\2" + bad))
    assert reason == (of_field if is_avro else IS_NO_AVRO)


def test_the_field_of_a_value_that_no_column_takes() -> None:
    """By its path; items of arrays and maps have none."""
    parts = {"type": "array", "items": record("Item", at=MILLIS)}
    schema = record(part=record("Part", id="int", at=["null", MILLIS]), parts=parts)
    late, fine = b"\xfe" + b"\xff" * 8 + b"\1", b"\2"
    good = framed(1, b"\2\2" + fine + b"\2" + fine + b"\0")
    for body, path in (
        (b"\2\2" + late + b"\2" + fine + b"\0", "part.at"),
        (b"\2\2" + fine + b"\2" + late + b"\0", "parts.at"),
    ):
        reason = require_bad(decoder_of(schema), good, framed(1, body))
        assert f"whose field `{path}` has a value" in reason


def test_a_key_that_is_twice_in_a_map() -> None:
    """The last one counts."""
    decoder = decoder_of(record(id="int", parts={"type": "map", "values": "long"}))
    once, twice = framed(1, b"\2\4\2a\2\2b\2\0"), framed(1, b"\2\4\2a\2\2a\4\0")
    for messages in ([once, twice], [once, twice] * 4):
        maps = rows_of(decoder, messages)["parts"].to_pylist()
        assert maps == [[("a", 1), ("b", 1)], [("a", 2)]] * (len(messages) // 2)


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (["string"], b"\0\2a", "a"),
        (["null", "int", "long"], b"\4\2", 1),
        (["int", "string"], b"\2\2a", {"member0": None, "member1": "a"}),
        ({"type": "map", "values": COLORS}, b"\2\2k\2\0", [("k", "blue")]),
        ({"type": "map", "values": ["null", record("P", a="int")]}, b"\2\2k\0\0", [("k", None)]),
        (fixed(0), b"", b""),
        ({"type": "array", "items": fixed(2)}, b"\2ab\0", [b"ab"]),
        (fixed(20, "decimal", precision=9), bytes(19) + b"\1", Decimal(1)),
        (fixed(20, "decimal", precision=9), bytes(20), Decimal(0)),
        (
            {"type": "array", "items": ["null", fixed(16)]},
            b"\4\0\2" + b"a" * 16 + b"\0",
            [None, b"a" * 16],
        ),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, b"\2", "b"),
        (
            {"type": "array", "items": [record("P", a="int"), "null"]},
            b"\4\0\2\2\0",
            [{"a": 1}, None],
        ),
        (record("Empty", nothing="null"), b"", {}),
    ],
)
def test_types_that_pyruhvro_does_not_read(kind: Any, body: bytes, value: Any) -> None:
    """Also in a field that becomes no column, and in one of several schemas."""
    schema = record(id="int", x=kind)
    message = framed(1, b"\4" + body)
    for messages in ([message], [message] * 6):
        rows = rows_of(decoder_of(schema), messages).to_pylist()
        assert rows == [{"id": 2, "x": value}] * len(messages)
        only = decoder_of(schema, columns=pa.schema([("id", pa.int32())]))
        assert rows_of(only, messages).to_pylist() == [{"id": 2}] * len(messages)
    mixed = decoder_of(schema, record(id="int", name=["null", "string"]))
    rows = rows_of(mixed, [message, framed(2, GOOD[5:])] * 3).to_pylist()
    one = {"id": 2, "x": value, "name": None}
    assert rows == [one, {"id": 1, "x": None, "name": "a"}] * 3


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
    for bad, reason in ((body, IS_NO_AVRO), (body + b"\0\0", IS_NO_AVRO), (most, "`price`")):
        assert reason in require_bad(decoder_of(schema), framed(1, values[0]), framed(1, bad))


def test_a_fixed_of_any_size() -> None:
    """Also of a record that is null in others."""
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
        cuts = [message[:length] for length in range(5, len(message))]
        outcomes = outcomes_of(decoder, [*messages, *cuts])
        assert [own.bad for own in outcomes] == [""] * 3 + [IS_NO_AVRO] * len(cuts)
    # An index that the union does not have.
    for bad in (b"a\4" + messages[1][7:], messages[1][5:] + b"\0"):
        assert require_bad(decoder, messages[1], framed(1, bad)) == IS_NO_AVRO


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyruhvro", None)
    assert readers_of(SIMPLE)[0] is None
    assert rows_of(decoder_of(SIMPLE), [GOOD] * 6)["id"].to_pylist() == [1] * 6
