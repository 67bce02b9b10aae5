"""Increments that change nothing in a table that has all rows of its model."""

from __future__ import annotations

from typing import Any

import pytest

from dbt.adapters.iceberg_stream.unchanged.increments import (
    is_repeatable,
    only_restricts,
    overwrites_by_key,
)

# The same name in another catalog is another table.
OWN = {("lake", "s", "t"), ("s", "t")}
CODE = "{{ config(materialized='incremental') }} select id, v from {{ ref('raw') }}"
WHERE = "where id > (select max(id) from {{ this }})"
SQL = "select id, v from s.raw where id > (select max(id) from lake.s.t)"


def increment(code: str) -> str:
    return f"{{% if is_incremental() %}}{code}{{% endif %}}"


@pytest.mark.parametrize(
    ("code", "sql", "expected"),
    [
        (CODE + increment(WHERE), SQL, True),
        (CODE + increment(f"\n-- new rows\n /* only */ {WHERE}"), SQL, True),
        (
            CODE + " where v > {{ var('v', 1) }} " + increment(WHERE.replace("where", "and")),
            SQL,
            True,
        ),
        (CODE, SQL, False),
        (CODE + WHERE, SQL, False),
        # The first build does not load all rows.
        (CODE + increment(WHERE) + "{% if not is_incremental() %}limit 1{% endif %}", SQL, False),
        (
            CODE + f"{{% if is_incremental() %}}{WHERE}{{% else %}}where id < 5{{% endif %}}",
            SQL,
            False,
        ),
        (CODE + f"{{% if not is_incremental() %}}{WHERE}{{% endif %}}", SQL, False),
        (CODE + f"{{% if is_incremental() and true %}}{WHERE}{{% endif %}}", SQL, False),
        (CODE + increment("union all select id, v from {{ this }}"), SQL, False),
        (CODE + increment("where id > 5"), SQL, False),
        # Other code may render another text in the next run.
        (CODE + increment(WHERE) + "{{ run_query('select 1') }}", SQL, False),
        (CODE + increment(WHERE) + "{% set a = adapter %}", SQL, False),
        (CODE + increment(WHERE) + "{{ modules['datetime'] }}", SQL, False),
        (CODE + increment(WHERE) + "{{ model.description }}", SQL, False),
        (CODE + increment(WHERE) + "{{ config.get('meta') }}", SQL, False),
        (CODE + increment(WHERE) + "{{ var('a' ~ 'b') }}", SQL, False),
        (CODE + increment(WHERE) + "{{ var.has_var('b') }}", SQL, False),
        (CODE + increment(WHERE) + "{{ function('plus') }}", SQL, False),
        (CODE + increment(WHERE) + "{{ cents() }}", SQL, False),
        # The condition does not leave out rows one by one.
        (CODE + increment(WHERE), SQL + " limit 1", False),
        (CODE + increment(WHERE), SQL + " group by all", False),
        (CODE + increment(WHERE), SQL.replace("select id", "select distinct id"), False),
        (CODE + increment(WHERE), SQL.replace("id, v", "max(id), 1"), False),
        (CODE + increment(WHERE), SQL.replace("id, v", "row_number() over (order by id)"), False),
        (CODE + increment(WHERE), f"{SQL} or v > 2", False),
        (CODE + increment(WHERE), f"with a as ({SQL}) select * from a", False),
        (CODE + increment(WHERE), f"{SQL} union all {SQL}", False),
        (CODE + increment(WHERE), "select id from s.raw where id > 5", False),
        (CODE + increment(WHERE), SQL.replace("s.raw", "s.t"), False),
        (CODE + increment(WHERE), SQL.replace("lake.s.t", "north.s.t"), False),
        (CODE + increment(WHERE), "not sql (", False),
        ("{% if %}", SQL, False),
    ],
)
def test_only_restricts(code: str, sql: str, expected: bool) -> None:
    assert only_restricts(code, {}, sql, OWN) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% macro cents(v) %}{{ v }} / {{ var('factor') }}{% endmacro %}", True),
        ("{% macro cents(v) %}{{ return(v ~ ' / 100') }}{% endmacro %}", True),
        ("{% macro cents(v) %}{{ run_query('select 1') }}{% endmacro %}", False),
        ("{% macro cents(v) %}{{ 1 if is_incremental() else 2 }}{% endmacro %}", False),
        ("{% macro cents(v) %}{{ other(v) }}{% endmacro %}", False),
    ],
)
def test_macros(text: str, expected: bool) -> None:
    code = CODE.replace("v from", "{{ shop.cents('v') }} as v from") + increment(WHERE)
    assert only_restricts(code, {"macro.shop.cents": text}, SQL, OWN) is expected


@pytest.mark.parametrize(
    ("strategy", "config", "by_key", "repeatable"),
    [
        ("merge", {"unique_key": "id"}, True, True),
        ("delete+insert", {"unique_key": ["id"]}, True, True),
        ("merge", {"unique_key": "id", "merge_update_columns": ["v"]}, True, True),
        ("merge", {"unique_key": "id", "incremental_predicates": ["v > 1"]}, False, False),
        ("merge", {"unique_key": "id", "not_matched_by_source_action": "delete"}, False, False),
        ("delete+insert", {}, False, False),
        ("append", {"unique_key": "id"}, False, False),
        ("insert_overwrite", {}, False, True),
    ],
)
def test_strategies(strategy: str, config: dict[str, Any], by_key: bool, repeatable: bool) -> None:
    assert overwrites_by_key(config, strategy) is by_key
    assert is_repeatable(config, strategy) is repeatable
