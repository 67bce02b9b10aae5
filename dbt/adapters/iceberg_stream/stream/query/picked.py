"""Queries that only pick columns and filter rows: their rows need not go through Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.query.change_sql import change_of_row
from dbt.adapters.iceberg_stream.stream.query.conditions import (
    AMBIGUOUS_TEXT,
    NotAlike,
    arrow_condition,
)
from dbt.adapters.iceberg_stream.stream.sources.source import CHANGE, ROW_DELETED

# Before the names of columns that only the condition needs.
COMPARED = "__compared_"
PLACE, PLACEHOLDER = "__place", "__placeholder"


@dataclass(frozen=True)
class Picked:
    """What a query selects of its source.

    Attributes:
        columns: columns of the source by the query's columns in lower case, and by COMPARED with
            their own name, if the condition needs them.
        condition: which rows the query returns, by the columns with COMPARED; None for all.
        of_rows: whether the changes are of rows: those that the condition leaves out are deleted.
    """

    columns: Mapping[str, str]
    condition: pc.Expression | None = None
    of_rows: bool = False

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that the query returns, without the columns that only it needs.

        Args:
            rows: with a column for each of `columns`, and others.

        Raises:
            ArrowFallback: the rows have a value that Spark compares differently.
        """
        if self.condition is None:
            return rows
        compared = [name for name in rows.schema.names if name.startswith(COMPARED)]
        for name in compared:
            # In Spark, NaN equals itself and is larger than all numbers.
            if pa.types.is_floating(rows[name].type) and pc.any(pc.is_nan(rows[name])).as_py():
                raise ArrowFallback
        if self.of_rows:
            return _with_deletes(rows, self.condition).drop_columns(compared)
        return rows.filter(self.condition).drop_columns(compared)


def _with_deletes(rows: pa.RecordBatch, condition: pc.Expression) -> pa.RecordBatch:
    """Return rows with ROW_DELETED, also for those that a condition leaves out."""
    numbered = rows.append_column(PLACE, pa.array(np.arange(rows.num_rows)))
    deleted = np.ones(rows.num_rows, np.bool_)
    deleted[numbered.filter(condition)[PLACE].to_numpy()] = False
    if ROW_DELETED in rows.schema.names:
        deleted |= rows[ROW_DELETED].to_numpy(zero_copy_only=False)
        rows = rows.drop_columns([ROW_DELETED])
    return rows.append_column(ROW_DELETED, pa.array(deleted))


def pick(sql: str, view: str, schema: pa.Schema) -> Picked | None:
    """Return what a query selects, if it only picks columns and filters rows.

    Args:
        sql: the query.
        view: the name that the source has in it.
        schema: the source's columns.

    Returns:
        The columns and the condition; None if the query does more, or if PyArrow may compute the
        condition differently.
    """
    tree = sqlglot.parse_one(sql, dialect="spark")
    source = tree.find(exp.Table)
    by_lower = {name.lower(): name for name in schema.names}
    bare = exp.select().from_(exp.to_table(view))
    if not isinstance(tree, exp.Select) or source is None or len(by_lower) < len(schema):
        return None
    unfiltered = tree.copy()
    unfiltered.set("where", None)
    if unfiltered.select("1", append=False) != bare.select("1", append=False):
        return None
    where = tree.args.get("where")
    # A filter on changes of rows is in the column of the change.
    kept = None if where else _condition_of_rows(tree, view)
    columns = _columns(tree, view, by_lower)
    condition = where.this if where else kept
    if columns is None or condition is None:
        return None if columns is None else Picked(columns)
    if AMBIGUOUS_TEXT.search(sql):
        return None
    names = {column.name.lower() for column in condition.find_all(exp.Column)} & by_lower.keys()
    compared = {f"{COMPARED}{name}": by_lower[name] for name in sorted(names)}
    fields = {name: schema.field(by_lower[name]).with_name(f"{COMPARED}{name}") for name in names}
    try:
        translated = arrow_condition(condition, fields, view)
    except NotAlike:
        return None
    return Picked(columns | compared, translated, of_rows=kept is not None)


def _condition_of_rows(tree: exp.Select, view: str) -> exp.Expression | None:
    """Remove and return the condition of the rows that stay, which `change_of_row` wrote."""
    change = tree.expressions[-1]
    negated = change.find(exp.Coalesce) if change.alias == CHANGE else None
    if negated is None:
        return None
    condition = negated.this
    written = sqlglot.parse_one(change_of_row(view, PLACEHOLDER), dialect="spark")
    next(c for c in written.find_all(exp.Column) if c.name == PLACEHOLDER).replace(condition.copy())
    if change.unalias() != written:
        return None
    change.pop()
    return condition


def _columns(tree: exp.Select, view: str, by_lower: Mapping[str, str]) -> dict[str, str] | None:
    """Return the source's column for each of the query's; None if one is computed."""
    picked: dict[str, str] = {}
    for projection in tree.expressions:
        column = projection.unalias()
        if isinstance(column, exp.Star) and _has_all(column):
            picked |= by_lower
        elif not isinstance(column, exp.Column) or column.table not in ("", view):
            return None
        elif column.name.lower() in by_lower:
            picked[projection.alias_or_name.lower()] = by_lower[column.name.lower()]
        elif column.name != CHANGE:
            return None
    return picked


def _has_all(star: exp.Star) -> bool:
    """Return whether a star has all columns, but for CHANGE, which is no column of a row."""
    others = [value for name, value in star.args.items() if name != "except_" and value]
    excepted = star.args.get("except_") or []
    return not others and all(column.name == CHANGE for column in excepted)
