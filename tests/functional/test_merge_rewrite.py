"""Merges by rewriting files: which files are touched, which are not, and who does what else."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.functional.lake import rows, run, snapshot_ids, summary, table

MERGED = """
{{ config(materialized='incremental', unique_key=['id', 'part'], incremental_strategy='merge',
    merge_engine=var('engine', 'auto')) }}
select * from {{ target.schema }}.increment
"""
CONDITION = MERGED.replace("incremental_strategy", "matched_condition='true', incremental_strategy")
FORCED = CONDITION.replace("var('engine', 'auto')", "'rewrite'")
SPARKS = MERGED.replace("var('engine', 'auto')", "'spark'")
FULL = MERGED.replace(
    "incremental_strategy", "not_matched_by_source_action='delete', incremental_strategy"
)
COLUMNS = "id bigint, part string, name string, at timestamp, tags array<string>, x decimal(9, 2)"


def row(number: int, name: str, part: str = "'p'") -> str:
    when = "timestamp'2026-01-01 00:00:00'"
    return f"({number}, {part}, '{name}', {when}, array('t'), {number}.5)"


def assert_spark_merged(result: Any, reason: str) -> None:
    response = result.adapter_response
    assert response["merge_engine"] == "spark"
    assert response["merge_engine_reason"] == reason


class TestMergeRewrite:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"merged.sql": MERGED}

    @pytest.fixture(autouse=True)
    def built(self, project: Any) -> None:
        """Three files of ten rows, by id."""
        run(project, "drop table if exists {schema}.merged")
        run(project, "drop table if exists {schema}.increment")
        for name in ("merged", "increment"):
            run(project, f"create table {{schema}}.{name} ({COLUMNS})")
        for first in (0, 10, 20):
            values = ", ".join(row(n, f"n{n}") for n in range(first, first + 10))
            select = f"select /*+ coalesce(1) */ * from values {values}"
            run(project, f"insert into {{schema}}.merged {select}")

    def merge(self, project: Any, *values: str, **expected: Any) -> Any:
        run(project, "truncate table {schema}.increment")
        if values:
            run(project, f"insert into {{schema}}.increment values {', '.join(values)}")
        (result,) = run_dbt(["run"]).results
        response = result.adapter_response
        assert response["merge_engine"] == "rewrite"
        for key, value in expected.items():
            assert response[key] == value, key
        return response

    def files(self, project: Any) -> list[str]:
        return sorted(task.file.file_path for task in table(project, "merged").scan().plan_files())

    def test_only_files_with_a_changed_row_are_rewritten(self, project: Any) -> None:
        before = self.files(project)
        self.merge(
            project,
            row(12, "changed"),
            row(25, "n25"),
            row(40, "new"),
            rows_updated=1,
            rows_inserted=1,
            files_added=2,
            files_removed=1,
        )
        after = self.files(project)
        assert len(set(before) - set(after)) == 1
        assert all("/merge-" in path for path in set(after) - set(before))
        actual = rows(
            project, "select id, name from {schema}.merged where id in (11, 12, 25, 40) order by id"
        )
        assert actual == [(11, "n11"), (12, "changed"), (25, "n25"), (40, "new")]
        assert rows(project, "select count(*) from {schema}.merged") == [(31,)]
        said = summary(project, "merged")
        assert (said["operation"], said["iceberg-stream.model"]) == ("overwrite", "merged")

    def test_rows_keep_their_order(self, project: Any) -> None:
        self.merge(project, row(15, "changed"))
        actual = rows(project, "select id from {schema}.merged where id between 10 and 19")
        assert [r[0] for r in actual] == list(range(10, 20))

    def test_nothing_changed_nothing_committed(self, project: Any) -> None:
        before = snapshot_ids(project, "merged")
        self.merge(project, row(3, "n3"), row(29, "n29"), rows_affected=0)
        self.merge(project, rows_affected=0)
        assert snapshot_ids(project, "merged") == before

    def test_null_keys(self, project: Any) -> None:
        self.merge(project, row(5, "first", "null"), rows_inserted=1, rows_updated=0)
        self.merge(project, row(5, "second", "null"), rows_inserted=0, rows_updated=1)
        actual = rows(
            project, "select name from {schema}.merged where id = 5 order by part nulls first"
        )
        assert actual == [("second",), ("n5",)]

    def test_every_column_type_and_nulls(self, project: Any) -> None:
        nulls = "(7, 'p', null, null, null, null)"
        self.merge(project, nulls, rows_updated=1)
        actual = rows(project, "select name, at, tags, x from {schema}.merged where id = 7")
        assert actual == [(None, None, None, None)]
        self.merge(project, nulls, rows_affected=0)
        self.merge(project, row(7, "back"), rows_updated=1)
        actual = rows(
            project, "select name, tags[0], x, year(at) from {schema}.merged where id = 7"
        )
        assert [tuple(map(str, r)) for r in actual] == [("back", "t", "7.50", "2026")]

    def test_a_schema_that_has_changed(self, project: Any) -> None:
        run(project, "alter table {schema}.merged rename column name to title")
        run(project, "alter table {schema}.merged add column extra int")
        run(project, "alter table {schema}.increment rename column name to title")
        run(project, "alter table {schema}.increment add column extra int")
        values = row(3, "changed")[:-1] + ", 1)"
        self.merge(project, values, rows_updated=1)
        actual = rows(
            project, "select title, extra from {schema}.merged where id in (3, 4) order by id"
        )
        assert actual == [("changed", 1), ("n4", None)]
        # In the other files there is nothing yet of a column that is updated alone.
        self.merge(project, row(13, "n13")[:-1] + ", 2)", rows_updated=1)
        actual = rows(project, "select extra from {schema}.merged where id in (13, 14) order by id")
        assert actual == [(2,), (None,)]

    def test_partitions(self, project: Any) -> None:
        run(project, "alter table {schema}.merged add partition field bucket(2, id)")
        new = [row(n, "new") for n in range(50, 56)]
        self.merge(project, row(3, "changed"), *new, rows_updated=1, rows_inserted=6)
        actual = rows(
            project, "select count(*) from {schema}.merged where name = 'new' and id = 51"
        )
        assert actual == [(1,)]
        self.merge(project, row(51, "again"), rows_updated=1)
        actual = rows(project, "select name from {schema}.merged where id in (3, 51) order by id")
        assert actual == [("changed",), ("again",)]

    def test_duplicate_keys_are_named(self, project: Any) -> None:
        run(project, "truncate table {schema}.increment")
        run(project, f"insert into {{schema}}.increment values {row(1, 'a')}, {row(1, 'b')}")
        _, output = run_dbt_and_capture(["run"], expect_pass=False)
        assert "returns more than one row for a unique_key" in " ".join(output.split())

    def test_rows_that_are_deleted_stay_so(self, project: Any) -> None:
        run(
            project,
            "alter table {schema}.merged set tblproperties ('write.delete.mode' = 'merge-on-read')",
        )
        run(project, "delete from {schema}.merged where id = 4")
        self.merge(project, row(4, "back"), row(5, "changed"), rows_inserted=1, rows_updated=1)
        names = rows(project, "select name from {schema}.merged where id in (4, 5) order by id")
        assert names == [("back",), ("changed",)]

    def test_files_of_another_format_are_sparks(self, project: Any) -> None:
        run(
            project,
            "alter table {schema}.merged set tblproperties ('write.format.default' = 'orc')",
        )
        run(project, f"insert into {{schema}}.merged values {row(60, 'orc')}")
        run(project, f"insert into {{schema}}.increment values {row(60, 'changed')}")
        (result,) = run_dbt(["run"]).results
        assert_spark_merged(result, "the table's files are orc")
        assert rows(project, "select name from {schema}.merged where id = 60") == [("changed",)]


class TestWhoMerges:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"forced.sql": FORCED, "sparks.sql": SPARKS}

    def test_engines(self, project: Any) -> None:
        run(project, f"create table {{schema}}.increment ({COLUMNS})")
        run(project, f"insert into {{schema}}.increment values {row(1, 'a')}")
        run_dbt(["run"])
        run(project, "update {schema}.increment set name = 'b'")
        (result,) = run_dbt(["run", "--select", "sparks"]).results
        assert_spark_merged(result, "merge_engine is spark")
        (result,) = run_dbt(["run", "--select", "forced"]).results
        assert result.adapter_response["merge_engine"] == "rewrite"
        for model in ("forced", "sparks"):
            assert rows(project, f"select name from {{schema}}.{model}") == [("b",)]
        run(project, "alter table {schema}.forced set tblproperties ('encryption.key-id' = 'k')")
        run(project, "update {schema}.increment set name = 'c'")
        _, output = run_dbt_and_capture(["run", "--select", "forced"], expect_pass=False)
        text = " ".join(output.split())
        assert "merge_engine is rewrite, but the table has the property encryption.key-id" in text


class TestNotMatchedBySource:
    """The table becomes the model's rows, and files that hold them already stay."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"full.sql": FULL}

    def test_rows_are_deleted(self, project: Any) -> None:
        def merge(*values: str) -> dict[str, Any]:
            run(project, "truncate table {schema}.increment")
            if values:
                run(project, f"insert into {{schema}}.increment values {', '.join(values)}")
            (result,) = run_dbt(["run"]).results
            return dict(result.adapter_response)

        run(project, f"create table {{schema}}.increment ({COLUMNS})")
        merge(*(row(n, "old") for n in range(4)))
        done = merge(row(1, "old"), row(2, "new"), row(7, "new"))
        assert done["merge_engine"] == "rewrite"
        counts = [done[f"rows_{kind}"] for kind in ("inserted", "updated", "deleted")]
        assert counts == [1, 1, 2]
        actual = rows(project, "select id, name from {schema}.full order by id")
        assert actual == [(1, "old"), (2, "new"), (7, "new")]
        assert merge()["rows_deleted"] == 3
        assert rows(project, "select id from {schema}.full") == []


HOOKED = """
{{ config(materialized='table', post_hook=[
    "{{ update_rows(this, 'select 2L as id, string(7) as name union all select 9L, string(8)', 'id') }}",
    "{{ delete_rows(this, 'select 0L as ID union all select 3L; -- gone', ['id']) }}",
]) }}
select /*+ coalesce(1) */ id, 'old' as name, id * 2 as n from range(5)
"""
OPERATIONS = """
{% macro update_nothing(schema) %}
  {% do update_rows(api.Relation.create(schema=schema, identifier='changed'), 'select 2L as id', 'id') %}
{% endmacro %}
{% macro drop_some(schema) %}
  {% do delete_rows(api.Relation.create(schema=schema, identifier='changed'), 'select id from range(2)', 'id') %}
{% endmacro %}
"""


class TestChangesOfRows:
    """Updates and deletes by key, for hooks and operations."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        # Of version 3 the changes are Spark's.
        by_spark = HOOKED.replace("'table'", "'table', format_version=3")
        return {"changed.sql": HOOKED, "by_spark.sql": by_spark}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"operations.sql": OPERATIONS}

    def test_by_hooks_and_operations(self, project: Any, request: pytest.FixtureRequest) -> None:
        run_dbt(["run"])
        for name in ("changed", "by_spark"):
            actual = rows(project, f"select * from {{schema}}.{name} order by id")
            assert actual == [(1, "old", 2), (2, "7", 4), (4, "old", 8)]
        assert len(snapshot_ids(project, "changed")) == 3
        run_dbt(["run-operation", "drop_some", "--args", f"schema: {project.test_schema}"])
        assert rows(project, "select id from {schema}.changed order by id") == [(2,), (4,)]
        if request.config.getoption("--method") == "embedded":
            (task,) = table(project, "changed").scan().plan_files()
            assert "/merge-" in task.file.file_path

    def test_an_update_of_keys_alone_is_refused(self, project: Any) -> None:
        run_dbt(["run"])
        arguments = ["--args", f"schema: {project.test_schema}"]
        _, output = run_dbt_and_capture(
            ["run-operation", "update_nothing", *arguments], expect_pass=False
        )
        assert "the query returns only the keys (id)" in " ".join(output.split())
        assert rows(project, "select count(*) from {schema}.changed") == [(3,)]


VERSIONED = """
{{ config(materialized='incremental', unique_key='id', format_version=1,
    partition_by=['truncate(10, id)']) }}
select id, 'run {n}' as name from range({n}, {n} + 3)
""".replace("{n}", "{{ var('n', 0) | int }}")


class TestFormatVersion1:
    """Our commits and Spark's, one after the other, to a table that has no sequence numbers."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"old.sql": VERSIONED}

    def test_merges(self, project: Any) -> None:
        for n in (0, 1, 2):
            (result,) = run_dbt(["run", "--vars", f"n: {n}"]).results
        assert result.adapter_response["merge_engine"] == "rewrite"
        assert table(project, "old").metadata.format_version == 1
        # As of all tables that are made here, Spark's, too.
        assert table(project, "old").properties["write.metadata.previous-versions-max"] == "20"
        run(project, "delete from {schema}.old where id = 1")
        run(project, "insert into {schema}.old values (9, 'spark')")
        run_dbt(["run", "--vars", "n: 3"])
        assert rows(project, "select * from {schema}.old order by id") == [
            (0, "run 0"), (2, "run 2"), (3, "run 3"), (4, "run 3"), (5, "run 3"), (9, "spark"),
        ]  # fmt: skip
        # Spark reads the files' manifests and their partitions.
        actual = rows(
            project,
            "select partition.id_trunc, sum(record_count) from {schema}.old.files group by 1",
        )
        assert actual == [(0, 6)]
