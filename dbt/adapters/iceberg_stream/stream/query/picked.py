"""Queries that do no more than pick columns, so that rows need not go through Spark."""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.sources.source import CHANGE


def picked_columns(sql: str, view: str, names: Sequence[str]) -> dict[str, str] | None:
    """The source's column that each of a query's is, if it only picks columns."""
    tree = sqlglot.parse_one(sql, dialect="spark")
    source = tree.find(exp.Table)
    known = {name.lower(): name for name in names}
    bare = exp.select().from_(exp.to_table(view))
    if not isinstance(tree, exp.Select) or source is None or len(known) < len(names):
        return None
    if tree.select("1", append=False) != bare.select("1", append=False):
        return None
    found: dict[str, str] = {}
    for projection in tree.expressions:
        column = projection.unalias()
        if isinstance(column, exp.Star) and not any(column.args.values()):
            found |= known
        elif not isinstance(column, exp.Column) or column.table not in ("", view):
            return None
        elif column.name.lower() in known:
            found[projection.alias_or_name.lower()] = known[column.name.lower()]
        elif column.name != CHANGE:
            return None
    return found
