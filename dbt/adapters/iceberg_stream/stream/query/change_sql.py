"""Insert the source's `__stream` column into the text of a model's query.

The rest of the user's text stays as it is: SQL that a parser generates changes some functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot.errors import TokenError

from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.select_text import QueryText, SelectText
from dbt.adapters.iceberg_stream.stream.sources.source import CHANGE

UNQUOTED_NAME = re.compile(r"[A-Za-z_]\w*")
# A replacement of a part of the text: its begin, its end, and the new text.
Edit = tuple[int, int, str]


@dataclass(frozen=True)
class SelectStep:
    """A select that passes the column on.

    Attributes:
        alias: the select's name for the relation that has the column.
        of_rows: whether rows that its filter leaves out become deletes.
        covers: for each of its columns, whether it is a star that includes the column.
        name: of the select's common table expression; empty for a subquery or the whole query.
    """

    alias: str
    of_rows: bool
    covers: tuple[bool, ...]
    name: str


def change_of_row(alias: str, condition: str | None) -> str:
    """Return SQL for the change of a row; it becomes a delete if the row fails a condition.

    Args:
        alias: of the relation that has the change; may be empty.
        condition: SQL of the condition; None for no condition.
    """
    column = f"{quote(alias)}.{quote(CHANGE)}" if alias else quote(CHANGE)
    if condition is None:
        return column
    return (
        f"named_struct('major', {column}.major, 'minor', {column}.minor, 'deleted', "
        f"{column}.deleted or not coalesce({condition}\n, false), "
        f"'truncated', {column}.truncated)"
    )


def insert_change_column(sql: str, view: str, steps: Sequence[SelectStep]) -> str | None:
    """Return the query's text with the column in each select between the view and the result.

    Args:
        sql: the user's query.
        view: the name that the source has in it.
        steps: the selects that pass the column on, beginning with the one that reads the view.

    Returns:
        The text; None if a select cannot be located in it.
    """
    try:
        query = QueryText(sql)
    except TokenError:
        return None
    number = query.reader(view)
    edits: list[Edit] = []
    for step in steps:
        select = None if number is None else query.select(number)
        if number is None or select is None or len(select.columns) != len(step.covers):
            return None
        edits += _edits(query, select, step)
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
    return f"{alias if UNQUOTED_NAME.fullmatch(alias) else quote(alias)}.{CHANGE}"


def _edits(query: QueryText, select: SelectText, step: SelectStep) -> Iterator[Edit]:
    end = select.columns[-1][1]
    if not step.of_rows:
        if not any(step.covers):
            yield end, end, f", {_qualified(step.alias)}"
        return
    for span, covers in zip(select.columns, step.covers, strict=True):
        if covers:
            text = query.text(span)
            star = f"{text[:-1]}, {CHANGE})" if text.endswith(")") else f"{text} except ({CHANGE})"
            yield *span, star
    condition = None
    if select.where is not None:
        condition = query.text(select.where[1:])
        yield select.where[0], select.where[2], ""
    yield end, end, f", {change_of_row(step.alias, condition)} as {CHANGE}"
