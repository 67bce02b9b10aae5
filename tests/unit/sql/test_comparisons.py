"""Expressions that Spark can compare. That they are equal for equal maps, `test_snapshots.py` shows."""

from __future__ import annotations

import pytest
import sqlglot

from dbt.adapters.iceberg_stream.sql.comparisons import comparable_sql, is_comparable


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("int", "t.`c`"),
        ("struct<a:array<int>,b:string collate UTF8_LCASE>", "t.`c`"),
        (
            "map<string,int>",
            "array_sort(transform(map_entries(t.`c`), dbt_item_0 -> "
            "struct(dbt_item_0.key, dbt_item_0.value as value)))",
        ),
        ("variant", "struct(to_json(t.`c`), schema_of_variant(t.`c`))"),
        (
            "array<struct<a:decimal(3,2),b:c:map<int,int>>>",
            "transform(t.`c`, dbt_item_0 -> if(dbt_item_0 is null, null, named_struct("
            "'a', dbt_item_0.`a`, 'b:c', array_sort(transform(map_entries(dbt_item_0.`b:c`), "
            "dbt_item_1 -> struct(dbt_item_1.key, dbt_item_1.value as value))))))",
        ),
        (
            "struct<variant_of:int>",
            "if(t.`c` is null, null, named_struct('variant_of', t.`c`.`variant_of`))",
        ),
    ],
)
def test_expressions(kind: str, expected: str) -> None:
    sql = comparable_sql("t.`c`", kind)
    assert sql == expected
    sqlglot.parse_one(f"select {sql}", dialect="spark")


def test_what_spark_compares() -> None:
    assert is_comparable("array<struct<a:int>>")
    assert not is_comparable("array<map<int,int>>")
