"""Values of a schema's types in columns of a definition, which have other types."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import list_of
from dbt.adapters.iceberg_stream.stream.sources.formats.values import Values
from tests.unit.stream.sources.formats.avro_rows import (
    INT,
    LONG,
    SCALARS,
    TEXT,
    decimal_kinds,
    decoder_of,
    encode,
    framed,
    schemas_of,
    twos_complement,
)
from tests.unit.stream.sources.formats.decoded_messages import outcomes_of, rows_of

UTC = dt.timezone.utc
INSTANT, LOCAL, DAY = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()
STRING, BOOL, DOUBLE = pa.string(), pa.bool_(), pa.float64()
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL_MICROS = {"type": "long", "logicalType": "local-timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
TARGETS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), DOUBLE, BOOL, STRING]
TARGETS += [pa.decimal128(5, 2), pa.decimal128(38, 9), DAY, INSTANT, LOCAL, pa.binary()]


def record(kind: Any) -> Any:
    return {"type": "record", "name": "Row", "fields": [{"name": "x", "type": kind}]}


def cast_all(kind: Any, target: pa.DataType, values: list[Any], zone: str = "UTC") -> list[Any]:
    """The values of a column; "bad" for those that it cannot take."""
    decoder = decoder_of(record(kind), columns=pa.schema([("x", target)]), values=Values(zone))
    messages = [framed(1, encode(record(kind), {"x": value})) for value in values]
    decoded = decoder.decode(messages)
    rows = iter(decoded.rows["x"].to_pylist())
    bad = {own.place for own in decoded.bad}
    return ["bad" if place in bad else next(rows) for place in range(len(values))]


MIDNIGHT = dt.datetime(2026, 11, 26)
NOON = 1_795_694_400_000_000  # of 2026-11-26 in UTC


@pytest.mark.parametrize(
    ("kind", "target", "pairs"),
    [
        ("long", pa.int8(), [(127, 127), (128, "bad"), (-128, -128)]),
        ("double", pa.int32(), [(1.9, 1), (-1.9, -1), (float("nan"), "bad"), (2.0**31, "bad")]),
        ("int", BOOL, [(0, False), (2, True)]),
        ("double", BOOL, [(0.0, False), (0.1, True)]),
        ("boolean", pa.int16(), [(True, 1), (False, 0)]),
        ("boolean", pa.decimal128(5, 2), [(True, Decimal("1.00"))]),
        ("int", pa.decimal128(5, 2), [(999, Decimal("999.00")), (1000, "bad")]),
        ("double", pa.decimal128(5, 2), [(0.1, Decimal("0.10")), (float("inf"), "bad")]),
        (DECIMAL, pa.int16(), [(twos_complement(100), 1), (twos_complement(150), "bad")]),
        (DECIMAL, pa.decimal128(9, 1), [(twos_complement(150), Decimal("1.5")), (b"\1", "bad")]),
        (DECIMAL, STRING, [(twos_complement(-150), "-1.50")]),
        (DECIMAL, DOUBLE, [(twos_complement(150), 1.5)]),
        ("long", DOUBLE, [(2**53 + 1, float(2**53))]),
        ("string", pa.int32(), [(" 12 ", 12), ("1.0", "bad"), ("", "bad"), ("٣", "bad")]),
        ("string", DOUBLE, [("1e3", 1000.0), ("Infinity", float("inf")), ("x", "bad")]),
        ("string", BOOL, [("Yes", True), ("f", False), ("2", "bad")]),
        ("string", pa.decimal128(5, 2), [("1.005", Decimal("1.01")), ("1,0", "bad")]),
        ("string", DAY, [("2026-11-26", MIDNIGHT.date()), ("26.11.2026", "bad")]),
        ("string", INSTANT, [("2026-11-26T01:00:00+01:00", MIDNIGHT.replace(tzinfo=UTC))]),
        ("string", LOCAL, [("2026-11-26", MIDNIGHT), ("2026-11-26T00:00:00Z", "bad")]),
        ("string", pa.binary(), [("é", "é".encode())]),
        ("int", STRING, [(5, "5")]),
        ("boolean", STRING, [(True, "true")]),
        ("double", STRING, [(1.0, "1.0"), (1e7, "1.0E7"), (1e-4, "1.0E-4"), (-0.0, "-0.0")]),
        ("float", STRING, [(0.5, "0.5"), (float("nan"), "NaN")]),
        (DATE, STRING, [(20783, "2026-11-26")]),
        (DATE, INSTANT, [(20783, MIDNIGHT.replace(tzinfo=UTC))]),
        (MICROS, STRING, [(NOON - NOON % 10**6, "2026-11-26 12:00:00")]),
        (MICROS, DAY, [(NOON, MIDNIGHT.date()), (-1, dt.date(1969, 12, 31))]),
        (LOCAL_MICROS, INSTANT, [(0, dt.datetime(1970, 1, 1, tzinfo=UTC))]),
    ],
)
def test_values(kind: Any, target: pa.DataType, pairs: list[tuple[Any, Any]]) -> None:
    values, expected = [value for value, _ in pairs], [own for _, own in pairs]
    for times in (1, 3):
        assert cast_all(kind, target, values * times) == expected * times
    for value, own in pairs:
        assert cast_all(kind, target, [value]) == [own]


def test_times_in_a_zone() -> None:
    zone, noon = "Europe/Berlin", 1_795_694_400_000_000 // 10**6 * 10**6
    assert cast_all(MICROS, STRING, [noon], zone) == ["2026-11-26 13:00:00"]
    at = dt.datetime(2026, 11, 26, 11, tzinfo=UTC)
    assert cast_all(LOCAL_MICROS, INSTANT, [noon], zone) == [at]
    assert cast_all(MICROS, LOCAL, [noon], zone) == [MIDNIGHT.replace(hour=13)]
    late = noon + 11 * 3600 * 10**6 + 30 * 60 * 10**6
    assert cast_all(MICROS, DAY, [late], zone) == [dt.date(2026, 11, 27)]
    assert cast_all(DATE, INSTANT, [20783], zone) == [dt.datetime(2026, 11, 25, 23, tzinfo=UTC)]


def test_nested_values_as_json() -> None:
    part = {"type": "record", "name": "P", "fields": [{"name": "at", "type": ["null", MICROS]}]}
    part["fields"].append({"name": "f", "type": "double"})
    maps = {"type": "map", "values": {"type": "array", "items": part}}
    value = {"k": [{"at": 0, "f": 0.5}, {"at": None, "f": float("nan")}]}
    text = '{"k":[{"at":"1970-01-01T00:00:00Z","f":0.5},{"f":"NaN"}]}'
    assert cast_all(maps, STRING, [value, {}]) == [text, "{}"]


def test_parts_of_nested_values_by_name() -> None:
    fields = [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]
    part = {"type": "record", "name": "P", "fields": fields}
    kind = {"type": "map", "values": {"type": "array", "items": ["null", part]}}
    target = pa.map_(STRING, list_of(pa.struct([("B", pa.int8()), ("c", DAY), ("A", STRING)])))
    columns = pa.schema([("x", target)])
    value = {"k": [{"a": 1, "b": "2"}, None]}
    message = framed(1, encode(record(kind), {"x": value}))
    rows = rows_of(decoder_of(record(kind), columns=columns), [message] * 6)
    assert rows["x"].to_pylist() == [[("k", [{"B": 2, "c": None, "A": "1"}, None])]] * 6
    assert cast_all(kind, target, [{"k": [{"a": 1, "b": "x"}]}]) == ["bad"]


# All values that bytes of messages may have, also those that columns seldom have.
EXTREMES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (kind, LONG if kind["type"] == "long" else INT if kind["type"] == "int" else TEXT)
    for kind, _ in SCALARS
    if isinstance(kind, dict)
]
EXTREMES += [(kind, own) for kind, own in SCALARS if isinstance(kind, str)]


@settings(max_examples=250, deadline=None)
@given(st.data(), st.sampled_from(TARGETS), st.sampled_from(["UTC", "Europe/Berlin", "-08:00"]))
def test_any_values_are_cast_or_bad(data: st.DataObject, target: pa.DataType, zone: str) -> None:
    """Whatever is beside them, and whatever they are in."""
    kind, values = data.draw(st.sampled_from(EXTREMES) | decimal_kinds())
    several = data.draw(st.lists(values, min_size=1, max_size=6))
    part = {"type": "record", "name": "P", "fields": [{"name": "p", "type": ["null", kind]}]}
    wrapped = data.draw(st.sampled_from(["no", "list", "struct", "json"]))
    if wrapped == "list":
        kind, target = {"type": "array", "items": kind}, list_of(target)
        several = [[value] for value in several]
    elif wrapped != "no":
        kind, several = part, [{"p": value} for value in several]
        target = pa.struct([("p", target)]) if wrapped == "struct" else STRING
    columns = pa.schema([("x", target)])
    if schemas_of(record(kind), columns=columns).unreadable:
        return
    decoder = decoder_of(record(kind), columns=columns, values=Values(zone))
    messages = [framed(1, encode(record(kind), {"x": value})) for value in several]
    whole = outcomes_of(decoder, messages)
    assert whole == [own for message in messages for own in outcomes_of(decoder, [message])]
