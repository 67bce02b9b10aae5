"""Incremental merges: what they write, and when they write nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dbt.tests.util import run_dbt
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, UUIDType

from dbt.adapters.iceberg_stream.sql.comparisons import comparable_sql
from tests.functional.lake import rows, run, snapshot_ids, summary

BY_KEY = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}
{% if is_incremental() %}
select * from values (1, 'one', 10), (2, 'TWO', 20), (null, 'none again', 5) as t(id, name, n)
{% else %}
select * from values (1, 'one', 10), (2, 'two', 20), (null, 'none', 5) as t(id, name, n)
{% endif %}
"""
UNCHANGED = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key=['a', 'b']) }}
select * from values (1, 'x', 1.5), (1, null, 2.5), (2, 'x', 3.5) as t(a, b, v)
"""
EMPTY = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}
select 1 as id, 'a' as name {% if is_incremental() %} where false {% endif %}
"""
QUOTED = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key=['the key', 'order']) }}
select 1 as `the key`, 2 as `order`, {{ 5 if is_incremental() else 4 }} as `select`
"""
OPTIONS = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id',
    target_alias='t', source_alias='s',
    matched_condition='t.locked = false', merge_exclude_columns=['note'],
    not_matched_condition="s.name != 'skipped'",
    not_matched_by_source_action='delete', not_matched_by_source_condition='t.id > 100') }}
{% if is_incremental() %}
select * from values (1, 'new', false, 'n2'), (2, 'new', true, 'n2'), (3, 'skipped', false, 'n'),
  (4, 'added', false, 'n') as v(id, name, locked, note)
{% else %}
select * from values (1, 'old', false, 'n1'), (2, 'old', true, 'n1'), (50, 'stays', false, 'n'),
  (101, 'goes', false, 'n') as v(id, name, locked, note)
{% endif %}
"""
SKIPS = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id',
    skip_matched_step=true) }}
select id, {{ "'second'" if is_incremental() else "'first'" }} as run
from range(1, {{ 4 if is_incremental() else 3 }})
"""
SOME_COLUMNS = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id',
    merge_update_columns=['a']) }}
select 1 as id, {{ 2 if is_incremental() else 1 }} as a, {{ 2 if is_incremental() else 1 }} as b
"""
ON_READ = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id',
    merge_mode='merge-on-read') }}
select id, if(id = 3 and {{ is_incremental() }}, 'new', 'old') as v from range(10)
"""
# Conditions of the user's are one operand each, whatever is in them.
PREDICATES = """
{{ config(materialized='incremental', incremental_strategy='STRATEGY', unique_key='id',
    incremental_predicates=[
        'DBT_INTERNAL_DEST.id = 1 or DBT_INTERNAL_DEST.id > 100', 'true -- or a comment']) }}
select id, {{ "'new'" if is_incremental() else "'old'" }} as v from values (1), (2), (3) as t(id)
{% if is_incremental() %} where id < 3{% endif %}
"""
CONDITIONS = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id',
    matched_condition="DBT_INTERNAL_SOURCE.id = 1 or false -- or a comment",
    not_matched_condition="DBT_INTERNAL_SOURCE.id = 8 or false -- or a comment",
    not_matched_by_source_action='delete',
    not_matched_by_source_condition="DBT_INTERNAL_DEST.id = 3 or false -- or a comment") }}
{% if is_incremental() %} select id, 'new' as v from values (1), (2), (8), (9) as t(id)
{% else %} select id, 'old' as v from values (1), (2), (3), (4) as t(id) {% endif %}
"""
CAST = """
{{ config(materialized='incremental', unique_key='id', merge_engine='spark') }}
select 1 as id, {{ "'" ~ var('v') ~ "'" if var('v', none) else 1 }} as v
"""
MISSPELLED = """
{{ config(materialized='incremental', unique_key='id',
    merge_update_columns=var('update', none), merge_exclude_columns=var('exclude', none)) }}
select 1 as id, 'a' as name
"""
MAPS = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}
select 1 as id, map('k', {{ 2 if is_incremental() else 1 }}) as m
"""
SAME_MAPS = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}
select 1 as id, {{ "map('b', 2, 'a', 1)" if is_incremental() else "map('a', 1, 'b', 2)" }} as m
"""


class TestMerge:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "same_maps.sql": SAME_MAPS,
            "by_key.sql": BY_KEY,
            "unchanged.sql": UNCHANGED,
            "empty.sql": EMPTY,
            "by_spark.sql": UNCHANGED.replace("unique_key", "merge_engine='spark', unique_key"),
            "quoted.sql": QUOTED,
            "options.sql": OPTIONS,
            "skips.sql": SKIPS,
            "some_columns.sql": SOME_COLUMNS,
            "on_read.sql": ON_READ,
            "maps.sql": MAPS,
            "cast.sql": CAST,
            "misspelled.sql": MISSPELLED,
            "merged.sql": PREDICATES.replace("STRATEGY", "merge"),
            "deleted.sql": PREDICATES.replace("STRATEGY", "delete+insert"),
            "conditions.sql": CONDITIONS,
        }

    @pytest.fixture(scope="class")
    def results(self, project: Any) -> dict[str, Any]:
        run_dbt(["run"])
        self.before = {
            name: snapshot_ids(project, name)
            for name in ("unchanged", "empty", "by_key", "by_spark")
        }
        actual = {r.node.name: r.adapter_response for r in run_dbt(["run"])}
        return {"responses": actual, "before": self.before}

    def test_a_null_key_is_a_key(self, project: Any, results: Any) -> None:
        actual = rows(project, "select id, name, n from {schema}.by_key order by id nulls first")
        assert actual == [(None, "none again", 5), (1, "one", 10), (2, "TWO", 20)]

    def test_rows_affected_are_the_rows_that_changed(self, project: Any, results: Any) -> None:
        response = results["responses"]["by_key"]
        assert response["rows_affected"] == 2
        assert response["rows_updated"] == 2
        assert response["_message"] == "MERGE 2 rows"
        assert response["snapshot_id"] == snapshot_ids(project, "by_key")[-1]
        assert response["bytes_written"] > 0

    @pytest.mark.parametrize("name", ["unchanged", "empty", "by_spark"])
    def test_nothing_changed_commits_nothing(self, project: Any, results: Any, name: str) -> None:
        assert snapshot_ids(project, name) == results["before"][name]
        assert results["responses"][name]["rows_affected"] == 0

    @pytest.mark.parametrize("name", ["merged", "deleted"])
    def test_predicates_with_or(self, project: Any, results: Any, name: str) -> None:
        actual = rows(project, f"select id, v from {{schema}}.{name} order by id, v")
        assert actual == [(1, "new"), (2, "new"), (2, "old"), (3, "old")]

    def test_conditions_with_or_and_comments(self, project: Any, results: Any) -> None:
        actual = rows(project, "select id, v from {schema}.conditions order by id, v")
        assert actual == [(1, "new"), (2, "old"), (4, "old"), (8, "new")]

    def test_quoted_composite_key(self, project: Any, results: Any) -> None:
        assert rows(project, "select * from {schema}.quoted") == [(1, 2, 5)]

    def test_databricks_options(self, project: Any, results: Any) -> None:
        assert rows(project, "select * from {schema}.options order by id") == [
            (1, "new", False, "n1"),
            (2, "old", True, "n1"),
            (4, "added", False, "n"),
            (50, "stays", False, "n"),
        ]

    def test_skip_matched_step(self, project: Any, results: Any) -> None:
        actual = rows(project, "select id, run from {schema}.skips order by id")
        assert actual == [(1, "first"), (2, "first"), (3, "second")]

    def test_merge_update_columns(self, project: Any, results: Any) -> None:
        assert rows(project, "select * from {schema}.some_columns") == [(1, 2, 1)]

    def test_an_error_while_rows_are_compared_says_why(self, project: Any, results: Any) -> None:
        (result,) = run_dbt(["run", "-s", "cast", "--vars", "v: two"], expect_pass=False)
        assert "[CAST_INVALID_INPUT] The value 'two'" in result.message
        assert "awaitResult" not in result.message

    @pytest.mark.parametrize("key", ["update", "exclude"])
    def test_misspelled_columns_of_an_increment(self, project: Any, results: Any, key: str) -> None:
        arguments = ["run", "--select", "misspelled", "--vars", f"{{{key}: [nmae]}}"]
        (result,) = run_dbt(arguments, expect_pass=False)
        assert f"`merge_{key}_columns` of model.test.misspelled names `nmae`" in result.message

    def test_copy_on_write_leaves_no_delete_files(self, project: Any, results: Any) -> None:
        assert summary(project, "by_key")["total-delete-files"] == "0"

    def test_merge_on_read_by_config(self, project: Any, results: Any) -> None:
        assert int(summary(project, "on_read")["total-delete-files"]) >= 1
        assert rows(project, "select count(*) from {schema}.on_read where v = 'new'") == [(1,)]

    def test_columns_that_spark_cannot_compare(self, project: Any, results: Any) -> None:
        assert rows(project, "select m['k'] from {schema}.maps") == [(2,)]
        assert len(snapshot_ids(project, "same_maps")) == 1

    def test_variants_are_compared_by_values_and_types(self, project: Any, results: Any) -> None:
        """PyIceberg cannot read tables that have any yet."""
        one, other = (comparable_sql(name, "variant") for name in ("one", "other"))
        query = f"select {one} <=> {other} from (select parse_json(a) as one, parse_json(b) as other from values "
        pairs = """('[1, {"a": 1, "b": 2}]', '[1, {"b": 2, "a": 1}]'), ('[1]', '["1"]'), (null, '1'), (null, null)"""
        pairs = pairs.replace("{", "{{").replace("}", "}}")
        assert rows(project, f"{query} {pairs} as t(a, b))") == [
            (True,),
            (False,),
            (False,),
            (True,),
        ]


DUPLICATES = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key=['a', 'b']) }}
{% if is_incremental() %}
select * from values (1, 'x', 1), (1, 'x', 2), (2, 'y', 3) as t(a, b, v)
{% else %}
select * from values (1, 'x', 0) as t(a, b, v)
{% endif %}
"""


RANDOM = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id',
    merge_engine=var('engine', 'auto')) }}
select id, uuid() as token from range(2)
"""


STRUCTS = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='k') }}
select struct(1 as a, 'x' as b) as k, id as n
from range({% if is_incremental() %} 2 {% else %} 1 {% endif %})
"""
OTHER_TYPE = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}
{% if is_incremental() %}
select 1 as id, array('2') as n where {{ var('has_rows') }}
{% else %}
select 1 as id, 2 as n
{% endif %}
"""


ROUNDED = """
{{ config(materialized='incremental', incremental_strategy=var('strategy', 'merge'), unique_key='ID',
    merge_engine=var('engine', 'auto')) }}
select cast({{ var('value', '1.30') }} as decimal(9, {{ var('scale', 1) }})) as id, 1 as n
"""


KEPT = """
{{ config(materialized='incremental', incremental_strategy=var('strategy'), unique_key='id',
    pre_hook='set spark.sql.session.timeZone = America/New_York') }}
select {{ var('key') }} as id, 1 as n
"""
UUID = "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6"
# The type of the table's key, a key that it does not store as it is, one that it does, and the cure.
LOST_KEYS = [
    ("string", "cast(0.1 as float)", "'0.1'", "Cast `id` to string"),
    # Neither is there twice, as the clock of New York is set back at that hour.
    (
        "timestamp_ntz",
        "timestamp '2024-11-03 06:30:00 UTC'",
        "timestamp '2024-11-03 08:30:00 UTC'",
        "Cast `id` to timestamp_ntz",
    ),
    (
        "string",
        "timestamp '2024-11-03 06:30:00 UTC'",
        "timestamp '2024-11-03 08:30:00 UTC'",
        "Cast `id` to string",
    ),
    # Compared as doubles, they are the same.
    ("double", "cast(9007199254740993 as bigint)", "cast(5 as bigint)", "Cast `id` to double"),
    ("bigint", "'1.5'", "cast(15 as bigint)", "Cast `id` to bigint"),
    ("uuid", f"'{UUID}'", f"'{UUID.lower()}'", "Write it as lower(`id`)"),
]


class TestLostKeys:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"kept.sql": KEPT}

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        return {"vars": {"strategy": "merge", "key": "1"}}

    @pytest.mark.parametrize(
        "strategy", ["merge", pytest.param("delete+insert", marks=pytest.mark.slow)]
    )
    def test_an_error_instead_of_a_row_for_each_run(self, project: Any, strategy: str) -> None:
        for kind, lost, kept, cure in LOST_KEYS:
            run(project, "drop table if exists {schema}.kept")
            run(project, "create schema if not exists {schema}")
            if kind == "uuid":
                fields = NestedField(1, "id", UUIDType()), NestedField(2, "n", IntegerType())
                project.adapter.catalog.pyiceberg.create_table(
                    (project.test_schema, "kept"), Schema(*fields)
                )
            else:
                run(project, f"create table {{schema}}.kept (id {kind}, n int)")

            def build(key: str, expect_pass: bool = True) -> str:
                given = json.dumps({"strategy": strategy, "key": key})
                command = ["run", "--vars", given]
                message: str = run_dbt(command, expect_pass=expect_pass)[0].message
                return message

            assert cure in build(lost, expect_pass=False)
            assert rows(project, "select * from {schema}.kept") == []
            build(kept)
            build(kept)
            assert len(rows(project, "select * from {schema}.kept")) == 1


class TestRefusedIncrements:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "duplicates.sql": DUPLICATES,
            "structs.sql": STRUCTS,
            "random.sql": RANDOM,
            "other_type.sql": OTHER_TYPE,
            "rounded.sql": ROUNDED,
        }

    @pytest.mark.parametrize("engine", ["spark", "rewrite"])
    def test_values_that_are_computed_anew(self, project: Any, engine: str) -> None:
        command = ["run", "--select", "random", "--vars", f"engine: {engine}"]
        run_dbt(command)
        before = rows(project, "select * from {schema}.random")
        run_dbt(command)
        after = rows(project, "select * from {schema}.random")
        assert len(after) == len(before) == 2
        assert not set(after) & set(before)

    def test_the_keys_are_named_and_the_table_is_untouched(self, project: Any) -> None:
        run_dbt(["run", "--select", "duplicates"])
        before = snapshot_ids(project, "duplicates")
        message = run_dbt(["run", "--select", "duplicates"], expect_pass=False)[0].message
        assert "more than one row for a unique_key (a, b): (1, x) 2 times" in message
        assert snapshot_ids(project, "duplicates") == before

    def test_keys_that_are_structs_are_named(self, project: Any) -> None:
        run_dbt(["run", "--select", "structs"])
        message = run_dbt(["run", "--select", "structs"], expect_pass=False)[0].message
        assert "more than one row for a unique_key (k): ({1, x}) 2 times" in message

    def test_a_column_of_another_type_is_refused_also_without_rows(self, project: Any) -> None:
        run = ["run", "--select", "other_type", "--vars"]
        run_dbt([*run, "has_rows: true"])
        before = snapshot_ids(project, "other_type")
        for has_rows in ("true", "false"):
            message = run_dbt([*run, f"has_rows: {has_rows}"], expect_pass=False)[0].message
            assert '"(n <=> n)" due to data type mismatch' in message
            assert '("INT" and "ARRAY<STRING>")' in message
        assert snapshot_ids(project, "other_type") == before

    @pytest.mark.parametrize(
        "strategy", ["delete+insert", pytest.param("merge", marks=pytest.mark.slow)]
    )
    def test_keys_that_the_table_would_round(self, project: Any, strategy: str) -> None:
        def build(expect_pass: bool = True, **variables: Any) -> str:
            given = json.dumps({"strategy": strategy, **variables})
            command = ["run", "--select", "rounded", "--vars", given]
            message: str = run_dbt(command, expect_pass=expect_pass)[0].message
            return message

        build(engine="auto")
        # Digits that are all 0 are stored as they are.
        build(engine="auto", scale=2)
        before = snapshot_ids(project, "rounded")
        for engine in ("auto", "spark", "rewrite"):
            message = build(False, engine=engine, value="1.26", scale=2)
            assert "returns 1.26 in `id`, a column of its `unique_key`" in message
            assert "Cast `id` to decimal(9,1) in the query" in message
        assert snapshot_ids(project, "rounded") == before


MODEL_OF_A_SCHEMA = """
{{{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id',
    schema='{schema}', alias='same_name') }}}}
select id, '{schema}' as owner, {{{{ 1 if is_incremental() else 0 }}}} as run from range(200)
"""


class TestSameAliasInTwoSchemas:
    """One temporary view for both would give one table the other's rows."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {f"{s}.sql": MODEL_OF_A_SCHEMA.format(schema=s) for s in ("a", "b", "c", "d")}

    def test_each_table_has_its_own_rows(self, project: Any) -> None:
        for _ in range(3):
            run_dbt(["run", "--threads", "4"])
        for schema in ("a", "b", "c", "d"):
            actual = rows(
                project,
                f"select owner, run, count(*) from {{schema}}_{schema}.same_name group by 1, 2",
            )
            assert actual == [(schema, 1, 200)]
