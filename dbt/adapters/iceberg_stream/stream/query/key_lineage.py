"""Find the source's columns that a query passes on unchanged as its keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, ParseError
from sqlglot.optimizer.scope import Scope, build_scope


def source_key_columns(sql: str, view: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the source that the query passes on unchanged as its keys.

    They are followed through joins, subqueries and common table expressions. A column without the
    name of its table may belong to a joined table: the caller checks whether the source has it.

    Args:
        sql: the query; one that cannot be parsed has no such keys, and is refused elsewhere.
        view: the name that the source has in it.
        keys: columns that the query returns.

    Returns:
        Names of the source's columns, for those keys that are not computed.
    """
    try:
        scope = build_scope(sqlglot.parse_one(sql, dialect="spark"))
    except (ParseError, OptimizeError):
        return ()
    if scope is None:
        return ()
    columns = (_returned(scope, key, view) for key in keys)
    return tuple(column for column in columns if column is not None)


def _returned(scope: Scope, name: str, view: str) -> str | None:
    """Return the source's column that a query returns under a name."""
    if not isinstance(scope.expression, exp.Select):
        return None
    stars: list[str] = []
    for projection in scope.expression.expressions:
        column = projection.unalias()
        star = column if isinstance(column, exp.Star) else column.this
        if isinstance(star, exp.Star):
            if _has_name(star, name):
                stars.append(column.table if isinstance(column, exp.Column) else "")
        elif projection.alias_or_name.lower() == name.lower():
            is_column = isinstance(column, exp.Column)
            return _read(scope, column.table, column.name, view) if is_column else None
    return next((one for table in stars if (one := _read(scope, table, name, view))), None)


def _has_name(star: exp.Star, name: str) -> bool:
    """Return whether a star passes a column on, as far as its `except` says."""
    if any(star.args.get(clause) for clause in ("replace", "rename", "ilike")):
        return False
    left_out = star.args.get("except_") or star.args.get("except") or []
    return name.lower() not in {column.name.lower() for column in left_out}


def _read(scope: Scope, table: str, name: str, view: str) -> str | None:
    """Return the source's column behind a column of a query's `from`."""
    for source in _sources(scope, table):
        if isinstance(source, Scope):
            column = _returned(source, name, view)
        else:
            column = name if source.name == view and not source.db else None
        if column is not None:
            return column
    return None


def _sources(scope: Scope, table: str) -> Iterator[exp.Table | Scope]:
    for alias, (_, source) in scope.selected_sources.items():
        if table.lower() in ("", alias.lower()):
            yield source
