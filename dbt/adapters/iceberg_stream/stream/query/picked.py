"""Queries that do no more than pick columns, so that rows need not go through Spark."""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from dbt.adapters.iceberg_stream.stream.sources.source import CHANGE


def keys_as_they_are(sql: str, view: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Columns of the source that are keys without being computed, as far as the text tells."""
    try:
        tree = sqlglot.parse_one(sql, dialect="spark")
    except ParseError:
        return ()  # what is wrong with it is told where it is carried
    source = tree.args.get("from_") or tree.args.get("from")
    if not isinstance(tree, exp.Select) or source is None or source.this.name != view:
        return ()
    if tree.args.get("joins") or tree.args.get("with_") or tree.args.get("with"):
        return ()
    given: dict[str, str] = {}
    for projection in tree.expressions:
        column = projection.unalias()
        if isinstance(column, exp.Star) or isinstance(column.this, exp.Star):
            given |= {key.lower(): key for key in keys if key.lower() not in given}
        elif isinstance(column, exp.Column):
            given[projection.alias_or_name.lower()] = column.name
        else:
            given[projection.alias_or_name.lower()] = ""
    return tuple(given[key.lower()] for key in keys if given.get(key.lower()))


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
