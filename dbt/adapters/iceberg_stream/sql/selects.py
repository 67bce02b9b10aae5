"""Converts a query to operations on a data frame.

Spark analyzes operations once. For SQL text that refers to data frames it creates views and
analyzes each of them before the text, which takes a third of a small stream batch's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbt.adapters.iceberg_stream.sql.dialect import Spark
from dbt.adapters.iceberg_stream.sql.select_text import QueryText, SelectText

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

# The clauses that a select may have.
PARTS = {"expressions", "from_", "where", "with_"}
# Parsed queries that are cached: a stream's query is the same for all batches.
CACHED_QUERIES = 100
# Spark's name of a subquery without an alias.
UNNAMED = "__auto_generated_subquery_name"


@dataclass(frozen=True)
class Step:
    """One select.

    Attributes:
        alias: the alias of its source; empty for a subquery without one.
        where: its condition; None if it has none.
        columns: its expressions.
    """

    alias: str
    where: str | None
    columns: tuple[str, ...]


@dataclass(frozen=True)
class SelectChain:
    """Nested selects: the first reads a relation, each other one the rows of the one before.

    Attributes:
        relation: the relation's name.
        steps: the selects, innermost first.
    """

    relation: str
    steps: tuple[Step, ...]

    def over(self, frame: DataFrame) -> DataFrame:
        """Apply the selects to a data frame.

        Args:
            frame: the rows of the relation.
        """
        for step in self.steps:
            frame = frame.alias(step.alias or UNNAMED)
            frame = frame if step.where is None else frame.where(step.where)
            frame = frame.selectExpr(*step.columns)
        return frame


@lru_cache(CACHED_QUERIES)
def parse_select_chain(sql: str) -> SelectChain | None:
    """Parse a query that consists of nested selects.

    Args:
        sql: the query.

    Returns:
        The selects; None if the query has joins, groups, subqueries, an order, …
    """
    try:
        tree, text = sqlglot.parse_one(sql, dialect=Spark), QueryText(sql)
    except SqlglotError:
        return None
    steps: list[Step] = []
    # Each expression must be read exactly once: one that is not read would not be checked.
    parts = {cte.alias.lower(): cte for cte in tree.find_all(exp.CTE)}
    count = sum(1 for _ in tree.find_all(exp.Query)) - sum(1 for _ in tree.find_all(exp.Subquery))
    source: exp.Expr = tree
    begin: int | None = 0
    while True:
        if not isinstance(source, exp.Select) or _more_than(source, PARTS) or not _reads(source):
            return None
        number = None if begin is None else text.first_select(begin)
        select_text = None if number is None else text.select(number)
        if (
            begin is None
            or select_text is None
            or len(select_text.columns) != len(source.expressions)
        ):
            return None
        steps.append(_step(source, text, select_text))
        read = source.args["from_"].this
        if isinstance(read, exp.Subquery):
            source, begin = read.this, select_text.source + 1
        elif _more_than(read, {"this", "alias"}):
            return None
        elif read.name.lower() in parts:
            source = parts.pop(read.name.lower()).this
            begin = text.part(read.name)
        elif parts or len(steps) != count:
            return None
        else:
            return SelectChain(read.name, tuple(reversed(steps)))


def _reads(select: exp.Select) -> bool:
    """Return whether a select reads one relation, without renaming its columns."""
    origin = select.args.get("from_")
    if origin is None or not isinstance(origin.this, exp.Table | exp.Subquery):
        return False
    if isinstance(origin.this, exp.Subquery) and _more_than(origin.this, {"this", "alias"}):
        return False
    parts = select.args.get("with_")
    sources = [origin.this, *(parts.expressions if parts else [])]
    return not any(s.args["alias"].columns for s in sources if s.args.get("alias"))


def _more_than(node: exp.Expr, parts: set[str]) -> bool:
    return any(value for name, value in node.args.items() if name not in parts)


def _step(select: exp.Select, text: QueryText, select_text: SelectText) -> Step:
    where = None if select_text.where is None else text.text(select_text.where[1:])
    columns = tuple(text.text(span) for span in select_text.columns)
    return Step(select.args["from_"].this.alias_or_name, where, columns)
