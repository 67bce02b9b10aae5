"""Which relations a statement reads, and which temporary views it defines, by a SQL parser."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

DIALECT = "spark"
NameParts = tuple[str, ...]
# Functions in the place of a table that read none.
GENERATORS = ("range", "explode", "posexplode", "inline", "stack", "values")

# It tells the log of each statement that it passes over.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Reads:
    """Relations that a statement reads, as it names them; its target only if it reads that, too."""

    relations: frozenset[NameParts]


@dataclass(frozen=True)
class TemporaryView:
    """A view of the session, or a cached query, and what it reads; None if that is not known."""

    name: str
    reads: Reads | None


def reads(sql: str) -> Reads | None:
    """What a statement reads; None where the parser does not understand it."""
    tree = _parse(sql)
    if tree is None or isinstance(tree, exp.Command):
        return None
    if isinstance(tree, exp.Create):
        body = tree.expression
        return Reads(frozenset()) if body is None else _in(body)
    if isinstance(tree, exp.Insert):
        return None if tree.expression is None else _in(tree.expression)
    if isinstance(tree, exp.Merge | exp.Update | exp.Delete):
        return _in(*(part for key, part in _parts(tree) if key != "this"))
    return _in(tree) if isinstance(tree, exp.Query) else None


def temporary_view(sql: str) -> TemporaryView | None:
    """The temporary view or cached query that a statement defines; None if it defines none."""
    tree = _parse(sql)
    if isinstance(tree, exp.Cache):
        body = tree.expression
        return TemporaryView(
            tree.this.name, _in(body) if isinstance(body, exp.Expression) else None
        )
    if isinstance(tree, exp.Create) and tree.kind == "VIEW":
        if tree.find(exp.TemporaryProperty) is None:
            return None
        body = tree.expression
        return TemporaryView(tree.this.name, None if body is None else _in(body))
    return None


def _parse(sql: str) -> exp.Expression | None:
    try:
        return sqlglot.parse_one(sql, dialect=DIALECT)
    except SqlglotError:
        return None


def _in(*parts: exp.Expression) -> Reads | None:
    """Tables in parts of a statement, without common table expressions and functions."""
    found: set[NameParts] = set()
    for part in parts:
        if part.find(exp.Command) is not None or _hides_tables(part):
            return None
        for table in part.find_all(exp.Table):
            if not isinstance(table.this, exp.Identifier):
                if table.this.sql(dialect=DIALECT).split("(")[0].lower() not in GENERATORS:
                    return None
                continue
            name = tuple(p.name for p in table.parts)
            if len(name) > 1 or not is_common_table(table):
                found.add(name)
    return Reads(frozenset(found))


def _hides_tables(part: exp.Expression) -> bool:
    """Whether a relation is given to a function, by name or as a whole."""
    calls = (call.name.lower() for call in part.find_all(exp.Anonymous))
    return any(name in ("table", "identifier") for name in calls)


def is_common_table(table: exp.Table) -> bool:
    """Whether a name is that of a common table expression where it stands.

    Each of them sees those before it, itself only in `with recursive`.
    """
    name = table.name.lower()
    inside: exp.Expression = table
    around = table.parent
    while around is not None:
        if isinstance(around, exp.With):
            visible = around.expressions
            if not around.recursive:
                visible = visible[: next(i for i, cte in enumerate(visible) if cte is inside)]
        else:
            clause = around.args.get("with_")
            visible = clause.expressions if clause is not None and clause is not inside else []
        if any(cte.alias.lower() == name for cte in visible):
            return True
        inside, around = around, around.parent
    return False


def _parts(tree: exp.Expression) -> list[tuple[str, exp.Expression]]:
    return [
        (key, item)
        for key, value in tree.args.items()
        for item in (value if isinstance(value, list) else [value])
        if isinstance(item, exp.Expression)
    ]
