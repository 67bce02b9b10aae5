"""Finds the relations that a statement reads, and the temporary views that it defines."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbt.adapters.iceberg_stream.sql.branches import split_branch
from dbt.adapters.iceberg_stream.sql.dialect import Spark
from dbt.adapters.iceberg_stream.sql.reads import CURRENT, AsOf, NameParts, Reads

DIALECT = Spark
# Table functions that read no table.
GENERATORS = ("range", "explode", "posexplode", "inline", "stack", "values")

# The most rows of a `range` of which a query is not said to multiply its rows.
SHORT_RANGE = 5_000

# An insert up to its options, `with ('overwrite-mode' = 'dynamic')`, which sqlglot does not know.
INSERT_OPTIONS = re.compile(
    r"(?is)\A((?:\s|/\*.*?\*/)*insert\b(?:[^()'\"`]|`[^`]*`)*?)\bwith\s*\((?:[^()']|'[^'\\]*')*\)"
)

# A temporary view or cached query that sqlglot does not parse, up to its name.
VIEW_DEFINITION = re.compile(
    r"(?is)\A(?:\s|/\*.*?\*/|--[^\n]*\n)*(?:create\s+(?:or\s+replace\s+)?(?:global\s+)?"
    r"temp(?:orary)?\s+view(?:\s+if\s+not\s+exists)?|(?P<cache>cache)\s+(?:lazy\s+)?table)\s+"
    r"(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<name>\w+))"
)

# sqlglot logs each statement that it cannot parse.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


@dataclass(frozen=True)
class TemporaryView:
    """A temporary view or cached query of a session.

    Attributes:
        name: its name.
        reads: what it reads; None if unknown.
        is_cached: whether it keeps the rows that it has now.
    """

    name: str
    reads: Reads | None
    is_cached: bool = False


# Many models read the same view, whose text is parsed once.
@lru_cache(maxsize=256)
def reads(sql: str) -> Reads | None:
    """Return the relations that a statement reads.

    Args:
        sql: the statement.

    Returns:
        The relations; None if they are unknown.
    """
    tree = _parse(sql)
    if tree is None or isinstance(tree, exp.Command):
        return None
    if isinstance(tree, exp.Create):
        body = tree.expression
        return Reads(frozenset()) if body is None else _in(body)
    if isinstance(tree, exp.Insert):
        return None if tree.expression is None else _in(tree.expression)
    if isinstance(tree, exp.Merge) and _only_inserts(tree):
        return _in(tree)
    if isinstance(tree, exp.Merge | exp.Update | exp.Delete):
        return _in(*(part for key, part in _parts(tree) if key != "this"))
    return _in(tree) if isinstance(tree, exp.Query) else None


@lru_cache(maxsize=256)
def only_inserts(sql: str) -> bool:
    """Return whether a statement is a MERGE that only inserts, which Spark runs as an append.

    Iceberg does not check the rows that an append was computed from.

    Args:
        sql: the statement.
    """
    tree = _parse(sql)
    return isinstance(tree, exp.Merge) and _only_inserts(tree)


def _only_inserts(merge: exp.Merge) -> bool:
    return all(isinstance(when.args["then"], exp.Insert) for when in merge.find_all(exp.When))


@lru_cache(maxsize=256)
def multiplies_rows(sql: str) -> bool:
    """Return whether a query may make many rows of few: by a cross join, or by generating them.

    Args:
        sql: the query.
    """
    tree = _parse(sql)
    if tree is None or any(with_.args.get("recursive") for with_ in tree.find_all(exp.With)):
        return True
    if any(map(_is_cross_join, tree.find_all(exp.Join))):
        return True
    if tree.find(exp.GenerateSeries, exp.GenerateDateArray, exp.GenerateTimestampArray):
        return True
    calls = {call.name.lower() for call in tree.find_all(exp.Anonymous)}
    return not calls.isdisjoint({"sequence", "array_repeat", "stack"}) or any(
        map(_is_long_range, tree.find_all(exp.Table))
    )


def _is_cross_join(join: exp.Join) -> bool:
    """Return whether a join has no condition that two columns are equal."""
    if join.args.get("using") or join.method == "NATURAL":
        return False
    condition = join.args.get("on")
    return condition is None or condition.find(exp.EQ, exp.NullSafeEQ) is None


def _is_long_range(table: exp.Table) -> bool:
    """Return whether a table is a `range` of many rows, or of a number that is not in the text."""
    text = table.this.sql(dialect=DIALECT).lower()
    if not text.startswith("range("):
        return False
    bounds = re.fullmatch(r"range\((\d+)(?:, (\d+))?\)", text)
    return bounds is None or max(int(bound) for bound in bounds.groups("0")) > SHORT_RANGE


def temporary_view(sql: str) -> TemporaryView | None:
    """Return the temporary view or cached query that a statement defines, if any.

    Args:
        sql: the statement.
    """
    tree = _parse(sql)
    if isinstance(tree, exp.Cache):
        body = tree.expression
        read = _in(body) if isinstance(body, exp.Expr) else None
        return TemporaryView(tree.this.name, read, is_cached=True)
    if isinstance(tree, exp.Create) and tree.kind == "VIEW":
        if tree.find(exp.TemporaryProperty) is None:
            return None
        body = tree.expression
        target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
        return TemporaryView(target.name, None if body is None else _in(body))
    if (match := VIEW_DEFINITION.match(sql)) is not None:
        name = match["name"] or match["quoted"].replace("``", "`")
        return TemporaryView(name, None, is_cached=match["cache"] is not None)
    return None


def _parse(sql: str) -> exp.Expr | None:
    sql = INSERT_OPTIONS.sub(r"\1", sql, count=1)
    try:
        return sqlglot.parse_one(sql, dialect=DIALECT)
    except SqlglotError:
        return None


def _in(*parts: exp.Expr) -> Reads | None:
    """Return the tables in parts of a statement, without common table expressions."""
    names: dict[NameParts, frozenset[AsOf]] = {}
    for part in parts:
        if part.find(exp.Command) is not None or _hides_tables(part):
            return None
        for table in part.find_all(exp.Table):
            if table.find_ancestor(exp.Hint):
                continue  # an alias of the query
            # With a branch, the name has more parts than a name in SQL has.
            if not isinstance(table.this, exp.Identifier | exp.Dot):
                if table.this.sql(dialect=DIALECT).split("(")[0].lower() not in GENERATORS:
                    return None
                continue
            name, branch = split_branch(tuple(p.name for p in table.parts))
            if len(name) > 1 or not is_common_table(table):
                as_of = _as_of(table) if branch is None else branch
                names[name] = names.get(name, frozenset()) | {as_of}
    versions = {name: read for name, read in names.items() if read != CURRENT}
    return Reads(frozenset(names), versions)


def _as_of(table: exp.Table) -> AsOf:
    """Return in which version a table is read.

    Only commits change what `timestamp as of` reads, as they change the current version.
    """
    version = table.args.get("version")
    if version is None or version.name != "VERSION":
        return None
    text = str(version.expression.name)
    # Iceberg reads a name of digits as an id.
    return int(text) if text.isdecimal() else text


def _hides_tables(part: exp.Expr) -> bool:
    """Return whether a function takes a relation or its name as an argument."""
    calls = (call.name.lower() for call in part.find_all(exp.Anonymous))
    return any(name in ("table", "identifier") for name in calls)


def is_common_table(table: exp.Table) -> bool:
    """Return whether a table's name refers to a common table expression.

    An expression can refer to those before it, and to itself only in `with recursive`.

    Args:
        table: the table, as a node of a statement.
    """
    name = table.name.lower()
    node: exp.Expr = table
    parent = table.parent
    while parent is not None:
        if isinstance(parent, exp.With):
            visible = parent.expressions
            if not parent.recursive:
                visible = visible[: next(i for i, cte in enumerate(visible) if cte is node)]
        else:
            clause = parent.args.get("with_")
            visible = clause.expressions if clause is not None and clause is not node else []
        if any(cte.alias.lower() == name for cte in visible):
            return True
        node, parent = parent, parent.parent
    return False


def _parts(tree: exp.Expr) -> list[tuple[str, exp.Expr]]:
    return [
        (key, item)
        for key, value in tree.args.items()
        for item in (value if isinstance(value, list) else [value])
        if isinstance(item, exp.Expr)
    ]
