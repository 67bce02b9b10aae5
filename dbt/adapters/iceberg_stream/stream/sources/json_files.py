"""Records of JSON files, of which some columns must be there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.catalog.table_config import literal
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.sources.envelopes import NO_RECORD, bad_columns
from dbt.adapters.iceberg_stream.stream.sources.source import BAD

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

# With these a record is not a line of UTF-8, and only Spark's reader of JSON finds where it ends.
NOT_LINES = ("multiline", "encoding", "charset")
FILE = "_metadata"


def are_lines(options: Mapping[str, str]) -> bool:
    """Whether each line is a record, or a list of them."""
    return not any(name.lower() in NOT_LINES for name in options)


def json_records(
    spark: SparkSession,
    paths: list[str],
    columns: str,
    names: Sequence[str],
    required: Sequence[str],
    options: Mapping[str, str],
) -> DataFrame:
    """Columns of the records, `__bad`, `__reason` and `_metadata` of their files.

    Spark's reader of JSON does not tell a key that is absent from one that is null; the text does.

    Args:
        columns: of the records, as Spark's DDL; `names` are theirs.
        required: those of the names that a record must have, if only as null.
        options: of Spark's reader.
    """
    lines = spark.read.options(**options).text(paths).selectExpr("value", FILE)
    listed = "from_json(value, 'array<string>')"
    lines = lines.where("trim(value) <> ''").selectExpr(
        f"explode(if(ltrim(value) like '[%', coalesce({listed}, array(value)), array(value))) as v",
        FILE,
    )
    parsing = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
    settings = ", ".join(f"{literal(k)}, {literal(v)}" for k, v in parsing.items())
    schema = literal(f"{columns}, {BAD} string")
    parsed = lines.selectExpr("v", FILE, f"from_json(v, {schema}, map({settings})) as r")
    reasons = {f"r is null or r.{BAD} is not null": NO_RECORD}
    for name in required:
        there = f"array_contains(json_object_keys(v), {literal(name)})"
        reasons[f"not {there}"] = f"lacks the key `{name}`"
    row = [f"r.{quote(name)} as {quote(name)}" for name in names]
    return parsed.selectExpr(*row, *bad_columns("v", reasons), FILE)
