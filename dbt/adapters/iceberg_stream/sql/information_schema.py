"""Finds what a statement asks of `information_schema`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbt.adapters.iceberg_stream.sql.queries import DIALECT
from dbt.adapters.iceberg_stream.sql.quoting import quote

NAME = "information_schema"
SCHEMATA = "schemata"
# What sqlglot calls the operands of a condition. Anything else may change its meaning.
OPERANDS = {"this", "expression", "expressions"}


@dataclass(frozen=True)
class Mention:
    """A view of `information_schema` in a statement.

    Attributes:
        catalog: the catalog's name, in lower case; None if the statement names none.
        view: its name, in lower case.
        start: where its name begins in the statement.
        end: where its name ends.
        alias: whether the statement gives it an alias.
        columns: names in lower case that the statement has for columns; None if it may ask for all.
        namespaces: patterns that match the namespaces it asks for, all of them.
        tables: patterns that match the names of tables and views it asks for.
    """

    catalog: str | None
    view: str
    start: int
    end: int
    alias: bool
    columns: frozenset[str] | None
    namespaces: tuple[re.Pattern[str], ...] = ()
    tables: tuple[re.Pattern[str], ...] = ()

    def asks_for_namespace(self, namespace: str) -> bool:
        """Return whether the statement may need relations of a namespace."""
        return all(pattern.fullmatch(namespace) for pattern in self.namespaces)

    def asks_for_table(self, name: str) -> bool:
        """Return whether the statement may need a table or view of a name."""
        return all(pattern.fullmatch(name) for pattern in self.tables)


def mentions(sql: str, catalogs: Iterable[str]) -> list[Mention]:
    """Return the views of catalogs' `information_schema` that a statement reads.

    Args:
        sql: the statement.
        catalogs: the catalogs' names, which the statement may leave out.
    """
    if NAME not in sql.lower():
        return []
    try:
        tree = sqlglot.parse_one(sql, dialect=DIALECT)
    except SqlglotError:
        return []
    columns = _columns(tree)
    names = {name.lower() for name in catalogs}
    tables = (table for table in tree.find_all(exp.Table) if _is_in_schema(table, names))
    return sorted((_mention(table, columns) for table in tables), key=lambda mention: mention.start)


def with_views(sql: str, views: Iterable[tuple[Mention, str]]) -> str:
    """Return a statement that reads temporary views instead.

    Args:
        sql: the statement.
        views: what `mentions` returned, in its order, each with the name of a temporary view.
    """
    for mention, name in reversed(list(views)):
        # Columns may be qualified with the name of the view.
        alias = "" if mention.alias else f" as {quote(mention.view)}"
        sql = f"{sql[: mention.start]}{quote(name)}{alias}{sql[mention.end :]}"
    return sql


def _is_in_schema(table: exp.Table, catalogs: Collection[str]) -> bool:
    *database, schema, _ = ["", *(part.name.lower() for part in table.parts)][-3:]
    return schema == NAME and all(part in catalogs for part in database if part)


def _columns(tree: exp.Expr) -> frozenset[str] | None:
    for star in tree.find_all(exp.Star):
        if not isinstance(star.parent, exp.Count):
            return None
    return frozenset(column.name.lower() for column in tree.find_all(exp.Column))


def _mention(table: exp.Table, columns: frozenset[str] | None) -> Mention:
    first, last = table.parts[0], table.parts[-1]
    restrictions: dict[str, list[re.Pattern[str]]] = {}
    for name, pattern in _restrictions(table):
        restrictions.setdefault(name, []).append(pattern)
    view = table.name.lower()
    namespace_column = "schema_name" if view == SCHEMATA else "table_schema"
    return Mention(
        first.name.lower() if len(table.parts) > 2 else None,
        view,
        int(first.meta["start"]),
        int(last.meta["end"]) + 1,
        bool(table.alias),
        columns,
        tuple(restrictions.get(namespace_column, [])),
        tuple(restrictions.get("table_name", [])),
    )


def _restrictions(table: exp.Table) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Iterate over columns of a table and patterns that `where` requires their values to match.

    The patterns ignore case, so they may match more values than the conditions.
    """
    select = table.find_ancestor(exp.Select)
    where = select.args.get("where") if select is not None else None
    if select is None or where is None:
        return
    is_alone = not select.args.get("joins") and not select.args.get("laterals")
    tree = where.this.unnest()
    for condition in tree.flatten() if isinstance(tree, exp.And) else [tree]:
        column = _column(condition.this)
        if column is None or column.table.lower() not in (
            {"", table.alias_or_name.lower()} if is_alone else {table.alias_or_name.lower()}
        ):
            continue
        if (pattern := _pattern(condition)) is not None:
            yield column.name.lower(), re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _column(value: exp.Expr) -> exp.Column | None:
    while isinstance(value, exp.Lower | exp.Upper | exp.Paren):
        value = value.this
    return value if isinstance(value, exp.Column) else None


def _pattern(condition: exp.Expr) -> str | None:
    """Return the regular expression of the values that a condition accepts; None if unknown."""
    if any(value for name, value in condition.args.items() if name not in OPERANDS):
        return None  # such as `negate`, by which sqlglot 30 marks `not like`
    if isinstance(condition, exp.In):
        texts = [_text(value) for value in condition.expressions]
        if not texts or None in texts:
            return None
        return "|".join(re.escape(str(text)) for text in texts)
    text = _text(condition.args.get("expression"))
    if text is None:
        return None
    if isinstance(condition, exp.EQ):
        return re.escape(text)
    if isinstance(condition, exp.Like | exp.ILike) and "\\" not in text:
        wildcards: Mapping[str, str] = {"%": ".*", "_": "."}
        return "".join(wildcards.get(character, re.escape(character)) for character in text)
    return None


def _text(value: exp.Expr | None) -> str | None:
    while isinstance(value, exp.Lower | exp.Upper | exp.Paren):
        value = value.this
    return value.name if isinstance(value, exp.Literal) and value.is_string else None
