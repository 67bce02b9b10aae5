"""The text of a model's query with the source's `__stream` column among its columns.

What the user has written stays as it is: a parser that rewrites it changes some functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot.errors import TokenError

from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.select_text import QueryText, SelectText
from dbt.adapters.iceberg_stream.stream.sources.source import CHANGE

PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")
# What is to be put in the place of a part of the text: its begin, its end, and the new one.
Edit = tuple[int, int, str]


@dataclass(frozen=True)
class Through:
    """A select that the column goes through.

    Attributes:
        alias: what it calls the rows that have the column.
        of_rows: whether its filter says which changes are deletes.
        covers: which of its columns are a star that brings the column along.
        name: of the part of the query that it is; empty for a subquery or the whole.
    """

    alias: str
    of_rows: bool
    covers: tuple[bool, ...]
    name: str


def change_of_row(alias: str, condition: str | None) -> str:
    """The change of a row: it deletes the row where a condition leaves it out."""
    column = f"{quote(alias)}.{quote(CHANGE)}" if alias else quote(CHANGE)
    if condition is None:
        return column
    return (
        f"named_struct('major', {column}.major, 'minor', {column}.minor, 'deleted', "
        f"{column}.deleted or not coalesce({condition}\n, false), "
        f"'truncated', {column}.truncated)"
    )


def carried_text(sql: str, view: str, steps: Sequence[Through]) -> str | None:
    """The query's text; the steps begin with the select that reads the view.

    None if a select is not found in the text.
    """
    try:
        query = QueryText(sql)
    except TokenError:
        return None
    number = query.reader(view)
    edits: list[Edit] = []
    for step in steps:
        found = None if number is None else query.select(number)
        if number is None or found is None or len(found.columns) != len(step.covers):
            return None
        edits += _edits(query, found, step)
        if step.name:
            number = query.reader(step.name)
        else:
            opening = query.opening(number)
            number = None if opening is None else query.around(opening)
    for begin, end, text in sorted(edits, reverse=True):
        sql = f"{sql[:begin]}{text}{sql[end:]}"
    return sql


def _qualified(alias: str) -> str:
    if not alias:
        return CHANGE  # of a subquery without a name
    return f"{alias if PLAIN_NAME.fullmatch(alias) else quote(alias)}.{CHANGE}"


def _edits(query: QueryText, found: SelectText, step: Through) -> Iterator[Edit]:
    behind = found.columns[-1][1]
    if not step.of_rows:
        if not any(step.covers):
            yield behind, behind, f", {_qualified(step.alias)}"
        return
    for span, covers in zip(found.columns, step.covers, strict=True):
        if covers:
            text = query.text(span)
            more = f"{text[:-1]}, {CHANGE})" if text.endswith(")") else f"{text} except ({CHANGE})"
            yield *span, more
    condition = None
    if found.where is not None:
        condition = query.text(found.where[1:])
        yield found.where[0], found.where[2], ""
    yield behind, behind, f", {change_of_row(step.alias, condition)} as {CHANGE}"
