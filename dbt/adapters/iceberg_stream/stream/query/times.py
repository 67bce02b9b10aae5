"""Dates and timestamps, in the session's time zone."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.query.inputs import Inputs
from dbt.adapters.iceberg_stream.stream.query.values import (
    DATE,
    INTEGERS,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Unsupported,
    Value,
    call,
    convert,
    scalar,
)

MICROSECONDS = 1_000_000
UNIX_UNITS = {"second": "s", "millisecond": "ms", "microsecond": "us"}
# PyArrow's calendar has fewer years than Spark's.
YEARS = {
    DATE: (pa.scalar(date.min, DATE), pa.scalar(date.max, DATE)),
    TIMESTAMP_NTZ: (
        pa.scalar(datetime.min, TIMESTAMP_NTZ),
        pa.scalar(datetime.max, TIMESTAMP_NTZ),
    ),
}
# Texts that Spark and PyArrow read as the same date, which the other parts of a time may follow,
# or as the same timestamp. Spark's zones reach 18 hours.
DAY = r"(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
ZONE = r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])"
PLAIN_DATE = rf"^{DAY}([ T].*)?$"
PLAIN_TIMESTAMP = rf"^{DAY}([ T]{TIME}{ZONE}?)?$"
NO_TEXT = pa.scalar(None, pa.string())


def local(value: Value, inputs: Inputs) -> Value:
    """Return timestamps as a clock in the session's time zone shows them.

    Args:
        value: the timestamps.
        inputs: what this depends on is added to it.

    Raises:
        Unsupported: the value is no timestamp, or the time zone's offset changes.
    """
    if value.type not in (TIMESTAMP, TIMESTAMP_NTZ):
        raise Unsupported
    clock = convert(value, TIMESTAMP_NTZ)
    if value.type == TIMESTAMP and inputs.offset:
        clock = call(pc.add_checked, TIMESTAMP_NTZ, clock, _offset(inputs))
    inputs.doubt(is_out_of_years, clock)
    return clock


def from_local(clock: Value, inputs: Inputs) -> Value:
    """Return the timestamps of what clocks in the session's time zone show.

    Args:
        clock: timestamps without a zone.
        inputs: what this depends on is added to it.
    """
    if inputs.offset:
        clock = call(pc.subtract_checked, TIMESTAMP_NTZ, clock, _offset(inputs))
    return convert(clock, TIMESTAMP)


def day_of(value: Value, inputs: Inputs) -> Value:
    """Return the date of dates or timestamps.

    Args:
        value: the dates or timestamps.
        inputs: what this depends on is added to it.
    """
    if value.type != DATE:
        return convert(local(value, inputs), DATE)
    inputs.doubt(is_out_of_years, value)
    return value


def midnight_of(value: Value, inputs: Inputs) -> Value:
    """Return the timestamps at which dates begin.

    Args:
        value: the dates.
        inputs: what this depends on is added to it.
    """
    return from_local(convert(day_of(value, inputs), TIMESTAMP_NTZ), inputs)


def timestamp_of_integer(value: Value, unit: int = MICROSECONDS) -> Value:
    """Return integers as timestamps.

    Args:
        value: the integers.
        unit: how many microseconds one is.

    Raises:
        Unsupported: the value is no integer.
    """
    if value.type not in INTEGERS:
        raise Unsupported
    count, of_unit = convert(value, pa.int64()), scalar(unit, pa.int64())
    return convert(call(pc.multiply_checked, pa.int64(), count, of_unit), TIMESTAMP)


def unix_time(value: Value, unit: str, inputs: Inputs) -> Value:
    """Return how many units have passed since 1970, rounded down.

    Args:
        value: the timestamps.
        unit: of UNIX_UNITS.
        inputs: doubts are added to it.
    """
    if value.type != TIMESTAMP:
        raise Unsupported
    clock = convert(value, TIMESTAMP_NTZ)
    inputs.doubt(is_out_of_years, clock)
    return convert(convert(floor(clock, unit), pa.timestamp(UNIX_UNITS[unit])), pa.int64())


def floor(value: Value, unit: str) -> Value:
    """Return the beginnings of the units in which dates or timestamps without a zone are.

    Args:
        value: the dates or timestamps.
        unit: PyArrow's name of it.
    """
    if unit == "microsecond":
        return value
    return call(pc.floor_temporal, value.type, value, unit=unit)


def date_of_text(value: Value, inputs: Inputs) -> Value:
    """Return the dates with which texts begin.

    Args:
        value: the texts.
        inputs: doubts are added to it.
    """
    inputs.doubt(is_no_plain_date, value)
    start = call(pc.utf8_slice_codeunits, pa.string(), value, start=0, stop=10)
    return convert(start, DATE)


def timestamp_of_text(value: Value, inputs: Inputs) -> Value:
    """Return the timestamps that texts are, with or without a zone.

    Args:
        value: the texts.
        inputs: what this depends on is added to it.
    """
    inputs.doubt(is_no_plain_timestamp, value)
    return call(_timestamps, TIMESTAMP, value, _offset(inputs))


def text_of(value: Value, inputs: Inputs) -> Value:
    """Return dates or timestamps as texts, with as few digits after the point as possible.

    Args:
        value: the dates or timestamps.
        inputs: what this depends on is added to it.
    """
    if value.type == DATE:
        return convert(day_of(value, inputs), pa.string())
    text = convert(local(value, inputs), pa.string())
    for characters in "0.":
        text = call(pc.ascii_rtrim, pa.string(), text, characters=characters)
    return text


def is_out_of_years(times: Any) -> Any:
    """Return which dates or timestamps without a zone are not in the years 1 to 9999."""
    first, last = YEARS[times.type]
    return pc.or_(pc.less(times, first), pc.greater(times, last))


def is_no_plain_date(texts: Any) -> Any:
    """Return which texts Spark and PyArrow may read as different dates, or refuse."""
    return pc.invert(pc.match_substring_regex(texts, PLAIN_DATE))


def is_no_plain_timestamp(texts: Any) -> Any:
    """Return which texts Spark and PyArrow may read as different timestamps, or refuse."""
    return pc.invert(pc.match_substring_regex(texts, PLAIN_TIMESTAMP))


def _timestamps(texts: Any, offset: pa.Scalar) -> Any:
    """Return texts as timestamps; those without a zone are `offset` ahead of UTC."""
    has_zone = pc.match_substring_regex(texts, f"{ZONE}$")
    zoned = pc.cast(pc.if_else(has_zone, texts, NO_TEXT), TIMESTAMP)
    clock = pc.cast(pc.if_else(has_zone, NO_TEXT, texts), TIMESTAMP_NTZ)
    return pc.coalesce(zoned, pc.cast(pc.subtract_checked(clock, offset), TIMESTAMP))


def _offset(inputs: Inputs) -> Value:
    return scalar(timedelta(minutes=inputs.offset), pa.duration("us"))
