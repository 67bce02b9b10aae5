"""Which types of JSON's columns PyArrow decodes, and which of their values."""

from __future__ import annotations

import math
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.json import decode_objects
from dbt.adapters.iceberg_stream.stream.sources.arrow.json_types import (
    has_times,
    json_arrow_schema,
)

DAY, LOCAL, INSTANT = pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")
NOON = datetime(2026, 11, 26, 12, 0, 0, 131_000)
NOON_UTC = NOON.replace(tzinfo=timezone.utc)
ITEM = pa.struct([("at", INSTANT), ("prices", pa.list_(pa.field("element", pa.decimal128(4, 1))))])


def values(kind: pa.DataType, *texts: str, zone: str = "UTC") -> list[Any]:
    objects = pa.array([f'{{"a": {text}}}'.encode() for text in texts])
    decoded = decode_objects(objects, pa.schema([("a", kind)]), zone, exact=False)
    decoded.validate(full=True)
    assert decoded.schema == pa.schema([("a", kind)])
    return list(decoded["a"].to_pylist())


def test_types_of_columns() -> None:
    inner = t.StructType([t.StructField("at", t.TimestampType(), nullable=False)])
    kinds = [t.ByteType(), t.DecimalType(5, 2), t.DateType(), t.TimestampNTZType(), inner]
    columns = [t.StructField(f"c{n}", t.ArrayType(kind)) for n, kind in enumerate(kinds)]
    schema = json_arrow_schema([*columns, t.StructField("f", t.FloatType())])
    assert schema is not None
    element = pa.struct([("at", INSTANT)])
    expected = [pa.int8(), pa.decimal128(5, 2), DAY, LOCAL, element]
    assert [field.type.value_type for field in list(schema)[:-1]] == expected
    assert schema.field("f").type == pa.float32()
    assert has_times(schema)
    assert not has_times(pa.schema([("f", pa.list_(pa.struct([("n", pa.string())])))]))


@pytest.mark.parametrize(
    "kind",
    [
        t.BinaryType(),
        t.MapType(t.StringType(), t.LongType()),
        t.StringType("UNICODE_CI"),
        t.DayTimeIntervalType(),
        t.StructType([t.StructField("a", t.LongType()), t.StructField("A", t.LongType())]),
        t.ArrayType(t.StructType([t.StructField("a", t.BinaryType())])),
    ],
)
def test_types_that_spark_decodes(kind: t.DataType) -> None:
    assert json_arrow_schema([t.StructField("a", kind)]) is None


def test_decimals_are_rounded() -> None:
    texts = ["1", "1.005", "-1.005", '"2.5"', "1e2", "1.0049999", "null", "-0.004"]
    rounded = ["1.00", "1.01", "-1.01", "2.50", "100.00", "1.00", None, "0.00"]
    expected = [text and Decimal(text) for text in rounded]
    for precision in (5, 19, 38):
        assert values(pa.decimal128(precision, 2), *texts) == expected


@pytest.mark.parametrize("precision", [5, 19, 38])
@pytest.mark.parametrize(
    "texts",
    [
        ["1e30", "1e38", "999999999999999999999.5e20", '" 1"'],
        [f"5e-{exponent}" for exponent in range(30, 400)],
        [f'"1234567890123456789E-00{exponent}"' for exponent in range(30, 400)],
    ],
)
def test_decimals_of_which_pyarrow_may_lose_digits(precision: int, texts: list[str]) -> None:
    """PyArrow reads 1e30 as 18960114910927365649.471927446130393088, if there are 18 places."""
    for text in texts:
        with pytest.raises(ArrowFallback):
            values(pa.decimal128(precision, precision // 2), text)


@pytest.mark.parametrize("digits", [1, 18, 19, 20, 38])
def test_decimals_without_digits_before_the_point(digits: int) -> None:
    """The type that PyArrow reads may be the column's, but PyArrow would take 8.5 for it."""
    kind = pa.decimal128(digits, digits)
    assert values(kind, "0.5", "-0.5") == [Decimal("0.5"), Decimal("-0.5")]
    with pytest.raises(ArrowFallback):
        values(kind, "8.5")


@pytest.mark.parametrize(
    "text",
    [
        "1e-100000000",
        "-0.5E-00100000000",
        '"1e-100000000"',
        r'"1\u0065-100000000"',
        r'"\u0031e-1\u003000000000"',
        r'"1E\u002d100000000"',
        '[1, {"d": 1e-2000000000 \n}]',
    ],
)
def test_decimals_at_which_pyarrow_crashes(text: str) -> None:
    for kind in (pa.decimal128(5, 2), pa.list_(pa.struct([("d", pa.decimal128(38, 9))]))):
        with pytest.raises(ArrowFallback):
            values(kind, text)


def test_texts_that_are_no_small_numbers() -> None:
    schema = pa.schema([("d", pa.decimal128(5, 2)), ("name", pa.string())])
    names = ["123e-4567-89ab", "e-100", r"1\u00e9", r"\u003e5", r"12\u002b5x", "x, 1e-31 y"]
    texts = [f'{{"d": 1e-09, "name": "{name}", "f": 1.5e-29}}' for name in names]
    decoded = decode_objects(pa.array([text.encode() for text in texts]), schema, exact=False)
    assert decoded["d"].to_pylist() == [Decimal("0.00")] * len(names)


@pytest.mark.parametrize("text", ["1000", "999.995", "1234567", '"1,000"', '""', "NaN", "true"])
def test_decimals_that_have_no_room(text: str) -> None:
    assert values(pa.decimal128(5, 2), "999.994") == [Decimal("999.99")]
    with pytest.raises(ArrowFallback):
        values(pa.decimal128(5, 2), "1", text)


def test_instants() -> None:
    same = [
        "2026-11-26T12:00:00.131Z",
        "2026-11-26 12:00:00.131000999",
        "2026-11-26T09:30:00.1310-02:30",
        "2026-11-26T14:00:00.131+0200",
    ]
    assert values(INSTANT, "null", *(f'"{text}"' for text in same)) == [None, *[NOON_UTC] * 4]
    midnight = datetime(2026, 11, 26, tzinfo=timezone.utc)
    assert values(INSTANT, '"2026-11-26"', "null") == [midnight, None]
    before = datetime(1969, 12, 31, 23, 59, 59, 123_456, timezone.utc)
    assert values(INSTANT, '"1969-12-31T23:59:59.1234567Z"') == [before]
    assert values(INSTANT, "null") == [None]


def test_times_in_the_zone_of_the_session() -> None:
    zone, zoned = "Europe/Berlin", '"2026-11-26T12:00:00.131Z"'
    assert values(INSTANT, zoned, "null", zone=zone) == [NOON_UTC, None]
    with pytest.raises(ArrowFallback):
        values(INSTANT, zoned, '"2026-11-26T12:00:00.131"', zone=zone)
    assert values(LOCAL, '"2026-11-26T12:00:00.131"', zone=zone) == [NOON]


def test_local_times_and_dates() -> None:
    assert values(LOCAL, '"2026-11-26 12:00:00.1310009"', "null") == [NOON, None]
    minutes = values(LOCAL, '"2026-11-26T12:00"', '"2026-11-26"')
    assert minutes == [datetime(2026, 11, 26, 12), datetime(2026, 11, 26)]
    days = values(DAY, '"2026-11-26"', '"2026-11-26T23:00:00-05:00"', '"2026-11-26 x"', "null")
    assert days == [*[date(2026, 11, 26)] * 3, None]


@pytest.mark.parametrize("kind", [DAY, LOCAL, INSTANT])
@pytest.mark.parametrize(
    "text",
    [
        *('""', "0", "1700000000", '"2026"', '"2026-1-1"', '"2026-02-29"', '"20261126"', '"now"'),
        *('"2026-11-26x"', '" 2026-11-26"', '"10000-01-01"', '"-2026-01-01"', '"2026-00-10"'),
    ],
)
def test_times_that_spark_must_see(kind: pa.DataType, text: str) -> None:
    with pytest.raises(ArrowFallback):
        values(kind, '"2026-11-26"', text)


@pytest.mark.parametrize(
    "text",
    [
        *("2026-11-26T24:00:00Z", "2026-11-26T23:59:60Z", "2026-11-26T12:00Z", "2026-11-26T12"),
        *("2026-11-26T12:00:00+18:01", "2026-11-26T12:00:00z", "2026-11-26T12:00:00 UTC"),
        *("2026-11-26T12:00:00.1234567890Z", "2026-11-26T12:00:00,5Z", "2026-11-26T12:00:00+02:60"),
    ],
)
def test_instants_that_spark_must_see(text: str) -> None:
    with pytest.raises(ArrowFallback):
        values(INSTANT, '"2026-11-26"', f'"{text}"')


def test_small_numbers() -> None:
    assert values(pa.int8(), "-128", "127") == [-128, 127]
    assert values(pa.int16(), "-32768", "32767") == [-32768, 32767]
    assert values(pa.float32(), "16777217", "0.5", "1e39") == [16777216.0, 0.5, math.inf]


@pytest.mark.parametrize("text", ["40000", "-40000", "1.0", "1e1", '"1"'])
def test_small_numbers_that_spark_must_see(text: str) -> None:
    for kind in (pa.int8(), pa.int16()):
        with pytest.raises(ArrowFallback):
            values(kind, text)


def test_bytes_that_spark_takes_for_negative_numbers() -> None:
    with pytest.raises(ArrowFallback):
        values(pa.int8(), "200")


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_that_only_pyarrow_reads(kind: pa.DataType) -> None:
    zero, large = values(kind, "-0.0", "Infinity")
    assert math.copysign(1, zero) == -1
    assert large == math.inf
    for text in ("-0", "Inf", "-Inf", "-NaN"):
        for container, form in (
            (kind, "{}"),
            (pa.list_(pa.struct([("f", kind)])), '[{{"f": {}}}]'),
        ):
            with pytest.raises(ArrowFallback):
                values(container, "null", form.format(text))


def test_nested_values() -> None:
    texts = [
        '[{"at": "2026-11-26T12:00:00.131", "prices": [1.25, null, "3"], "more": {"at": 1}}, null]',
        '[{}, {"prices": null}, {"prices": []}]',
        "[]",
        "null",
    ]
    first = {"at": NOON_UTC, "prices": [Decimal("1.3"), None, Decimal("3.0")]}
    empty: dict[str, Any] = {"at": None, "prices": None}
    expected = [[first, None], [empty, empty, {"at": None, "prices": []}], [], None]
    assert values(pa.list_(pa.field("element", ITEM)), *texts) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("{}", '"x"', "[1]", "[[]]", '[{"at": 1}]', '[{"at": "x"}]', '[{"prices": [1000]}]'),
        *('[{"prices": {}}]', '[{"at": null, "at": null}]', '[{"prices": ["x"]}]', "[{},]"),
    ],
)
def test_nested_values_that_spark_must_see(text: str) -> None:
    with pytest.raises(ArrowFallback):
        values(pa.list_(pa.field("element", ITEM)), "[]", text)
