"""Lets a statement name the columns of staged relations as those of the published ones.

`select orders.id from {{ ref('orders') }}` reads `orders__dbt_build_…`, so that relation needs the
alias `orders`. `select '{{ ref('orders') }}' as source`, which macros write, must return `orders`.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlglot
from sqlglot import exp
from sqlglot.dialects import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from dbt.adapters.iceberg_stream.builds.names import (
    ALIAS,
    MARK,
    split_staged,
    without_build,
    without_marks,
)
from dbt.adapters.iceberg_stream.sql.aliases import CHANGES, add_aliases, name_parts
from dbt.adapters.iceberg_stream.sql.queries import DIALECT, INSERT_OPTIONS

# A table is read below one of these, and written or described below others.
READERS = (exp.From, exp.Join, exp.Subquery, exp.Paren)
# Those with a query, and the words that it may begin with.
STATEMENTS = (exp.Query, exp.Create, exp.Insert, exp.Merge, exp.Cache)
QUERIES = (TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.VALUES)
TEXTS = (TokenType.STRING, TokenType.RAW_STRING)


def with_aliases(sql: str) -> str:
    """Return a statement in which staged relations without an alias have their published names.

    Args:
        sql: the statement; it stays as it is if it is not understood.
    """
    if (tree := _parsed(sql)) is None:
        return sql
    tables = [table for table in tree.find_all(exp.Table) if _needs_alias(table)]
    names = {name_parts(table) for table in tables}
    if len({name[-1] for name in names}) < len(names):
        return sql  # `shop.orders` and `web.orders`: only their whole names tell them apart
    return add_aliases(sql, tree, tables, without_build, ALIAS)


def with_published_texts(sql: str) -> str:
    """Return a statement whose string literals have the published names of staged relations.

    Args:
        sql: the statement; it stays as it is if it is not understood.
    """
    tree = _parsed(sql)
    if not isinstance(tree, STATEMENTS):
        return sql  # such as a call, whose texts are arguments
    tokens = Spark().tokenize(sql)
    staged = (split_staged(table.name) for table in tree.find_all(exp.Table))
    builds = {parts[1] for parts in staged if parts is not None}
    for token in reversed(list(_texts_of_query(tokens))):
        start, end = int(token.start), int(token.end) + 1
        sql = f"{sql[:start]}{without_marks(sql[start:end], builds)}{sql[end:]}"
    return sql


def _texts_of_query(tokens: list[Token]) -> Iterator[Token]:
    """Yield the string literals of a query, except those in `identifier('…')`."""
    begin = next((n for n, token in enumerate(tokens) if token.token_type in QUERIES), len(tokens))
    for number in range(begin, len(tokens)):
        token, before = tokens[number], tokens[max(0, number - 2) : number]
        is_name = [each.text.lower() for each in before] == ["identifier", "("]
        if token.token_type in TEXTS and MARK in token.text and not is_name:
            yield token


def _parsed(sql: str) -> exp.Expr | None:
    """Return a statement's syntax tree; None if nothing in it is staged, or sqlglot fails."""
    if MARK not in sql:
        return None
    # sqlglot does not know the options of an insert; the offsets must stay.
    text = INSERT_OPTIONS.sub(lambda m: m[1] + " " * (len(m[0]) - len(m[1])), sql)
    try:
        return sqlglot.parse_one(text, dialect=DIALECT)
    except SqlglotError:
        return None


def _needs_alias(table: exp.Table) -> bool:
    names = name_parts(table)
    has_columns = isinstance(table.parent, READERS + CHANGES)
    return has_columns and not table.alias and without_build(names) != names
