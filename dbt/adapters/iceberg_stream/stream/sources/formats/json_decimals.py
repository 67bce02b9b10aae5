"""Numbers in JSON whose exponents are too large for Spark's decimals.

Spark writes all digits of such a number before it refuses it: of `1e1000000000`, for hours.
"""

from __future__ import annotations

import re

from dbt.adapters.iceberg_stream.sql.quoting import literal

DECIMALS = re.compile(r"\b(decimal|dec|numeric)\b", re.IGNORECASE)
# The end of a number that no column can take.
HUGE = literal(r"[0-9.][eE][+-]?0*[1-9][0-9]{4,}")
ESCAPE, TEXT = literal(r"\\."), literal(r'"[^"]*"')
NO_JSON = "'{'"


def has_decimals(columns: str) -> bool:
    """Return whether there are decimals among columns.

    Args:
        columns: their DDL.
    """
    return DECIMALS.search(columns) is not None


def parseable_sql(text: str, columns: str) -> str:
    """Return SQL of JSON; of text that is no JSON, if it has a number that Spark would not end.

    Args:
        text: SQL of the JSON.
        columns: DDL of the columns that it is parsed to.
    """
    if not has_decimals(columns):
        return text
    # Texts in the JSON may look like such a number, too.
    numbers = f"regexp_replace(regexp_replace({text}, {ESCAPE}, ''), {TEXT}, '')"
    return f"if({text} rlike {HUGE} and {numbers} rlike {HUGE}, {NO_JSON}, {text})"
