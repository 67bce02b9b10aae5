"""Increments that read their own table, and a writer that commits between any two calls."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from dbt.tests.util import run_dbt, write_file

from tests.functional.foreign_writer import ALL, foreign_writer
from tests.functional.lake import rows, run
from tests.functional.random_increments import STRATEGIES, RandomIncrements
from tests.functional.random_projects import model as random_model

FIRST = "{% if not is_incremental() %}select 1 as id, 0 as n{% else %}"


def model(select: str, strategy: str, **config: str) -> str:
    config |= {"materialized": "incremental", "incremental_strategy": strategy}
    options = ", ".join(f"{key}='{value}'" for key, value in config.items())
    return f"{{{{ config({options}) }}}}\n{FIRST}{select}{{% endif %}}"


# Adds 1 to what the table holds, so that a lost update shows.
COUNT = "select id, n + 1 as n from {{ this }}"
# What comes after the greatest id.
NEXT = "select max(id) + 1 as id, 0 as n from {{ this }}"
# The same by a query that runs before the model's statement.
QUERIED = "{{% set n = run_query('select max({0}) + 1 from ' ~ this).columns[0][0] %}}"
COUNT_QUERIED = QUERIED.format("n") + "select 1 as id, {{ n }} as n"
NEXT_QUERIED = QUERIED.format("id") + "select {{ n }} as id, 0 as n"
MODELS = {
    "merged": model(COUNT, "merge", unique_key="id"),
    "merged_by_spark": model(COUNT, "merge", unique_key="id", merge_engine="spark"),
    "deleted": model(COUNT, "delete+insert", unique_key="id"),
    "overwritten": model(COUNT, "insert_overwrite"),
    "appended": model(NEXT, "append"),
    "appended_by_metadata": model(
        "select sum(record_count) + 1 as id, 0 as n from {{ this }}.files", "append"
    ),
    # They read something else than tables of the catalog, too.
    "merged_with_file": model(
        f"{COUNT} cross join (select 1 from text.`{__file__}` limit 1)", "merge", unique_key="id"
    ),
    "merged_by_name": model(
        COUNT.replace("{{ this }}", "identifier('{{ this.schema }}.{{ this.identifier }}')"),
        "merge",
        unique_key="id",
    ),
    "appended_with_file": model(
        f"{NEXT} cross join (select 1 from text.`{__file__}` limit 1)", "append"
    ),
    "merged_queried": model(COUNT_QUERIED, "merge", unique_key="id"),
    "merged_by_spark_queried": model(COUNT_QUERIED, "merge", unique_key="id", merge_engine="spark"),
    # The hook comes after the node's own write.
    "appended_queried": model(
        NEXT_QUERIED, "append", post_hook="insert into {{ this }} select -1, 0 where false"
    ),
}
APPENDED = ("appended", "appended_queried", "appended_by_metadata", "appended_with_file")
# What another run of the same model does to the table.
FOREIGN = {
    name: f"insert into {{schema}}.{name} select max(id) + 1, 0 from {{schema}}.{name}"
    for name in APPENDED
}
UPDATE = "update {{schema}}.{name} set n = n + 1"
# The table after so many runs.
EXPECTED = dict.fromkeys(APPENDED, lambda runs: [(n + 1, 0) for n in range(runs + 1)])
# Three days.
DAYS = """
{{ config(materialized='table', event_time='at') }}
select timestamp '2026-01-01' + make_interval(0, 0, 0, cast(id as int)) as at from range(3)
"""
BATCHED = """
{{ config(materialized='incremental', incremental_strategy='microbatch', event_time='at',
          batch_size='day', begin='2026-01-01', partition_by='days(at)') }}
{% set n = run_query('select max(n) + 1 from ' ~ this).columns[0][0] if is_incremental() else 1 %}
select {{ n }} as n, at from {{ ref('days') }}
"""
BATCHES = ["--event-time-start", "2026-01-01", "--event-time-end", "2026-01-04"]


# Small tables are written by dbt's process, the others by Spark.
SMALL = [
    pytest.param("merged", marks=pytest.mark.slow),
    "merged_by_name",
    pytest.param("appended", marks=pytest.mark.slow),
    pytest.param("merged_queried", marks=pytest.mark.slow),
    "appended_queried",
]
FAST = ("merged_with_file", "appended_queried")


def foreign_write(project: Any, sql: str) -> Callable[[], None]:
    """Return what runs a statement outside of dbt's command."""

    def write() -> None:
        # A thread has one connection at a time.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run, project, sql).result()

    return write


class SelfReading:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {f"{name}.sql": text for name, text in MODELS.items()}

    def assert_none_lost(self, project: Any, name: str) -> None:
        """Assert that a run and a foreign write are both in the table, or the run failed."""
        foreign = FOREIGN.get(name, UPDATE.format(name=name))

        write = foreign_write(project, foreign)
        expected = EXPECTED.get(name, lambda runs: [(1, runs)])
        run_dbt(["run", "--select", name, "--full-refresh"])
        call, runs, lost = 0, 0, []
        while True:
            with foreign_writer(write, call) as calls:
                results = run_dbt(["run", "--select", name], expect_pass=None)
            if not calls.has_written:
                break
            (result,) = results
            runs += 1 + (result.status == "success")
            if result.status != "success":
                assert "has changed, and the rows were computed from it" in result.message
            actual = rows(project, f"select id, n from {{schema}}.{name} order by id, n")
            if actual != expected(runs):
                lost.append((call, calls.names[: call + 1], result.status, actual))
                run_dbt(["run", "--select", name, "--full-refresh"])
                runs = 0
            call += 1
        assert lost == []
        assert call > 3
        refs = rows(project, f"select name from lake.{{schema}}.{name}.refs")
        assert refs == [("main",)]


class TestFewRows(SelfReading):
    @pytest.mark.parametrize("name", SMALL)
    def test_no_update_is_lost(self, project: Any, name: str) -> None:
        self.assert_none_lost(project, name)


@pytest.mark.slow
class TestManyRows(SelfReading):
    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: Any) -> dict[str, object]:
        return {**dbt_profile_target, "small_table_rows": 0}

    @pytest.mark.parametrize(
        "name",
        [
            name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
            for name in sorted(MODELS)
        ],
    )
    def test_no_update_is_lost(self, project: Any, name: str) -> None:
        self.assert_none_lost(project, name)


class TestBatches:
    """Each batch of a model counts on from its table, which is partitioned by day."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"days.sql": DAYS, "batched.sql": BATCHED}

    def test_no_number_is_given_twice(self, project: Any) -> None:
        write = foreign_write(
            project,
            "insert into {schema}.batched select max(n) + 1, timestamp '2026-01-05' "
            "from {schema}.batched",
        )
        run_dbt(["run", *BATCHES])
        call = 0
        while True:
            before = rows(project, "select max(n) from {schema}.batched")[0][0]
            with foreign_writer(write, call) as calls:
                results = run_dbt(["run", "--select", "batched", *BATCHES], expect_pass=None)
            if not calls.has_written:
                break
            numbers = [n for (n,) in rows(project, "select n from {schema}.batched where n > 3")]
            at = call, calls.names[: call + 1], before, sorted(numbers)
            assert len(set(numbers)) == len(numbers), at
            (result,) = results
            given = max(numbers) - before
            assert given == 1 + len(result.batch_results.successful), at
            call += 17
        assert call > 20


# Both rows and their places are read, and before them the keys that occur twice.
CONDITION = {"matched_condition": "DBT_INTERNAL_SOURCE.n <> DBT_INTERNAL_DEST.n + 1000"}
OF_SOURCE = {
    "merged": {"incremental_strategy": "merge", **CONDITION},
    "merged_by_spark": {"incremental_strategy": "merge", "merge_engine": "spark"},
    "deleted": {"incremental_strategy": "delete+insert"},
}


class TestSource:
    """The rows of a run are those of one version of its source."""

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: Any) -> dict[str, object]:
        return {**dbt_profile_target, "small_table_rows": 0}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        common = {"materialized": "incremental", "unique_key": "id"}
        sql = "select id, n from {{ target.schema }}.src"
        return {f"{name}.sql": random_model({**common, **c}, sql) for name, c in OF_SOURCE.items()}

    @pytest.mark.parametrize(
        "name", ["merged", *(pytest.param(n, marks=pytest.mark.slow) for n in [*OF_SOURCE][1:])]
    )
    def test_rows_are_of_one_version(self, project: Any, name: str) -> None:
        expected = dict.fromkeys((1, 2, 3, 4), 0)
        run(project, f"create or replace table {{schema}}.src as {pairs(expected)}")
        run_dbt(["run", "--select", name])
        for call in count():
            before = dict.fromkeys((1, 2, 3), call + 1)
            after = dict.fromkeys((2, 3, 4), -call - 1)
            run(project, f"insert overwrite {{schema}}.src {pairs(before)}")
            write = foreign_write(project, f"insert overwrite {{schema}}.src {pairs(after)}")
            with foreign_writer(write, call, ALL) as calls:
                run_dbt(["run", "--select", name])
            actual = rows(project, f"select id, n from {{schema}}.{name}")
            possible = [expected | before, expected | after]
            assert sorted(actual) in [sorted(each.items()) for each in possible], (
                calls.names[: call + 1],
                expected,
            )
            if not calls.has_written:
                break
            expected = dict(actual)
        assert call > 10


def pairs(rows: dict[int, int]) -> str:
    values = ", ".join(f"({id}, {n})" for id, n in rows.items())
    return f"select * from values {values} as t(id, n)"


# The others are written by the same code, or replace more.
SHORT = ("merge", "append")


class Histories:
    """Increments of all strategies, with a foreign write in most of them."""

    @pytest.mark.parametrize(
        ("seed", "steps", "strategy"),
        [
            *((1, 8, strategy) for strategy in SHORT),
            *(
                pytest.param(seed, 30, strategy, marks=pytest.mark.slow)
                for seed in range(1, 8)
                for strategy in STRATEGIES
            ),
        ],
    )
    def test_all_writes_are_in_the_table(
        self, project: Any, seed: int, steps: int, strategy: str
    ) -> None:
        random = RandomIncrements(seed, strategy)
        name = f"m{seed}_{strategy.replace('+', '_')}"
        sql, expected = random.first()
        self.build(project, name, sql)
        run(project, f"create table {{schema}}.{name}_source as select * from {random.values([])}")
        for step in range(steps):
            build = random.next_build()
            table = f"{project.test_schema}.{name}"
            write = foreign_write(project, build.foreign_sql.format(table=table))
            with foreign_writer(write, build.call, ALL) as calls:
                result = self.build(project, name, build.sql)
            at = f"seed {seed}, {strategy}, step {step}"
            succeeds = result.status == "success"
            if not calls.has_written:
                assert (at, result.message if not succeeds else None) == (at, None)
                write()
                possible = [build.foreign(build.change(expected))]
            else:
                is_conflict = "another writer" in str(result.message).lower()
                assert (at, succeeds or is_conflict, result.message) == (at, True, result.message)
                possible = build.results(expected, succeeds)
            actual = rows(project, f"select id, k, n from {table}")
            ordered = [sorted(each, key=str) for each in possible]
            assert sorted(actual, key=str) in ordered, (
                f"{at}: {build.foreign_sql} before call {build.call} of {calls.names}\n"
                f"{build.sql}\nbefore: {expected}\nactual: {actual}\nexpected: {ordered}"
            )
            expected = actual

    def build(self, project: Any, name: str, sql: str) -> Any:
        write_file(sql, project.project_root, "models", f"{name}.sql")
        (result,) = run_dbt(["run", "--select", name], expect_pass=None)
        return result


class TestHistories(Histories):
    """Small increments are read once, by dbt's process."""


@pytest.mark.slow
class TestHistoriesOfManyRows(Histories):
    """All increments are staged, and written by Spark."""

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: Any) -> dict[str, object]:
        return {**dbt_profile_target, "small_table_rows": 0}
