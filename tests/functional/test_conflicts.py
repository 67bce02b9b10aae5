"""Statements that lose against another writer are run again, if they would read the same rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from dbt_common.exceptions import DbtDatabaseError

from tests.functional.lake import rows, run, snapshot_ids

WRITERS = 3


def together(project: Any, work: Callable[[int], None]) -> list[BaseException]:
    """Do it in several connections at once; what went wrong."""
    faults: list[BaseException] = []
    ready = threading.Barrier(WRITERS)

    def one(number: int) -> None:
        try:
            with project.adapter.connection_named(f"writer{number}"):
                project.adapter.execute("select 1")
                ready.wait(60)
                work(number)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults


class TestConflicts:
    @pytest.fixture(scope="class", autouse=True)
    def tables(self, project: Any) -> None:
        run(project, "create table {schema}.target as select id, 0 as n from range(10)")
        for number in range(WRITERS):
            source = f"select id, {number + 1} as n from range(5)"
            run(project, f"create table {{schema}}.source{number} as {source}")

    def test_merges_of_the_same_rows(self, project: Any) -> None:
        schema = project.test_schema

        def merge(number: int) -> None:
            for statement in (
                f"cache table staged{number} as select * from {schema}.source{number}",
                f"merge into {schema}.target t using staged{number} s on s.id <=> t.id "
                "when matched then update set n = t.n + s.n",
            ):
                project.adapter.execute(statement)

        before = snapshot_ids(project, "target")
        assert together(project, merge) == []
        # The sum of all: none was lost, none was done twice.
        total = sum(range(1, WRITERS + 1))
        actual = rows(project, "select n, count(*) from {schema}.target group by n order by n")
        assert actual == [(0, 5), (total, 5)]
        assert len(snapshot_ids(project, "target")) == len(before) + WRITERS

    def test_updates_and_deletes(self, project: Any) -> None:
        run(project, "create table {schema}.counted as select id, 0 as n from range(10)")
        schema = project.test_schema

        def change(number: int) -> None:
            project.adapter.execute(f"update {schema}.counted set n = n + 1 where id > 0")
            project.adapter.execute(f"delete from {schema}.counted where id = {number + 5}")

        assert together(project, change) == []
        actual = rows(project, "select id, n from {schema}.counted order by id")
        assert [row[0] for row in actual] == [0, 1, 2, 3, 4, 8, 9]
        assert {row[1] for row in actual[1:]} == {WRITERS}

    def test_tables_built_at_once(self, project: Any) -> None:
        schema = project.test_schema
        sql = "create or replace table {}.built using iceberg as select {} as n from range(3)"
        assert together(project, lambda n: project.adapter.execute(sql.format(schema, n))) == []
        actual = rows(project, "select count(*), count(distinct n) from {schema}.built")
        assert actual == [(3, 1)]

    def test_rows_computed_from_the_target_are_not_written_again(self, project: Any) -> None:
        schema = project.test_schema
        staged = threading.Barrier(WRITERS)
        rows_of = f"select id, max(n) as n from {schema}.target group by id"

        def merge(number: int) -> None:
            project.adapter.execute(f"cache table own{number} as {rows_of}")
            staged.wait(60)
            project.adapter.execute(
                f"merge into {schema}.target t using own{number} s on s.id <=> t.id "
                "when matched then update set n = s.n + 1"
            )

        faults = together(project, merge)
        assert 1 <= len(faults) < WRITERS
        for fault in faults:
            assert isinstance(fault, DbtDatabaseError)
            assert "The commit conflicts with another writer's" in str(fault)
            assert f"{schema}.target has changed, and the rows were computed from it" in str(fault)
