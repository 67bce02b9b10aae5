"""Values of JSON in columns of a definition: times, decimals, bytes and small numbers."""

from __future__ import annotations

import math
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import list_of
from dbt.adapters.iceberg_stream.stream.sources.formats.values import (
    OF_BYTES,
    OF_SCALE,
    OF_TIME,
    Values,
)
from tests.unit.stream.sources.formats.decoded_messages import require_bad, rows_of

DAY, LOCAL, INSTANT = pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")
NOON = datetime(2026, 11, 26, 12, 0, 0, 131_000)
NOON_UTC = NOON.replace(tzinfo=timezone.utc)
FRAMES = {"json": "{}", "debezium": '{{"op": "c", "after": {}}}'}
NO_VALUE = "has a value in `a` that does not fit the source's `columns`"


def decoder_of(kind: pa.DataType, zone: str = "UTC", name: str = "json") -> MessageDecoder:
    return MessageDecoder(Envelope(name, "-"), pa.schema([("a", kind)]), Values(zone))


def message(text: str, name: str = "json") -> bytes:
    return FRAMES[name].format(f'{{"a": {text}}}').encode()


def values(kind: pa.DataType, *texts: str, zone: str = "UTC", name: str = "json") -> list[Any]:
    messages = [message(text, name) for text in texts]
    return list(rows_of(decoder_of(kind, zone, name), messages)["a"].to_pylist())


def why_bad(kind: pa.DataType, text: str, name: str = "json") -> str:
    return require_bad(decoder_of(kind, name=name), message("null", name), message(text, name))


def test_decimals_are_rounded() -> None:
    texts = ["1", "1.005", "-1.005", '"2.5"', "1e2", "1.0049999", "null", "-0.004"]
    rounded = ["1.00", "1.01", "-1.01", "2.50", "100.00", "1.00", None, "0.00"]
    expected = [text and Decimal(text) for text in rounded]
    for precision in (5, 19, 38):
        assert values(pa.decimal128(precision, 2), *texts) == expected


def test_decimals_of_databases_are_not_rounded() -> None:
    kind = pa.decimal128(5, 2)
    assert values(kind, "1.50", '"2.5"', "1e2", name="debezium") == [
        *(Decimal(text) for text in ("1.50", "2.50", "100.00"))
    ]
    assert why_bad(kind, "1.005", "debezium") == OF_SCALE
    assert why_bad(kind, '"1234"', "debezium") == OF_BYTES
    assert why_bad(kind, "1000", "debezium") == NO_VALUE


@pytest.mark.parametrize("precision", [5, 19, 38])
def test_decimals_of_many_digits(precision: int) -> None:
    """PyArrow would read 1e30 as another number, and crash at others."""
    kind = pa.decimal128(precision, precision // 2)
    for exponent in range(30, 400, 10):
        small = [f"5e-{exponent}", f'"1234567890123456789E-00{exponent + 60}"']
        assert values(kind, *small) == [Decimal(0)] * 2
    for text in ("1e30", "1e38", "999999999999999999999.5e20"):
        assert why_bad(kind, text) == NO_VALUE


@pytest.mark.parametrize("digits", [1, 18, 19, 20, 38])
def test_decimals_without_digits_before_the_point(digits: int) -> None:
    kind = pa.decimal128(digits, digits)
    assert values(kind, "0.5", "-0.5") == [Decimal("0.5"), Decimal("-0.5")]
    assert why_bad(kind, "8.5") == NO_VALUE


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize(
    "text",
    [
        "1e{}100000000",
        "0.5E{}00100000000",
        '"1e{}100000000"',
        r'"1\u0065{}100000000"',
        r'"\u0031e{}1\u003000000000"',
        "1e{}2000000000",
        "1e{}1000000000000000000000000",
    ],
)
def test_decimals_of_huge_exponents(text: str, sign: str) -> None:
    """They take no time, and no memory."""
    text = text.format(sign)
    for kind in (pa.decimal128(5, 2), list_of(pa.struct([("d", pa.decimal128(38, 9))]))):
        written = text if pa.types.is_decimal(kind) else f'[{{"d": {text}}}]'
        if sign and "1000000000000000000000000" not in text:
            [value] = values(kind, written)
            assert value in (Decimal(0), [{"d": Decimal(0)}])
        else:
            assert "does not fit the source's `columns`" in why_bad(kind, written)


@pytest.mark.parametrize(
    "text", ["1000", "999.995", "1234567", '"1,000"', '""', '" 1"', "NaN", "true", "[]", '"1e"']
)
def test_decimals_that_do_not_fit(text: str) -> None:
    assert values(pa.decimal128(5, 2), "999.994") == [Decimal("999.99")]
    assert why_bad(pa.decimal128(5, 2), text) == NO_VALUE


def test_instants() -> None:
    same = [
        "2026-11-26T12:00:00.131Z",
        "2026-11-26 12:00:00.131000999",
        "2026-11-26T09:30:00.1310-02:30",
        "2026-11-26T14:00:00.131+0200",
        "2026-11-26T14:00:00.131+02",
        "2026-11-26T12:00:00.131 UTC",
    ]
    count = len(same)
    assert values(INSTANT, "null", *(f'"{text}"' for text in same)) == [None, *[NOON_UTC] * count]
    for text in same:
        assert values(INSTANT, f'"{text}"') == [NOON_UTC]
    midnight = datetime(2026, 11, 26, tzinfo=timezone.utc)
    assert values(INSTANT, '"2026-11-26"', "null") == [midnight, None]
    before = datetime(1969, 12, 31, 23, 59, 59, 123_456, timezone.utc)
    assert values(INSTANT, '"1969-12-31T23:59:59.1234567Z"') == [before]
    assert values(INSTANT, "null") == [None]


def test_times_in_the_zone_of_the_session() -> None:
    """Those without a zone of their own."""
    zoned, local = '"2026-11-26T12:00:00.131Z"', '"2026-11-26T13:00:00.131"'
    for zone in ("Europe/Berlin", "+01:00", "UTC+01:00", "GMT+01:00"):
        for texts in ([zoned, local, "null"], [local, "null"], [zoned, "null"]):
            expected = [NOON_UTC] * (len(texts) - 1) + [None]
            assert values(INSTANT, *texts, zone=zone) == expected
        assert values(LOCAL, local, zone=zone) == [NOON.replace(hour=13)]
    # Clocks went forward at 2:00, and back at 3:00.
    texts = ['"2026-03-29T02:30:00"', '"2026-10-25T02:30:00"']
    utc = [datetime(2026, 3, 29, 1, 30), datetime(2026, 10, 25, 0, 30)]
    expected = [time.replace(tzinfo=timezone.utc) for time in utc]
    assert values(INSTANT, *texts, zone="Europe/Berlin") == expected


def test_local_times_and_dates() -> None:
    assert values(LOCAL, '"2026-11-26 12:00:00.1310009"', "null") == [NOON, None]
    minutes = values(LOCAL, '"2026-11-26T12:00"', '"2026-11-26"', '" 2026-11-26"', '"2026-11-6"')
    midnight = datetime(2026, 11, 26)
    assert minutes == [datetime(2026, 11, 26, 12), midnight, midnight, datetime(2026, 11, 6)]
    days = values(DAY, '"2026-11-26"', '"2026-11-26T23:00:00-05:00"', '"2026-11-26 x"', "null")
    assert days == [*[date(2026, 11, 26)] * 3, None]


@pytest.mark.parametrize("kind", [DAY, LOCAL, INSTANT])
@pytest.mark.parametrize(
    "text",
    [
        *('""', '"2026"', '"2026-02-29"', '"20261126"', '"now"', '"2026-11-26x"'),
        *('"10000-01-01"', '"-2026-01-01"', '"2026-00-10"', '"0000-01-01"', "true", "[]"),
    ],
)
def test_times_that_do_not_fit(kind: pa.DataType, text: str) -> None:
    assert why_bad(kind, text) in (NO_VALUE, OF_TIME)
    assert (why_bad(kind, text) == OF_TIME) == text.strip('"').isdigit()


@pytest.mark.parametrize("kind", [DAY, LOCAL, INSTANT])
@pytest.mark.parametrize("text", ["0", "1700000000", "-1", "1.5", "1e3", '"20000"', '"-1"'])
@pytest.mark.parametrize("name", FRAMES)
def test_numbers_for_times(kind: pa.DataType, text: str, name: str) -> None:
    """Nothing says which time they are. It is also said of those within others."""
    assert why_bad(kind, text, name) == OF_TIME
    assert why_bad(list_of(kind), f"[null, {text}]", name) == OF_TIME
    assert why_bad(pa.struct([("b", kind)]), f'{{"b": {text}}}', name) == OF_TIME
    assert why_bad(pa.map_(pa.string(), kind), f'{{"2024": {text}}}', name) == OF_TIME


@pytest.mark.parametrize(
    "text",
    [
        *("2026-11-26T24:00:00Z", "2026-11-26T23:59:60Z", "2026-11-26T12"),
        *("2026-11-26T12:00:00+18:01", "2026-11-26T12:00:00z", "2026-11-26T12:00:00,5Z"),
        *("2026-11-26T12:00:00+02:60", "2026-11-26T12:00:00 Europe/Berlin"),
    ],
)
def test_instants_that_do_not_fit(text: str) -> None:
    assert why_bad(INSTANT, f'"{text}"') == NO_VALUE


@pytest.mark.parametrize("zone", ["Z", "+00:00", " UTC", "-05"])
def test_a_zone_is_no_local_time(zone: str) -> None:
    assert why_bad(LOCAL, f'"2026-11-26T12:00:00{zone}"') == NO_VALUE


def test_small_numbers() -> None:
    assert values(pa.int8(), "-128", "127") == [-128, 127]
    assert values(pa.int16(), "-32768", "32767") == [-32768, 32767]
    for kind in (pa.int8(), pa.int16()):
        for text in ("40000", "-40000", "1.0", "1e1", '"1"'):
            assert why_bad(kind, text) == NO_VALUE
    assert why_bad(pa.int8(), "200") == NO_VALUE


def test_floats_are_rounded_once() -> None:
    texts = ["16777217", "0.5", "1e39", "1.0000000596046448", "1.00000005960464477539062"]
    expected = [16777216.0, 0.5, math.inf, 1 + 2**-23, 1.0]
    assert values(pa.float32(), *texts) == expected


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_without_digits(kind: pa.DataType) -> None:
    for name in ("Infinity", "+Infinity", "INF", '"Infinity"', '"+INF"'):
        assert values(kind, name) == [math.inf]
    for name in ("-Infinity", "-INF", '"-Infinity"'):
        assert values(kind, name) == [-math.inf]
    for text in ("NaN", '"NaN"'):
        [value] = values(kind, text)
        assert math.isnan(value)
    for text in ('"nan"', '"1"', '""', "true"):
        assert why_bad(kind, text) == NO_VALUE


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize(("text", "sign"), [("-0.0", -1), ("-0e1", -1), ("-0", 1)])
def test_zeros(kind: pa.DataType, text: str, sign: int) -> None:
    """An integer has no negative zero; also if msgspec refuses the message for another member."""
    of = decoder_of(kind)
    for more in (b"", b', "more": NaN'):
        [value] = rows_of(of, [b'{"a": %b%b}' % (text.encode(), more)])["a"].to_pylist()
        assert math.copysign(1, value) == sign


def test_bytes() -> None:
    assert values(pa.binary(), '"YWI="', '""', "null") == [b"ab", b"", None]
    for text in ('"YWI"', '"YW=="x', '"é"', "5", '"Y W I="'):
        why_bad(pa.binary(), text)
