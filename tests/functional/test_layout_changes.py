"""Tables whose layout changed: files of the earlier layouts are replaced and deleted as well."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from dbt.tests.util import run_dbt
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from tests.functional.lake import rows, run, table
from tests.integration.tables import read_by_duckdb

START = datetime(2023, 12, 30)
# The partition of a row by each layout. Columns in another letter case are the same.
LAYOUTS: dict[tuple[str, ...], Callable[[int | None], Any]] = {
    (): lambda id: None,
    ("ID",): lambda id: id,
    ("bucket(3, id)",): lambda id: bucket(id),
    ("truncate(10, Id)",): lambda id: id and id // 10,
    ("days(at)",): lambda id: id and time_of(id).date(),
    ("month(AT)",): lambda id: id and time_of(id).month,
    ("year(at)", "bucket(3, id)"): lambda id: (id and time_of(id).year, bucket(id)),
}
bucket = BucketTransform(3).transform(LongType())
# A null has no time, either.
OVERWRITTEN = """
{{ config(materialized='incremental', incremental_strategy='insert_overwrite',
    partition_by=var('by', []), format_version=var('version', 2)) }}
select id, timestamp_ntz '2023-12-30' + make_dt_interval(0, id) as at, {{ var('step', 0) }} as step
from (select explode(from_json('{{ var("ids", []) | tojson }}', 'array<bigint>')) as id)
"""


def time_of(id: int) -> datetime:
    return START + timedelta(hours=id)


@pytest.mark.slow
class TestOverwriting:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"overwritten.sql": OVERWRITTEN}

    @pytest.mark.parametrize(
        "version", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))]
    )
    def test_rows_of_all_layouts(self, project: Any, version: int) -> None:
        rng = Random(version)
        run(project, "drop table if exists {schema}.overwritten")
        expected: list[tuple[int | None, int]] = []
        layouts = rng.sample(list(LAYOUTS), 4)
        # The third layout is that of the first files again.
        for step, layout in enumerate([*layouts[:2], layouts[0], *layouts[2:], layouts[-1]]):
            ids: list[int | None] = [*rng.sample(range(1, 60), 4)]
            if rng.random() < 0.3:
                ids[0] = None
            variables = {"by": list(layout), "version": version, "step": step, "ids": ids}
            run_dbt(["run", "--vars", json.dumps(variables)])
            part = LAYOUTS[layout]
            replaced = {part(id) for id in ids}
            expected = [row for row in expected if part(row[0]) not in replaced]
            expected += [(id, step) for id in ids]
            actual = rows(project, "select id, step from {schema}.overwritten")
            assert (layout, sorted(actual, key=str)) == (layout, sorted(expected, key=str))


EVENTS = """
{{ config(materialized='table', event_time='at') }}
select cast(id as int) as id, timestamp '2024-01-01' + make_dt_interval(cast(id as int)) as at
from range(4)
"""
BATCHES = """
{{ config(materialized='incremental', incremental_strategy='microbatch', event_time='at',
    begin='2024-01-01', batch_size='day', partition_by=var('by')) }}
select id, at, '{{ var("run") }}' as run from {{ ref('events') }}
"""
CHANGED = """
{{ config(materialized='incremental', incremental_strategy='append', on_schema_change=var('change'),
    partition_by=var('by', none), format_version=var('version', 2), merge_mode=var('mode', none),
    sort_order=var('order', none)) }}
select 1 as id, 'x' as s {{ ', 1 as p' if var('p') }} {{ ', 2 as added' if var('added', false) }}
  {{ ", date'2026-01-02' as at" if var('times', false) }}
  {{ ", 2 as at_day" if var('times', false) and not var('upper', none) is boolean }}
  {{ ", 2 as AT_DAY" if var('upper', false) }}
"""


class TestChanges:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"events.sql": EVENTS, "batches.sql": BATCHES, "changed.sql": CHANGED}

    def change(self, project: Any, *arguments: str, passes: bool = True, **variables: Any) -> Any:
        given = json.dumps({"change": "ignore", "p": True, **variables})
        command = ["run", "--select", "changed", "--vars", given, *arguments]
        (result,) = run_dbt(command, expect_pass=passes)
        return result.message

    def fields(self, project: Any) -> list[str]:
        return [str(f.transform) for f in table(project, "changed").spec().fields]

    @pytest.mark.parametrize("change", [("month(at)", "day(At)"), ("id", "[]")])
    def test_a_batch_replaces_its_day_only(self, project: Any, change: tuple[str, str]) -> None:
        span = ["--event-time-start", "2024-01-01", "--event-time-end", "2024-01-05"]
        first = f"{{run: first, by: {change[0]}}}"
        run_dbt(["run", "--select", "events", "batches", "--full-refresh", "--vars", first, *span])
        day = ["--event-time-start", "2024-01-02", "--event-time-end", "2024-01-03"]
        run_dbt(["run", "--select", "batches", "--vars", f"{{run: second, by: {change[1]}}}", *day])
        actual = rows(project, "select id, run from {schema}.batches order by id, run")
        assert actual == [(0, "first"), (1, "second"), (2, "first"), (3, "first")]

    def test_a_wrong_layout_changes_nothing(self, project: Any) -> None:
        run(project, "drop table if exists {schema}.changed")
        self.change(project, by=["P"], times=True)
        for wrong, words in (
            ("day(s)", "`partition_by` has days(`s`), but `s` of "),
            ("nowhere", "`partition_by` names `nowhere`, which "),
            ("day(at)", "Iceberg names its partition field `at_day`, but the table has a column"),
        ):
            for more in ([], ["--full-refresh"]) if wrong == "day(at)" else ([],):
                message = self.change(project, *more, by=[wrong], passes=False, times=True)
                assert words in message
            assert self.fields(project) == ["identity"]

    @pytest.mark.parametrize("version", [1, 2])
    def test_partition_fields_in_other_letters(self, project: Any, version: int) -> None:
        """Spark reads no table with two of a name, whichever their letters are."""
        run(project, "drop table if exists {schema}.changed")
        given = {"times": True, "version": version, "change": "append_new_columns", "upper": True}
        message = self.change(project, by=["day(at)", "AT_DAY"], passes=False, **given)
        assert "Iceberg names its partition field `at_day`, but the table has a column" in message
        self.change(project, by=["day(at)"], **{**given, "upper": False})
        self.change(project, by=["AT_DAY"], **given)
        self.change(project, by=["AT_DAY"], **given)
        query = "select AT_DAY, _partition is null from {schema}.changed order by 1"
        assert rows(project, query) == [(None, False), (2, False), (2, False)]
        message = self.change(project, "--full-refresh", by=["AT_DAY"], passes=False, **given)
        assert "history has the partition field `at_day`" in message
        assert len(rows(project, query)) == 3

    def test_format_version_1_keeps_dropped_fields(self, project: Any) -> None:
        run(project, "drop table if exists {schema}.changed")
        self.change(project, by=["p"], version=1)
        for by in (["bucket(2, id)"], ["bucket(2, id)"], ["p"], [], []):
            self.change(project, by=by, version=1)
            assert [f for f in self.fields(project) if f != "void"] == [
                "identity" if term == "p" else "bucket[2]" for term in by
            ]
        assert rows(project, "select count(*) from {schema}.changed") == [(6,)]

        # Spark and DuckDB read no table whose partition spec has an id twice, as a field has that
        # Iceberg adds again under the id of its void field.
        for by in ([], ["p", "bucket(2, id)"], ["bucket(2, id)"], ["p"], ["p"]):
            self.change(project, by=by, version=2)
            terms = [f for f in self.fields(project) if f != "void"]
            assert sorted(terms) == sorted("identity" if t == "p" else "bucket[2]" for t in by)
            ids = [field.field_id for field in table(project, "changed").spec().fields]
            assert len(set(ids)) == len(ids)
        assert rows(project, "select count(*) from {schema}.changed where p = 1") == [(11,)]
        assert read_by_duckdb(table(project, "changed").metadata_location).num_rows == 11

    @pytest.mark.parametrize(("version", "by"), [(1, ["id"]), (2, ["p"]), (2, None)])
    def test_a_column_of_a_partition_field_is_not_dropped(
        self, project: Any, version: int, by: list[str] | None
    ) -> None:
        run(project, "drop table if exists {schema}.changed")
        self.change(project, by=["p"], version=version)
        drops = {"change": "sync_all_columns", "version": version, "by": by, "p": False}
        for _ in range(2):
            message = self.change(project, passes=False, **drops)
            assert "`p` of " in message and "cannot be dropped" in message
        # The table is as it was.
        self.change(project, by=["p"], version=version)
        assert rows(project, "select count(*), sum(p) from {schema}.changed") == [(2, 2)]

    @pytest.mark.parametrize("version", [2, 3])
    def test_a_former_partition_column_is_dropped(self, project: Any, version: int) -> None:
        run(project, "drop table if exists {schema}.changed")
        self.change(project, by=["p"], version=version)
        follows = {"change": "sync_all_columns", "version": version}
        for _ in range(2):
            self.change(project, by=["id"], p=False, **follows)
        self.change(project, by=["id", "added"], p=False, added=True, **follows)
        assert [f.name for f in table(project, "changed").schema().fields] == ["id", "s", "added"]
        assert rows(project, "select id, s, added from {schema}.changed order by added") == [
            *[(1, "x", None)] * 3,
            (1, "x", 2),
        ]

    def test_a_new_column_with_the_name_of_a_partition_field(self, project: Any) -> None:
        run(project, "drop table if exists {schema}.changed")
        run(
            project,
            "create table {schema}.changed (id int, s string, p int, at date) "
            "partitioned by (days(at))",
        )
        change = {"change": "append_new_columns", "times": True}
        message = self.change(project, passes=False, **change)
        assert "Give the column another name" in message

    def test_a_sort_column_is_not_dropped(self, project: Any) -> None:
        run(project, "drop table if exists {schema}.changed")
        run(project, "create table {schema}.changed (id int, s string, p int)")
        run(project, "alter table {schema}.changed write ordered by p")
        drops = {"change": "sync_all_columns", "p": False}
        message = self.change(project, passes=False, **drops)
        assert "Set `sort_order` to other columns, or to `[]`" in message
        self.change(project, order=[], **drops)
        assert table(project, "changed").schema().column_names == ["id", "s"]

    def test_merge_on_read_keeps_a_former_partition_column(self, project: Any) -> None:
        """Iceberg writes no deletes by position if the column of any partition spec is gone."""
        run(project, "drop table if exists {schema}.changed")
        self.change(project, by=["p"])
        run(project, "insert into {schema}.changed select id, 'x', 1 from values (1), (2) as t(id)")
        drops = {"change": "sync_all_columns", "by": [], "p": False}
        message = self.change(project, passes=False, mode="merge-on-read", **drops)
        assert "`p` of " in message and "cannot be dropped" in message
        assert "Set `merge_mode: copy-on-write`" in message
        assert table(project, "changed").schema().column_names == ["id", "s", "p"]
        self.change(project, mode="copy-on-write", **drops)
        self.change(project, mode="merge-on-read", **drops)
        with pytest.raises(Exception, match="A column that once partitioned the table is gone"):
            run(project, "delete from {schema}.changed where id = 2")
        self.change(project, mode="copy-on-write", **drops)
        run(project, "delete from {schema}.changed where id = 2")
        assert rows(project, "select count(*), max(id) from {schema}.changed") == [(5, 1)]
