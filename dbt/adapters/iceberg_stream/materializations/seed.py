"""Seeds: the rows of a CSV file as Arrow, with the types dbt found in it."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import agate

INT64 = range(-(2**63), 2**63)
# The widest decimal of Iceberg (spec, "Primitive Types").
MAX_DECIMAL_DIGITS = 38


def arrow_table(rows: agate.Table) -> pa.Table:
    """All rows and columns of a seed; empty cells are nulls, whatever the column's type."""
    columns = [_column(rows, index) for index in range(len(rows.column_names))]
    return pa.Table.from_arrays(columns, names=list(rows.column_names))


def _column(rows: agate.Table, index: int) -> pa.Array:
    import agate

    kind = rows.column_types[index]
    values = [row[index] for row in rows.rows]
    if isinstance(kind, agate.Boolean):
        return pa.array(values, pa.bool_())
    if isinstance(kind, agate.Number):
        return _numbers(values)
    if isinstance(kind, agate.DateTime):
        return _datetimes(values)
    if isinstance(kind, agate.Date):
        return pa.array(values, pa.date32())
    return pa.array([None if v is None else str(v) for v in values], pa.string())


def _numbers(values: list[Decimal | None]) -> pa.Array:
    """Whole numbers as 64-bit integers, or as decimals where they are larger; others as doubles."""
    present = [v for v in values if v is not None]
    if any(v != int(v) for v in present):
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    integers = [None if v is None else int(v) for v in values]
    if all(v in INT64 for v in integers if v is not None):
        return pa.array(integers, pa.int64())
    exact = [None if v is None else Decimal(v) for v in integers]
    return pa.array(exact, pa.decimal128(MAX_DECIMAL_DIGITS, 0))


def _datetimes(values: list[Any]) -> pa.Array:
    """Times without a zone are taken as UTC, the time zone of the engine's sessions."""
    return pa.array(values, pa.timestamp("us", tz="UTC"))
