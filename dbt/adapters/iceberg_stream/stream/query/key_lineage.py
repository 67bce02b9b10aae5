"""Find the source's columns that a query returns as its keys, or computes them from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, ParseError
from sqlglot.optimizer.scope import Scope, build_scope


@dataclass(frozen=True)
class KeyColumns:
    """Columns of the source.

    Attributes:
        passed_on: those that the query returns unchanged as keys.
        read: those that keys are computed from, with those that are passed on.
    """

    passed_on: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


def source_key_columns(sql: str, view: str, keys: Sequence[str]) -> KeyColumns:
    """Return the columns of the source that the keys of a query come from.

    They are followed through joins, subqueries and common table expressions. A column without the
    name of its table may belong to a joined table: the caller checks whether the source has it.

    Args:
        sql: the query; one that cannot be parsed has no such columns, and is refused elsewhere.
        view: the name that the source has in it.
        keys: columns that the query returns.
    """
    try:
        scope = build_scope(sqlglot.parse_one(sql, dialect="spark"))
    except (ParseError, OptimizeError):
        return KeyColumns()
    if scope is None:
        return KeyColumns()
    found = [column for key in keys for column in _returned(scope, key, view)]
    passed_on = [name for name, is_unchanged in found if is_unchanged]
    return KeyColumns(tuple(passed_on), tuple(dict.fromkeys(name for name, _ in found)))


def _returned(scope: Scope, name: str, view: str) -> list[tuple[str, bool]]:
    """Return the source's columns behind a column of a query, and whether each is unchanged."""
    if not isinstance(scope.expression, exp.Select):
        return []
    stars: list[str] = []
    for projection in scope.expression.expressions:
        column = projection.unalias()
        star = column if isinstance(column, exp.Star) else column.this
        if isinstance(star, exp.Star):
            for replaced in star.args.get("replace") or []:
                if replaced.alias.lower() == name.lower():
                    return _columns_of(scope, replaced.this, view)
            if _has_name(star, name):
                stars.append(column.table if isinstance(column, exp.Column) else "")
        elif projection.alias_or_name.lower() == name.lower():
            return _columns_of(scope, column, view)
    return next((one for table in stars if (one := _read(scope, table, name, view))), [])


def _columns_of(scope: Scope, value: exp.Expression, view: str) -> list[tuple[str, bool]]:
    """Return the source's columns behind an expression of a query."""
    found = []
    for column in value.find_all(exp.Column):
        names = [part.name for part in column.parts]
        is_qualified = len(names) > 1 and any(True for _ in _sources(scope, names[0]))
        table, name, *fields = names if is_qualified else ["", *names]
        # A field of a struct is computed from its column.
        is_whole = column is value and not fields
        read = _read(scope, table, name, view)
        found += [(source, is_unchanged and is_whole) for source, is_unchanged in read]
    return found


def _has_name(star: exp.Star, name: str) -> bool:
    """Return whether a star passes a column on, as far as its `except` says."""
    if any(star.args.get(clause) for clause in ("rename", "ilike")):
        return False
    left_out = star.args.get("except_") or star.args.get("except") or []
    return name.lower() not in {column.name.lower() for column in left_out}


def _read(scope: Scope, table: str, name: str, view: str) -> list[tuple[str, bool]]:
    """Return the source's columns behind a column of a query's `from`."""
    for source in _sources(scope, table):
        if isinstance(source, Scope):
            columns = _returned(source, name, view)
        else:
            columns = [(name, True)] if source.name == view and not source.db else []
        if columns:
            return columns
    return []


def _sources(scope: Scope, table: str) -> Iterator[exp.Table | Scope]:
    for alias, (_, source) in scope.selected_sources.items():
        if table.lower() in ("", alias.lower()):
            yield source
