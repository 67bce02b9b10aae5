"""Numbers in JSON whose exponents are too large for Spark's decimals.

Spark writes all digits of such a number before it refuses it: of `1e1000000000`, for hours.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.sql.quoting import literal
from dbt.adapters.iceberg_stream.stream.sources.source import BAD

if TYPE_CHECKING:
    from sqlglot.exp import DataType

DECIMALS = re.compile(r"\b(decimal|dec|numeric)\b", re.IGNORECASE)
# The end of a number that no column can take.
HUGE = literal(r"[0-9.][eE][+-]?0*[1-9][0-9]{4,}")
ESCAPE, TEXT = literal(r"\\."), literal(r'"[^"]*"')
NO_JSON = "'{'"
CORRUPT = f"map('columnNameOfCorruptRecord', {literal(BAD)})"


def has_decimals(columns: str) -> bool:
    """Return whether there may be decimals among columns.

    Args:
        columns: their DDL.
    """
    return DECIMALS.search(columns) is not None


def parseable_sql(text: str, columns: str) -> str:
    """Return SQL of a JSON text, which is replaced by invalid JSON if it has a huge number.

    Args:
        text: SQL of the JSON.
        columns: DDL of the columns that it is parsed to, or their struct.
    """
    if not has_decimals(columns):
        return text
    # Strings in the JSON may look like such a number, too.
    numbers = f"regexp_replace(regexp_replace({text}, {ESCAPE}, ''), {TEXT}, '') rlike {HUGE}"
    # Spark also reads decimals from strings. Invalid JSON is in the column of corrupt records.
    if (texts := _decimals_as_texts(columns)) is not None:
        decimals = f"to_json(from_json({text}, {literal(texts)}, {CORRUPT}))"
        numbers = f"({numbers} or coalesce({decimals} rlike {HUGE}, true))"
    return f"if({text} rlike {HUGE} and {numbers}, {NO_JSON}, {text})"


def _decimals_as_texts(columns: str) -> str | None:
    """Return a struct of the columns that have decimals, with strings in place of decimals.

    None if there are no decimals, or the columns cannot be parsed here.
    """
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    is_struct = columns[:7].lower() == "struct<"
    try:
        struct = exp.DataType.build(columns if is_struct else f"struct<{columns}>", dialect="spark")
    except SqlglotError:
        return None
    if (texts := _texts(struct)) is None:
        return None
    return f"{texts[:-1]}, {BAD}: string>"


def _texts(kind: DataType) -> str | None:
    """Return a type with only its decimals, as strings; None if it has none."""
    from sqlglot import exp

    if kind.is_type("decimal"):
        return "string"
    if kind.is_type("array"):
        items = _texts(kind.expressions[0])
        return items and f"array<{items}>"
    if kind.is_type("map"):
        values = _texts(kind.expressions[1])
        return values and f"map<string, {values}>"
    if not kind.is_type("struct"):
        return None
    fields = [
        f"{exp.to_identifier(field.name, quoted=True).sql('spark')}: {texts}"
        for field in kind.expressions
        if (texts := _texts(field.args["kind"]))
    ]
    return f"struct<{', '.join(fields)}>" if fields else None
