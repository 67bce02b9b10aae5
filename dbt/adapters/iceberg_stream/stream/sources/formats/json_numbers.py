"""Numbers in JSON that Spark's parser must not see.

Of a decimal with a huge exponent, such as `1e1000000000`, Spark writes all digits before it refuses
it, for hours. Any number in the place of a time it takes for seconds since 1970, without a check of
the range; most programs write milliseconds or microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
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
# A string in JSON that may be base64 as well as digits, and a value in base64.
MAYBE_BYTES = literal(r'"[0-9+][0-9+eE]{3,}"|\\u00')
BYTES = literal(
    r'[:\[,]"(?=[^"])(?:[\w+/]{4})*(?:[\w+/]{2}==|[\w+/]{3}=)?"[,}\]]'.replace(r"\w", "A-Za-z0-9")
)
# A number that may have more decimals than a column, of JSON; and its text, of JSON with values as
# they are.
MAYBE_LONGER = r"\.[0-9]{{{}}}|[0-9]\.?[eE]-|\\u00"
DECIMAL = literal(r'[:\[,]"?([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)"?(?=[,}\]])')
# The places of a number's decimals: those of its fraction, or of zeros before the point, and those
# of its exponent.
FRACTION = f"regexp_extract(x, {literal('^[^eE]*[.]([0-9]*[1-9])')}, 1)"
ZEROS = f"regexp_extract(x, {literal('(0*)(?:[.]0*)?(?:[eE].*)?$')}, 1)"
EXPONENT = f"coalesce(try_cast(regexp_extract(x, {literal('[eE](.+)$')}, 1) as int), 0)"
LONGER = (
    f"x -> x rlike {literal('^[^eE]*[1-9]')} and "
    f"if({FRACTION} <> '', length({FRACTION}), -length({ZEROS})) - {EXPONENT}"
)
ESCAPE, TEXT = literal(r"\\."), literal(r'"[^"]*"')
NO_RECORD = "does not fit the source's `columns`"
OF_TIME = (
    "has a number for a time. Declare the column as bigint, and convert it in the query with "
    "timestamp_micros or timestamp_millis"
)
OF_BYTES = (
    "has a text for a decimal that may be a number in base64, of unknown scale. Set the "
    "connector's decimal.handling.mode to double; or to string, declare the column as string, and "
    "cast it in the query"
)
OF_SCALE = (
    "has a number with more decimals than its column. Declare the column with a larger scale, and "
    "round it in the query"
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


def parseable_sql(text: str, columns: str, exact: bool = False) -> str:
    """Return SQL of a JSON text, which is replaced by invalid JSON if it has such a number.

    Args:
        text: SQL of the JSON.
        columns: DDL of the columns that it is parsed to, or their struct.
        exact: whether decimals are those of a database: neither rounded nor maybe bytes.
    """
    refused = _refused(text, columns, exact)
    conditions = [f"{own.suspect} and {own.condition}" for own in refused]
    if DECIMALS.search(columns):
        conditions.append(f"{text} rlike {HUGE} and {_has_huge_decimals(text, columns)}")
    for condition in conditions:
        text = f"if({condition}, {NO_JSON}, {text})"
    return text


def unreadable_reasons(
    text: str, columns: str, condition: str, exact: bool = False
) -> dict[str, str]:
    """Return why JSON cannot be read, by SQL conditions.

    Args:
        text: SQL of the JSON.
        columns: as for `parseable_sql`.
        condition: SQL condition: the JSON cannot be read.
        exact: as for `parseable_sql`.
    """
    refused = _refused(text, columns, exact)
    reasons = {f"({condition}) and {own.condition}": own.why for own in refused}
    return reasons | {condition: NO_RECORD}


@dataclass(frozen=True)
class _Refused:
    """Values for which columns have no values.

    Attributes:
        suspect: SQL condition: the JSON may have some; cheaper than the other.
        condition: SQL condition: it has some, and cannot be read.
        why: why it cannot.
    """

    suspect: str
    condition: str
    why: str


def _refused(text: str, columns: str, exact: bool) -> Iterator[_Refused]:
    """Yield which times and decimals of JSON are refused."""
    if TIMES.search(columns) and (times := _values(text, columns, _is_time)):
        yield _Refused("true", f"coalesce({times} rlike {NUMBER}, false)", OF_TIME)
    if not exact or not DECIMALS.search(columns):
        return
    # A variant is a number or a text, as it is in the JSON. Of a text, Spark makes a double first.
    if decimals := _values(text, columns, _is_decimal, "variant"):
        suspect = f"{text} rlike {MAYBE_BYTES}"
        yield _Refused(suspect, f"coalesce({decimals} rlike {BYTES}, false)", OF_BYTES)
    for scale in _scales(columns):
        numbers = _values(text, columns, partial(_has_scale, scale=scale), "variant")
        is_longer = f"exists(regexp_extract_all({numbers}, {DECIMAL}, 1), {LONGER} > {scale})"
        suspect = f"{text} rlike {literal(MAYBE_LONGER.format(scale + 1))}"
        yield _Refused(suspect, f"coalesce({is_longer}, false)", OF_SCALE)


def _has_huge_decimals(text: str, columns: str) -> str:
    # Strings in the JSON may look like such a number, too.
    numbers = f"regexp_replace(regexp_replace({text}, {ESCAPE}, ''), {TEXT}, '') rlike {HUGE}"
    # Spark also reads decimals from strings. Invalid JSON has no values.
    if (decimals := _values(text, columns, _is_decimal)) is None:
        return numbers
    return f"({numbers} or coalesce({decimals} rlike {HUGE}, true))"


def _is_decimal(kind: DataType) -> bool:
    return kind.is_type("decimal")


def _is_time(kind: DataType) -> bool:
    return kind.this in kind.TEMPORAL_TYPES


def _has_scale(kind: DataType, scale: int) -> bool:
    return _is_decimal(kind) and _scale(kind) == scale


def _scale(kind: DataType) -> int:
    return int(kind.expressions[1].name) if len(kind.expressions) > 1 else 0


def _scales(columns: str) -> list[int]:
    """Return the scales of decimals among columns."""
    from sqlglot import exp

    struct = _struct(columns)
    kinds = () if struct is None else struct.find_all(exp.DataType)
    return sorted({_scale(kind) for kind in kinds if _is_decimal(kind)})


@lru_cache(maxsize=64)
def _struct(columns: str) -> DataType | None:
    """Return the type of a record; None if it cannot be parsed here."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    is_struct = columns[:7].lower() == "struct<"
    try:
        return exp.DataType.build(columns if is_struct else f"struct<{columns}>", dialect="spark")
    except SqlglotError:
        return None


def _values(
    text: str, columns: str, is_wanted: Callable[[DataType], bool], read_as: str = "string"
) -> str | None:
    """Return SQL of the JSON of those values that go to columns of some types.

    Args:
        text: SQL of the JSON.
        columns: as for `parseable_sql`.
        is_wanted: returns whether values of a type are wanted.
        read_as: type as which they are read.

    Returns:
        The SQL; None if no column has such a type, or the columns cannot be parsed here.
    """
    struct = _struct(columns)
    wanted = None if struct is None else _only(struct, is_wanted, read_as)
    if wanted is None:
        return None
    return f"to_json(from_json({text}, {literal(wanted)}, {MODE}))"


def _only(kind: DataType, is_wanted: Callable[[DataType], bool], read_as: str) -> str | None:
    """Return a type with only its wanted parts, as another type; None if it has none."""
    from sqlglot import exp

    if is_wanted(kind):
        return read_as
    if kind.is_type("array"):
        items = _only(kind.expressions[0], is_wanted, read_as)
        return items and f"array<{items}>"
    if kind.is_type("map"):
        values = _only(kind.expressions[1], is_wanted, read_as)
        return values and f"map<string, {values}>"
    if not kind.is_type("struct"):
        return None
    fields = [
        f"{exp.to_identifier(field.name, quoted=True).sql('spark')}: {part}"
        for field in kind.expressions
        if (part := _only(field.args["kind"], is_wanted, read_as))
    ]
    return f"struct<{', '.join(fields)}>" if fields else None
