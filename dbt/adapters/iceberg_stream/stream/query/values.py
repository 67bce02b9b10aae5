"""Values that PyArrow's functions compute for the rows of a stream, with Spark's types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Computes an array, or one value for all rows.
Compute = Callable[[pa.RecordBatch], pa.Array | pa.Scalar]
Function = Callable[..., Any]
# Each type is cast to those that follow it.
NUMBERS = (pa.int32(), pa.int64(), pa.float64())
INTEGERS = NUMBERS[:2]
TIMESTAMP = pa.timestamp("us", "UTC")
MICROSECONDS = 1_000_000
# Texts that Spark and PyArrow read as the same integer.
PLAIN_INTEGER = r"^-?[0-9]{1,18}$"


class Unsupported(Exception):
    """PyArrow may compute something differently from Spark; the message says what."""


@dataclass(frozen=True)
class Value:
    """An expression on the columns of a source.

    Attributes:
        compute: computes it. An expression of PyArrow's own is not used, because PyArrow changes
            the order of sums and products, and with it their rounding.
        type: the type that Spark's expression has.
        column: the column of the source that it is; None if it is computed.
    """

    compute: Compute
    type: pa.DataType
    column: str | None = None

    def array(self, rows: pa.RecordBatch) -> pa.Array:
        """Compute the value of each row.

        Args:
            rows: with the columns that the expression needs.

        Raises:
            pa.ArrowInvalid: a row has none, such as an integer that overflows.
        """
        result = self.compute(rows)
        return pa.repeat(result, rows.num_rows) if isinstance(result, pa.Scalar) else result


def call(function: Function, kind: pa.DataType, *values: Value, **options: Any) -> Value:
    """Return the value that a function of PyArrow computes of others.

    Args:
        function: the function.
        kind: the type of its results.
        values: its arguments.
        options: its options.
    """
    computes = [value.compute for value in values]
    return Value(lambda rows: function(*(compute(rows) for compute in computes), **options), kind)


def scalar(value: Any, kind: pa.DataType) -> Value:
    """Return a value that all rows have.

    Args:
        value: the value.
        kind: its type.
    """
    scalar = pa.scalar(value, kind)
    return Value(lambda rows: scalar, kind)


def choose(condition: Value, value: Value, other: Value) -> Value:
    """Return a value where a condition is true, and another where it is false or null.

    Args:
        condition: the condition.
        value: the value.
        other: the other one.
    """
    is_true = call(pc.fill_null, pa.bool_(), condition, fill_value=False)
    return call(pc.if_else, value.type, is_true, value, other)


def is_not_ascii(texts: Any) -> Any:
    """Return which texts have letters other than those of ASCII."""
    return pc.invert(pc.string_is_ascii(texts))


def is_no_plain_integer(texts: Any) -> Any:
    """Return which texts Spark and PyArrow may read as different integers, or refuse."""
    return pc.invert(pc.match_substring_regex(texts, PLAIN_INTEGER))


def cast(value: Value, to: pa.DataType) -> Value:
    """Return a value as one of another type.

    Args:
        value: the value.
        to: the type.

    Raises:
        Unsupported: Spark and PyArrow may cast it differently.
    """
    if value.type == to:
        return value
    if to == TIMESTAMP:
        return timestamp(value, MICROSECONDS)
    numbers = value.type in INTEGERS and to in NUMBERS
    texts = value.type in (*INTEGERS, pa.bool_()) and to == pa.string()
    if not (numbers or texts):
        raise Unsupported
    return call(pc.cast, to, value, target_type=to)


def timestamp(value: Value, unit: int) -> Value:
    """Return integers as timestamps.

    Args:
        value: the integers.
        unit: how many microseconds one is.

    Raises:
        Unsupported: the value is no integer.
    """
    if value.type not in INTEGERS:
        raise Unsupported
    count, of_unit = cast(value, pa.int64()), scalar(unit, pa.int64())
    product = call(pc.multiply_checked, pa.int64(), count, of_unit)
    return call(pc.cast, TIMESTAMP, product, target_type=TIMESTAMP)


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type to which Spark casts values of two types that meet.

    Raises:
        Unsupported: they are not the same, and not both numbers.
    """
    if one == other:
        return one
    if one not in NUMBERS or other not in NUMBERS:
        raise Unsupported
    return max(one, other, key=NUMBERS.index)
