"""Types of columns in SQL."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.stream.sources.type_sql import type_sql

NAME = t.StructType([t.StructField("first-name", t.StringType())])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (t.LongType(), "bigint"),
        (t.DecimalType(10, 2), "decimal(10,2)"),
        (NAME, "struct<`first-name`: string>"),
        (
            t.StructType([t.StructField("a`b", NAME)]),
            "struct<`a``b`: struct<`first-name`: string>>",
        ),
        (t.ArrayType(NAME), "array<struct<`first-name`: string>>"),
        (t.MapType(t.StringType(), NAME), "map<string, struct<`first-name`: string>>"),
    ],
)
def test_names_of_fields_are_quoted(kind: t.DataType, expected: str) -> None:
    assert type_sql(kind) == expected
