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
DATE = pa.date32()
TIMESTAMP = pa.timestamp("us", "UTC")
# Without a zone.
TIMESTAMP_NTZ = pa.timestamp("us")


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


def convert(value: Value, to: pa.DataType) -> Value:
    """Return a value as PyArrow casts it to another type.

    Args:
        value: the value.
        to: the type.
    """
    return value if value.type == to else call(pc.cast, to, value, target_type=to)


def choose(condition: Value, value: Value, other: Value) -> Value:
    """Return a value where a condition is true, and another where it is false or null.

    Args:
        condition: the condition.
        value: the value.
        other: the other one.
    """
    is_true = call(pc.fill_null, pa.bool_(), condition, fill_value=False)
    return call(pc.if_else, value.type, is_true, value, other)
