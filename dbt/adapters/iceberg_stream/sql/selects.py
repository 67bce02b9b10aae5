"""A query as steps on a frame.

Spark looks at these once. Of a text that names frames it makes views, and looks at each of them
before it looks at the text: a third of what a small batch of a stream costs the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbt.adapters.iceberg_stream.sql.select_text import QueryText, SelectText

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

# What a select may have.
PARTS = {"expressions", "from_", "where", "with_"}
# A stream's query is the same for all batches.
KNOWN_TEXTS = 100
# What Spark calls a subquery that has no name.
UNNAMED = "__auto_generated_subquery_name"


@dataclass(frozen=True)
class Step:
    """One select.

    Attributes:
        alias: what it calls the rows that it reads; empty for a subquery without a name.
        where: which of them it takes; None for all.
        columns: what it makes of them.
    """

    alias: str
    where: str | None
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Selects:
    """Selects that read one relation, each the rows of the one before it."""

    relation: str
    steps: tuple[Step, ...]

    def over(self, frame: DataFrame) -> DataFrame:
        """The rows, where the relation is a frame."""
        for step in self.steps:
            frame = frame.alias(step.alias or UNNAMED)
            frame = frame if step.where is None else frame.where(step.where)
            frame = frame.selectExpr(*step.columns)
        return frame


@lru_cache(KNOWN_TEXTS)
def plain_selects(sql: str) -> Selects | None:
    """The selects that a query is; None if it is more: joins, groups, subqueries, order, …"""
    try:
        tree, text = sqlglot.parse_one(sql, dialect="spark"), QueryText(sql)
    except SqlglotError:
        return None
    steps: list[Step] = []
    # Each is read once: what nobody reads would not be looked at.
    parts = {cte.alias.lower(): cte for cte in tree.find_all(exp.CTE)}
    count = sum(1 for _ in tree.find_all(exp.Query)) - sum(1 for _ in tree.find_all(exp.Subquery))
    source: exp.Expression = tree
    begin: int | None = 0
    while True:
        if not isinstance(source, exp.Select) or _more_than(source, PARTS) or not _reads(source):
            return None
        number = None if begin is None else text.first_select(begin)
        found = None if number is None else text.select(number)
        if begin is None or found is None or len(found.columns) != len(source.expressions):
            return None
        steps.append(_step(source, text, found))
        read = source.args["from_"].this
        if isinstance(read, exp.Subquery):
            source, begin = read.this, found.source + 1
        elif _more_than(read, {"this", "alias"}):
            return None
        elif read.name.lower() in parts:
            source = parts.pop(read.name.lower()).this
            begin = text.part(read.name)
        elif parts or len(steps) != count:
            return None
        else:
            return Selects(read.name, tuple(reversed(steps)))


def _reads(select: exp.Select) -> bool:
    """Whether a select reads one relation whose columns keep their names."""
    origin = select.args.get("from_")
    if origin is None or not isinstance(origin.this, exp.Table | exp.Subquery):
        return False
    if isinstance(origin.this, exp.Subquery) and _more_than(origin.this, {"this", "alias"}):
        return False
    parts = select.args.get("with_")
    named = [origin.this, *(parts.expressions if parts else [])]
    return not any(one.args["alias"].columns for one in named if one.args.get("alias"))


def _more_than(node: exp.Expression, parts: set[str]) -> bool:
    return any(value for name, value in node.args.items() if name not in parts)


def _step(select: exp.Select, text: QueryText, found: SelectText) -> Step:
    where = None if found.where is None else text.text(found.where[1:])
    columns = tuple(text.text(span) for span in found.columns)
    return Step(select.args["from_"].this.alias_or_name, where, columns)
