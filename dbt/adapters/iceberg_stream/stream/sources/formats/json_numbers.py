"""Numbers in JSON that Spark's parser must not see.

Of a decimal with a huge exponent, such as `1e1000000000`, Spark writes all digits before it refuses
it, for hours. Any number in the place of a time it takes for seconds since 1970, without a check of
the range; most programs write milliseconds or microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.sql.quoting import literal
from dbt.adapters.iceberg_stream.stream.sources.source import BAD

if TYPE_CHECKING:
    from sqlglot.exp import DataType

DECIMALS = re.compile(r"\b(decimal|dec|numeric)\b", re.IGNORECASE)
# The end of a number that no column can take.
TIMES = re.compile(r"\b(timestamp|date)", re.IGNORECASE)
HUGE = literal(r"[0-9.][eE][+-]?0*[1-9][0-9]{4,}")
# A member or item that is a number, of JSON whose numbers were read as texts.
NUMBER = literal(r'[:\[,]"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"[,}\]]')
ESCAPE, TEXT = literal(r"\\."), literal(r'"[^"]*"')
NO_RECORD = "does not fit the source's `columns`"
OF_TIME = (
    "has a number for a time. Declare the column as bigint, and convert it in the query with "
    "timestamp_micros or timestamp_millis"
)
NO_JSON = "'{'"
# Limits of Spark's parser, which PyArrow does not have: a record beyond them would be bad, also if
# only members that are not read are.
LIMITS = {name: 2**31 - 1 for name in ("maxNumLen", "maxNestingDepth", "maxStringLen")}
MODE = (
    f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{BAD}', "
    + ", ".join(f"'{name}', '{limit}'" for name, limit in LIMITS.items())
    + ")"
)


def has_numbers(columns: str) -> bool:
    """Return whether there may be decimals or times among columns.

    Args:
        columns: their DDL.
    """
    return DECIMALS.search(columns) is not None or TIMES.search(columns) is not None


def parseable_sql(text: str, columns: str) -> str:
    """Return SQL of a JSON text, which is replaced by invalid JSON if it has such a number.

    Args:
        text: SQL of the JSON.
        columns: DDL of the columns that it is parsed to, or their struct.
    """
    conditions = []
    if DECIMALS.search(columns):
        conditions.append(f"{text} rlike {HUGE} and {_has_huge_decimals(text, columns)}")
    if condition := _has_number_for_time(text, columns):
        conditions.append(condition)
    for condition in conditions:
        text = f"if({condition}, {NO_JSON}, {text})"
    return text


def unreadable_reasons(text: str, columns: str, condition: str) -> dict[str, str]:
    """Return why JSON cannot be read, by SQL conditions.

    Args:
        text: SQL of the JSON.
        columns: as for `parseable_sql`.
        condition: SQL condition: the JSON cannot be read.
    """
    of_time = _has_number_for_time(text, columns)
    return ({f"({condition}) and {of_time}": OF_TIME} if of_time else {}) | {condition: NO_RECORD}


def _has_number_for_time(text: str, columns: str) -> str | None:
    """Return SQL: whether JSON has a number in the place of a time; None if there are no times."""
    if not TIMES.search(columns) or (times := _as_texts(columns, _is_time)) is None:
        return None
    read = f"to_json(from_json({text}, {literal(times)}, {MODE}))"
    return f"coalesce({read} rlike {NUMBER}, false)"


def _has_huge_decimals(text: str, columns: str) -> str:
    # Strings in the JSON may look like such a number, too.
    numbers = f"regexp_replace(regexp_replace({text}, {ESCAPE}, ''), {TEXT}, '') rlike {HUGE}"
    # Spark also reads decimals from strings. Invalid JSON is in the column of corrupt records.
    if (texts := _as_texts(columns, _is_decimal)) is None:
        return numbers
    decimals = f"to_json(from_json({text}, {literal(texts)}, {MODE}))"
    return f"({numbers} or coalesce({decimals} rlike {HUGE}, true))"


def _is_decimal(kind: DataType) -> bool:
    return kind.is_type("decimal")


def _is_time(kind: DataType) -> bool:
    return kind.this in kind.TEMPORAL_TYPES


def _as_texts(columns: str, is_wanted: Callable[[DataType], bool]) -> str | None:
    """Return a struct of the columns that have some types, with strings in place of these types.

    None if no column has any, or the columns cannot be parsed here.
    """
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    is_struct = columns[:7].lower() == "struct<"
    try:
        struct = exp.DataType.build(columns if is_struct else f"struct<{columns}>", dialect="spark")
    except SqlglotError:
        return None
    if (texts := _texts(struct, is_wanted)) is None:
        return None
    return f"{texts[:-1]}, {BAD}: string>"


def _texts(kind: DataType, is_wanted: Callable[[DataType], bool]) -> str | None:
    """Return a type with only its wanted parts, as strings; None if it has none."""
    from sqlglot import exp

    if is_wanted(kind):
        return "string"
    if kind.is_type("array"):
        items = _texts(kind.expressions[0], is_wanted)
        return items and f"array<{items}>"
    if kind.is_type("map"):
        values = _texts(kind.expressions[1], is_wanted)
        return values and f"map<string, {values}>"
    if not kind.is_type("struct"):
        return None
    fields = [
        f"{exp.to_identifier(field.name, quoted=True).sql('spark')}: {texts}"
        for field in kind.expressions
        if (texts := _texts(field.args["kind"], is_wanted))
    ]
    return f"struct<{', '.join(fields)}>" if fields else None
