"""Functions of dates and timestamps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.query.casts import cast
from dbt.adapters.iceberg_stream.stream.query.literals import written
from dbt.adapters.iceberg_stream.stream.query.times import (
    MICROSECONDS,
    UNIX_UNITS,
    day_of,
    floor,
    from_local,
    local,
    timestamp_of_integer,
    unix_time,
)
from dbt.adapters.iceberg_stream.stream.query.translator import (
    Translate,
    TranslateCall,
    Translator,
    of_type,
)
from dbt.adapters.iceberg_stream.stream.query.values import (
    DATE,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Function,
    Unsupported,
    Value,
    call,
    convert,
    scalar,
)

DATE_PARTS: Mapping[str, Function] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "dayofmonth": pc.day,
    "dayofweek": partial(pc.day_of_week, count_from_zero=False, week_start=7),
    "dayofyear": pc.day_of_year,
    "weekday": pc.day_of_week,
    "weekofyear": pc.iso_week,
}
TIME_PARTS: Mapping[str, Function] = {"hour": pc.hour, "minute": pc.minute, "second": pc.second}
# The parts that `extract` names like functions, and returns with the same type.
EXTRACTED = ("year", "quarter", "month", "day", "hour", "minute", "dayofweek")
DATE_UNITS = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    "week": "week",
}
TIME_UNITS = {
    **DATE_UNITS,
    **dict.fromkeys(("day", "dd"), "day"),
    **{unit: unit for unit in ("hour", "minute", *UNIX_UNITS)},
}
# Where the parts of a pattern are in a timestamp's text.
PATTERN_PARTS = {
    **{"yyyy": (0, 4), "MM": (5, 7), "dd": (8, 10)},
    **{"HH": (11, 13), "mm": (14, 16), "ss": (17, 19)},
}
PATTERN = re.compile(r"(yyyy(?!y)|MM(?!M)|dd(?!d)|HH(?!H)|mm(?!m)|ss(?!s)|[-/.: ])")
# How many units an interval may have.
COUNT = re.compile(r"\d{1,6}")
INTERVALS = {
    f"{unit}{plural}": timedelta(**{f"{unit}s": 1})
    for unit in ("week", "day", "hour", "minute", "second")
    for plural in ("", "s")
}


def _date_part(translator: Translator, arguments: list[exp.Expr], part: Function) -> Value:
    [value] = _times(translator, arguments, 1)
    return convert(call(part, pa.int64(), day_of(value, translator.inputs)), pa.int32())


def _time_part(translator: Translator, arguments: list[exp.Expr], part: Function) -> Value:
    [value] = _times(translator, arguments, 1)
    return convert(call(part, pa.int64(), local(value, translator.inputs)), pa.int32())


def _extract(translator: Translator, node: exp.Extract) -> Value:
    part = node.this.name.lower()
    if part not in EXTRACTED:
        raise Unsupported
    return NAMED[part](translator, [node.expression])


def _trunc(translator: Translator, arguments: list[exp.Expr]) -> Value:
    [value] = _times(translator, arguments[:1], 1)
    unit = _unit(arguments[1:], DATE_UNITS)
    return floor(day_of(value, translator.inputs), unit)


def _date_trunc(translator: Translator, arguments: list[exp.Expr]) -> Value:
    unit = _unit(arguments[:1], TIME_UNITS)
    [value] = _times(translator, arguments[1:], 1)
    # Spark casts other timestamps.
    if value.type == TIMESTAMP_NTZ:
        raise Unsupported
    inputs = translator.inputs
    return from_local(floor(local(cast(value, TIMESTAMP, inputs), inputs), unit), inputs)


def _date_format(translator: Translator, arguments: list[exp.Expr]) -> Value:
    [value] = _times(translator, arguments[:1], 1)
    if len(arguments) != 2 or value.type == TIMESTAMP_NTZ:
        raise Unsupported
    between = PATTERN.split(written(arguments[1]))
    if any(between[::2]) or PATTERN_PARTS.keys().isdisjoint(between):
        raise Unsupported
    clock = local(cast(value, TIMESTAMP, translator.inputs), translator.inputs)
    return call(_formatted, pa.string(), convert(clock, pa.string()), parts=between[1::2])


def _formatted(texts: Any, parts: list[str]) -> Any:
    """Return parts of the texts of timestamps, and what is between them in a pattern."""
    pieces = [
        pc.utf8_slice_codeunits(texts, *PATTERN_PARTS[part]) if part in PATTERN_PARTS else part
        for part in parts
    ]
    return pc.binary_join_element_wise(*pieces, "")


def _add_days(translator: Translator, arguments: list[exp.Expr], add: Function) -> Value:
    if len(arguments) != 2:
        raise Unsupported
    [value] = _times(translator, arguments[:1], 1)
    days = of_type(translator, arguments[1], pa.int32())
    number = convert(day_of(value, translator.inputs), pa.int32())
    return convert(call(add, pa.int32(), number, days), DATE)


def _days_between(translator: Translator, arguments: list[exp.Expr]) -> Value:
    values = _times(translator, arguments, 2)
    ends = (convert(day_of(value, translator.inputs), pa.int32()) for value in values)
    return call(pc.subtract_checked, pa.int32(), *ends)


def _unix_time(translator: Translator, arguments: list[exp.Expr], unit: str) -> Value:
    [value] = _times(translator, arguments, 1)
    return unix_time(value, unit, translator.inputs)


def _of_integer(translator: Translator, arguments: list[exp.Expr], unit: int) -> Value:
    if len(arguments) != 1:
        raise Unsupported
    return timestamp_of_integer(translator.value(arguments[0]), unit)


def _cast_to(translator: Translator, arguments: list[exp.Expr], to: pa.DataType) -> Value:
    if len(arguments) != 1:
        raise Unsupported
    return cast(translator.value(arguments[0]), to, translator.inputs)


def _now(translator: Translator, node: exp.CurrentTimestamp) -> Value:
    if node.this:
        raise Unsupported
    return scalar(datetime.now(timezone.utc), TIMESTAMP)


def add_interval(value: Value, node: exp.Interval, add: Function, translator: Translator) -> Value:
    """Return timestamps that an interval is added to, or subtracted from.

    Args:
        value: the timestamps.
        node: the interval.
        add: a function of PyArrow.
        translator: translates the expression.

    Raises:
        Unsupported: the interval has no constant length, or the value is no timestamp.
    """
    length = INTERVALS.get(node.text("unit").lower())
    count = node.text("this")
    if value.type != TIMESTAMP or length is None or not COUNT.fullmatch(count):
        raise Unsupported
    # All days have 24 hours in the time zones for which there is such a clock.
    clock = local(value, translator.inputs)
    duration = scalar(int(count) * length, pa.duration("us"))
    return from_local(call(add, TIMESTAMP_NTZ, clock, duration), translator.inputs)


def _times(translator: Translator, nodes: list[exp.Expr], count: int) -> list[Value]:
    if len(nodes) != count:
        raise Unsupported
    return [of_type(translator, node, DATE, TIMESTAMP, TIMESTAMP_NTZ) for node in nodes]


def _unit(arguments: list[exp.Expr], units: Mapping[str, str]) -> str:
    unit = units.get(written(arguments[0]).lower()) if len(arguments) == 1 else None
    if unit is None:
        raise Unsupported
    return unit


# By their names, because sqlglot would change arguments, such as `'w'` to `'WEEK'`.
NAMED: Mapping[str, TranslateCall] = {
    **{name: partial(_date_part, part=part) for name, part in DATE_PARTS.items()},
    **{name: partial(_time_part, part=part) for name, part in TIME_PARTS.items()},
    "trunc": _trunc,
    "date_trunc": _date_trunc,
    "date_format": _date_format,
    "date_add": partial(_add_days, add=pc.add_checked),
    "date_sub": partial(_add_days, add=pc.subtract_checked),
    "datediff": _days_between,
    "date_diff": _days_between,
    "to_date": partial(_cast_to, to=DATE),
    "to_timestamp": partial(_cast_to, to=TIMESTAMP),
    "unix_seconds": partial(_unix_time, unit="second"),
    "unix_millis": partial(_unix_time, unit="millisecond"),
    "unix_micros": partial(_unix_time, unit="microsecond"),
    "timestamp_seconds": partial(_of_integer, unit=MICROSECONDS),
    "timestamp_millis": partial(_of_integer, unit=1000),
    "timestamp_micros": partial(_of_integer, unit=1),
}
FUNCTIONS: Mapping[type[exp.Expr], Translate] = {
    exp.Extract: _extract,
    exp.CurrentTimestamp: _now,
}
