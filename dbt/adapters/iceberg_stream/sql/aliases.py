"""Gives relations in a statement aliases, so that they can have other names in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.dialects import Spark
from sqlglot.errors import SqlglotError

from dbt.adapters.iceberg_stream.sql.queries import DIALECT
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.reads import NameParts

# They name columns of the table that they change.
CHANGES = (exp.Merge, exp.Update, exp.Delete)


def with_target_alias(sql: str) -> str:
    """Return a MERGE, UPDATE or DELETE whose target has its own name as its alias, if it has none.

    Args:
        sql: the statement; others stay as they are.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=DIALECT)
    except SqlglotError:
        return sql
    if not isinstance(tree, CHANGES) or tree.this.alias:
        return sql
    return add_aliases(sql, tree, [tree.this], lambda name: name)


def add_aliases(
    sql: str,
    tree: exp.Expr,
    tables: Sequence[exp.Table],
    public_name: Callable[[NameParts], NameParts],
    keyword: str = " as ",
) -> str:
    """Give tables aliases, by which the statement's columns are then qualified.

    Args:
        sql: the statement.
        tree: its syntax tree.
        tables: those in the tree that get an alias: the last part of their public name.
        public_name: returns by which name the statement may also qualify columns of a table.
        keyword: what stands before an alias.
    """
    edits = [
        (end, end, f"{keyword}{quote(public_name(name_parts(table))[-1])}")
        for table in tables
        for end in [_place_of_alias(sql, table)]
    ]
    edits += _qualifiers(tree, {name_parts(table) for table in tables}, public_name)
    for start, end, replacement in sorted(edits, reverse=True):
        sql = f"{sql[:start]}{replacement}{sql[end:]}"
    return sql


def name_parts(table: exp.Table) -> NameParts:
    """Return the parts of a table's name.

    Args:
        table: a node of a statement.
    """
    return tuple(part.name for part in table.parts)


def _place_of_alias(sql: str, table: exp.Table) -> int:
    """Return where a table's name ends, with `version as of …` and `tablesample (…)`."""
    end = int(table.parts[-1].meta["end"]) + 1
    if table.args.get("version") is None and table.args.get("sample") is None:
        return end
    tokens = Spark().tokenize(sql[end:])
    # The adapter writes the version as one literal.
    place = 0 if table.args.get("version") is None else 4
    while place < len(tokens) and tokens[place].text.lower() in ("tablesample", "repeatable"):
        place, depth = place + 2, 1
        while depth:
            depth += {"(": 1, ")": -1}.get(tokens[place].text, 0)
            place += 1
    return int(end + tokens[place - 1].end + 1)


def _qualifiers(
    tree: exp.Expr, tables: set[NameParts], public_name: Callable[[NameParts], NameParts]
) -> Iterator[tuple[int, int, str]]:
    """Yield where columns have more than the alias of a relation, which hides its whole name."""
    aliases = {
        _lower(name[-length:]): public_name(names)[-1]
        for names in tables
        for name in (names, public_name(names))
        for length in (1, 2, 3)
    }
    for column in tree.find_all(exp.Column):
        *parts, _ = column.parts
        names = _lower(tuple(part.name for part in parts))
        if names in aliases and names != (aliases[names].lower(),):
            start, end = int(parts[0].meta["start"]), int(parts[-1].meta["end"]) + 1
            yield start, end, quote(aliases[names])


def _lower(names: NameParts) -> NameParts:
    return tuple(name.lower() for name in names)
