"""Casts that PyArrow computes as Spark does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.query import decimals
from dbt.adapters.iceberg_stream.stream.query.decimals import is_decimal
from dbt.adapters.iceberg_stream.stream.query.inputs import Inputs
from dbt.adapters.iceberg_stream.stream.query.times import (
    date_of_text,
    day_of,
    midnight_of,
    text_of,
    timestamp_of_integer,
    timestamp_of_text,
    unix_time,
)
from dbt.adapters.iceberg_stream.stream.query.values import (
    DATE,
    INTEGERS,
    NUMBERS,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Unsupported,
    Value,
    call,
    convert,
)

# Texts that Spark and PyArrow read as the same integer.
PLAIN_INTEGER = r"^-?[0-9]{1,18}$"


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type to which Spark casts values of two types that meet.

    Args:
        one: a type.
        other: the other one.

    Raises:
        Unsupported: they are not the same, nor both numbers, nor a date and a timestamp.
    """
    if one == other:
        return one
    if {one, other} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    numbers = [kind for kind in (one, other) if kind in NUMBERS]
    if len(numbers) + is_decimal(one) + is_decimal(other) < 2:
        raise Unsupported
    if len(numbers) == 2:
        return max(one, other, key=NUMBERS.index)
    return pa.float64() if pa.float64() in numbers else decimals.wider_decimal(one, other)


def cast(value: Value, to: pa.DataType, inputs: Inputs) -> Value:
    """Return a value as one of another type.

    Args:
        value: the value.
        to: the type.
        inputs: what the cast depends on is added to it.

    Raises:
        Unsupported: Spark and PyArrow may cast it differently.
    """
    if value.type == to:
        return value
    if is_decimal(to):
        return decimals.to_decimal(value, to, inputs)
    if to in (DATE, TIMESTAMP):
        return _to_time(value, to, inputs)
    if to in NUMBERS:
        return _to_number(value, to, inputs)
    if to == pa.string():
        if value.type in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
            return text_of(value, inputs)
        # Of bytes that are no UTF-8 PyArrow makes no text; Spark keeps them.
        if value.type in (*INTEGERS, pa.bool_(), pa.binary()):
            return convert(value, to)
    raise Unsupported


def _to_time(value: Value, to: pa.DataType, inputs: Inputs) -> Value:
    if value.type == pa.string():
        return (date_of_text if to == DATE else timestamp_of_text)(value, inputs)
    if to == DATE:
        return day_of(value, inputs)
    return midnight_of(value, inputs) if value.type == DATE else timestamp_of_integer(value)


def _to_number(value: Value, to: pa.DataType, inputs: Inputs) -> Value:
    if is_decimal(value.type):
        return decimals.to_integer(value, to) if to in INTEGERS else decimals.to_double(value)
    if value.type == pa.string() and to in INTEGERS:
        inputs.doubt(is_no_plain_integer, value)
        return convert(value, to)
    if value.type == TIMESTAMP and to == pa.int64():
        return unix_time(value, "second", inputs)
    if value.type == pa.float64():
        value = call(pc.trunc, pa.float64(), value)
    if value.type not in NUMBERS:
        raise Unsupported
    return convert(value, to)


def is_no_plain_integer(texts: Any) -> Any:
    """Return which texts Spark and PyArrow may read as different integers, or refuse."""
    return pc.invert(pc.match_substring_regex(texts, PLAIN_INTEGER))
