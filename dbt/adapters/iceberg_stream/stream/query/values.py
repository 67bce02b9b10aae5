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


class Unsupported(Exception):
    """Spark has to compute something; the message says what."""


@dataclass(frozen=True)
class Value:
    """An expression on the columns of a source.

    Attributes:
        compute: computes it.
        type: the type that Spark's expression has; None if only Spark knows.
        column: the column of the source that it is, or that has what Spark has computed; None if
            PyArrow computes it.
    """

    compute: Compute
    type: pa.DataType | None
    column: str | None = None

    def array(self, rows: pa.RecordBatch) -> pa.Array:
        """Compute the value of each row.

        Args:
            rows: with the columns that the expression needs.
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
    """Return a number as one of a wider type.

    Args:
        value: the number.
        to: the type.
    """
    # Integers of more than 53 bits become the nearest double, as in Spark.
    return value if value.type == to else call(pc.cast, to, value, target_type=to, safe=False)


def choose(condition: Value, value: Value, other: Value) -> Value:
    """Return a value where a condition is true, and another where it is false or null.

    Args:
        condition: the condition.
        value: the value.
        other: the other one, of the same type.
    """
    assert value.type is not None, "what is computed has a type"
    is_true = call(pc.fill_null, pa.bool_(), condition, fill_value=False)
    return call(pc.if_else, value.type, is_true, value, other)


def equal(one: Any, other: Any) -> Any:
    """Return where doubles are equal; in Spark, NaN equals itself."""
    both_nan = pc.and_(pc.is_nan(one), pc.is_nan(other))
    return pc.or_(pc.equal(one, other), both_nan)


def less(one: Any, other: Any) -> Any:
    """Return where doubles are less than others; in Spark, NaN is larger than all numbers."""
    only_other_nan = pc.and_(pc.is_nan(other), pc.invert(pc.is_nan(one)))
    return pc.or_(pc.less(one, other), only_other_nan)
