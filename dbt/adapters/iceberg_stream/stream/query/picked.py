"""Queries that only pick columns: their rows need not go through Spark."""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.sources.source import CHANGE


def picked_columns(sql: str, view: str, names: Sequence[str]) -> dict[str, str] | None:
    """Return the source's column for each column of a query that only picks columns.

    Args:
        sql: the query.
        view: the name that the source has in it.
        names: the source's columns.

    Returns:
        Columns of the source by the query's columns in lower case; None if the query does more.
    """
    tree = sqlglot.parse_one(sql, dialect="spark")
    source = tree.find(exp.Table)
    by_lower = {name.lower(): name for name in names}
    bare = exp.select().from_(exp.to_table(view))
    if not isinstance(tree, exp.Select) or source is None or len(by_lower) < len(names):
        return None
    if tree.select("1", append=False) != bare.select("1", append=False):
        return None
    picked: dict[str, str] = {}
    for projection in tree.expressions:
        column = projection.unalias()
        if isinstance(column, exp.Star) and not any(column.args.values()):
            picked |= by_lower
        elif not isinstance(column, exp.Column) or column.table not in ("", view):
            return None
        elif column.name.lower() in by_lower:
            picked[projection.alias_or_name.lower()] = by_lower[column.name.lower()]
        elif column.name != CHANGE:
            return None
    return picked
