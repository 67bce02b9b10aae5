"""Read the records of JSON files, of which some columns are required."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.sql.quoting import literal, quote
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import bad_columns
from dbt.adapters.iceberg_stream.stream.sources.formats.json_numbers import (
    LIMITS,
    parseable_sql,
    unreadable_reasons,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.row_images import (
    has_members,
    member_names,
    missing_keys,
    values_of,
)
from dbt.adapters.iceberg_stream.stream.sources.source import BAD

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

# With these options a record is not a line of UTF-8: only Spark's JSON reader finds its end.
NOT_LINES = ("multiline", "encoding", "charset")
FILE = "_metadata"


def are_lines(options: Mapping[str, str]) -> bool:
    """Return whether each line of a file is a record or a list of records.

    Args:
        options: of Spark's reader.
    """
    return not any(name.lower() in NOT_LINES for name in options)


def json_records(
    spark: SparkSession,
    paths: list[str],
    columns: str,
    names: Sequence[str],
    required: Sequence[str],
    options: Mapping[str, str],
) -> DataFrame:
    """Read records, and check in their text that required keys are present.

    Spark's JSON reader does not distinguish an absent key from a null.

    Args:
        spark: the Spark session.
        paths: of the files, for Spark.
        columns: of the records, as Spark's DDL.
        names: of the same columns.
        required: names that a record must have; the value may be null.
        options: of Spark's reader.

    Returns:
        A frame with the columns, BAD, REASON and `_metadata`.
    """
    lines = spark.read.options(**options).text(paths).selectExpr("value", FILE)
    elements = "from_json(value, 'array<string>')"
    lines = lines.where("trim(value) <> ''").selectExpr(
        f"explode(if(ltrim(value) like '[%', coalesce({elements}, array(value)), array(value)))"
        " as v",
        FILE,
    )
    parsing = {**LIMITS, **options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
    settings = ", ".join(f"{literal(k)}, {literal(str(v))}" for k, v in parsing.items())
    schema, text = literal(f"{columns}, {BAD} string"), parseable_sql("v", columns)
    parsed = lines.selectExpr("v", FILE, f"from_json({text}, {schema}, map({settings})) as r")
    reasons = unreadable_reasons("v", columns, f"r is null or r.{BAD} is not null")
    has_keys = has_members(member_names("v"), values_of("r", required))
    reasons |= dict(missing_keys("true", has_keys))
    row = [f"r.{quote(name)} as {quote(name)}" for name in names]
    return parsed.selectExpr(*row, *bad_columns("v", reasons), FILE)
