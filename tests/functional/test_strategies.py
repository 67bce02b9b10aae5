"""The other incremental strategies: each one a single commit."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.functional.lake import rows, run, snapshot_ids, table

APPEND = """
{{ config(materialized='incremental', incremental_strategy='append') }}
select {{ 2 if is_incremental() else 1 }} as id
"""
DELETE_INSERT = """
{{ config(materialized='incremental', incremental_strategy='delete+insert', unique_key='day') }}
{% if is_incremental() %}
select * from values (2, 'c'), (2, 'd'), (3, 'e') as t(day, v)
{% else %}
select * from values (1, 'a'), (2, 'b'), (null, 'n') as t(day, v)
{% endif %}
"""
OVERWRITE = """
{{ config(materialized='incremental', incremental_strategy='insert_overwrite',
    partition_by=['day']) }}
{% if is_incremental() %} select * from values (2, 'new') as t(day, v)
{% else %} select * from values (1, 'old'), (2, 'old'), (2, 'old too') as t(day, v) {% endif %}
"""
NO_KEY = """
{{ config(materialized='incremental', incremental_strategy='merge') }}
select 1 as id
"""
NOTHING_NEW = """
{{ config(materialized='incremental', incremental_strategy='insert_overwrite',
    partition_by=['day']) }}
select * from values (1, 'old') as t(day, v) {% if is_incremental() %} where false {% endif %}
"""
OVERWRITE_ALL = """
{{ config(materialized='incremental', incremental_strategy='insert_overwrite') }}
select {{ "'new'" if is_incremental() else "'old'" }} as v
"""


class TestStrategies:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "append.sql": APPEND,
            "no_key.sql": NO_KEY,
            "no_key_either.sql": NO_KEY,
            "delete_insert.sql": DELETE_INSERT,
            "overwrite.sql": OVERWRITE,
            "nothing_new.sql": NOTHING_NEW,
            "overwrite_all.sql": OVERWRITE_ALL,
        }

    @pytest.fixture(scope="class", autouse=True)
    def output(self, project: Any) -> str:
        """Of the second run."""
        run_dbt(["run"])
        return run_dbt_and_capture(["run"])[1]

    def test_append(self, project: Any) -> None:
        assert rows(project, "select id from {schema}.append order by 1") == [(1,), (2,)]

    def test_a_merge_without_a_key_appends(self, project: Any, output: str) -> None:
        assert rows(project, "select id from {schema}.no_key") == [(1,), (1,)]
        assert output.count("has `incremental_strategy: merge` but no `unique_key`") == 1

    def test_delete_insert_keeps_duplicates_of_the_source(self, project: Any) -> None:
        actual = rows(
            project, "select day, v from {schema}.delete_insert order by day nulls first, v"
        )
        assert actual == [(None, "n"), (1, "a"), (2, "c"), (2, "d"), (3, "e")]

    def test_insert_overwrite_replaces_partitions(self, project: Any) -> None:
        actual = rows(project, "select day, v from {schema}.overwrite order by day")
        assert actual == [(1, "old"), (2, "new")]

    def test_an_empty_increment_replaces_no_partition(self, project: Any) -> None:
        assert rows(project, "select day, v from {schema}.nothing_new") == [(1, "old")]

    def test_insert_overwrite_without_partitions_replaces_the_table(self, project: Any) -> None:
        assert rows(project, "select v from {schema}.overwrite_all") == [("new",)]

    @pytest.mark.parametrize("name", ["append", "delete_insert", "overwrite", "overwrite_all"])
    def test_one_commit_a_run(self, project: Any, name: str) -> None:
        assert len(snapshot_ids(project, name)) == 2


EVENTS = """
{{ config(materialized='table', event_time='at') }}
select id, timestamp '2024-01-01 06:00:00' + make_interval(0, 0, 0, cast(id as int)) as at
from range(4)
"""
BATCHES = """
{{{{ config(materialized='incremental', incremental_strategy='microbatch', event_time='at',
    batch_size='day', begin='2024-01-01', {partition}) }}}}
select id, at, '{{{{ var("run", "first") }}}}' as run from {{{{ ref('events') }}}}
where id >= {{{{ var("least", 0) }}}} and if(id = {{{{ var("bad", -1) }}}}, raise_error('bad'), true)
"""


class TestMicrobatch:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "events.sql": EVENTS,
            "aligned.sql": BATCHES.replace("='at'", "='`AT`'").format(
                partition="partition_by=['day(at)']"
            ),
            "unaligned.sql": BATCHES.format(partition="lookback=1"),
            "by_spark.sql": BATCHES.format(
                partition="merge_engine='spark', partition_by=['day(at)'], "
                "incremental_predicates=['DBT_INTERNAL_DEST.id <> 1']"
            ),
        }

    @pytest.mark.parametrize("name", ["aligned", "unaligned", "by_spark"])
    @pytest.mark.variants(2)
    def test_a_batch_replaces_its_day_only(self, project: Any, name: str) -> None:
        span = ["--event-time-start", "2024-01-01", "--event-time-end", "2024-01-05"]
        run_dbt(["run", "--select", "events", name, *span])
        assert rows(project, f"select count(*) from {{schema}}.{name}") == [(4,)]
        day = ["--event-time-start", "2024-01-02", "--event-time-end", "2024-01-03"]
        run_dbt(["run", "--select", name, "--vars", "run: second", *day])
        actual = rows(project, f"select id, run from {{schema}}.{name} order by id, run")
        # Its predicates keep the row.
        kept = [(1, "first")] if name == "by_spark" else []
        assert actual == [(0, "first"), *kept, (1, "second"), (2, "first"), (3, "first")]
        run_dbt(["run", "--select", name, "--vars", "{run: third, least: 9}", *day])
        actual = rows(project, f"select id from {{schema}}.{name} order by id")
        assert actual == [(0,), *([(1,), (1,)] if kept else []), (2,), (3,)]
        last = next(project.adapter.catalog.snapshots((project.test_schema, name)))
        assert ("spark.app.id" in last.properties) == (name != "unaligned")

    def test_a_retry_completes_a_refresh(self, project: Any) -> None:
        span = ["--event-time-start", "2024-01-01", "--event-time-end", "2024-01-05"]
        command = ["run", "--select", "unaligned", "--full-refresh", *span, "--vars"]
        run_dbt([*command, "{run: second, bad: 2}"], expect_pass=False)
        run(project, "alter table {schema}.unaligned rename to {schema}.elsewhere")
        _, log = run_dbt_and_capture(["retry", "--vars", "run: second"], expect_pass=False)
        assert "Run the model with --full-refresh" in log
        run(project, "alter table {schema}.elsewhere rename to {schema}.unaligned")
        run_dbt(["retry", "--vars", "run: second"])
        actual = rows(project, "select id, run from {schema}.unaligned order by id")
        assert actual == [(n, "second") for n in range(4)]


HOURS = """
{{ config(materialized='table', event_time='at') }}
select id, timestamp '2024-01-01' + make_interval(0, 0, 0, 0, cast(id as int), 0, 0) as at
from range(168)
"""


class TestConcurrentBatches:
    """Each batch is one commit; those that meet are committed one after the other."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        batches = BATCHES.replace("'events'", "'hours'")
        return {
            "hours.sql": HOURS,
            "aligned.sql": batches.format(partition="partition_by=['day(at)']"),
            "unaligned.sql": batches.format(partition="partition_by=['month(at)']"),
        }

    @pytest.mark.parametrize("name", [pytest.param("aligned", marks=pytest.mark.slow), "unaligned"])
    def test_each_batch_replaces_its_day(self, project: Any, name: str) -> None:
        span = ["--event-time-start", "2024-01-01", "--event-time-end", "2024-01-08"]
        run_dbt(["run", "--select", "hours", name, "--threads", "8", *span])
        commits = len(snapshot_ids(project, name))
        days = ["--event-time-start", "2024-01-02", "--event-time-end", "2024-01-07"]
        arguments = ["--select", name, "--threads", "8", "--vars", "run: second", *days]
        (result,) = run_dbt(["run", *arguments]).results
        assert len(result.batch_results.successful) == 5
        assert len(snapshot_ids(project, name)) == commits + 5
        by_run = f"select run, count(*), count(distinct id) from {{schema}}.{name} group by run"
        assert sorted(rows(project, by_run)) == [("first", 48, 48), ("second", 120, 120)]


LAYOUT = """
{{ config(materialized='incremental', incremental_strategy='append',
    partition_by=var('by', ['bucket(4, id)']), sort_order=var('sort', []),
    table_properties={'owner_team': var('team', 'one')}, format_version=var('version', 2),
    target_file_size=var('size', '128mb')) }}
select id, timestamp '2024-01-01' as at from range(10)
"""


class TestLayout:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"layout.sql": LAYOUT}

    def test_a_changed_config_alters_the_table(self, project: Any) -> None:
        run_dbt(["run"])
        first = table(project, "layout")
        assert [str(f.transform) for f in first.spec().fields] == ["bucket[4]"]
        assert first.properties["owner_team"] == "one"
        wanted = '{by: ["month(at)", id], sort: ["id desc"], team: two, version: 3, size: 64mb}'
        run_dbt(["run", "--vars", wanted])
        second = table(project, "layout")
        assert [str(f.transform) for f in second.spec().fields] == ["month", "identity"]
        assert [f.direction.value for f in second.sort_order().fields] == ["desc"]
        assert second.properties["owner_team"] == "two"
        assert second.metadata.format_version == 3
        assert second.properties["write.target-file-size-bytes"] == str(64 * 2**20)
        assert second.metadata.table_uuid == first.metadata.table_uuid
        assert rows(project, "select count(*) from {schema}.layout") == [(20,)]

    def test_an_unchanged_config_alters_nothing(self, project: Any) -> None:
        before = table(project, "layout").metadata.last_updated_ms
        run_dbt(
            [
                "run",
                "--vars",
                '{by: ["month(at)", id], sort: ["id desc"], team: two, version: 3, size: 64mb}',
            ]
        )
        log = table(project, "layout").metadata.metadata_log
        assert len([entry for entry in log if entry.timestamp_ms >= before]) == 1
