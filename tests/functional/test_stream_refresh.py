"""Full refreshes that take several commits: readers see the rows before, or those after it."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.iceberg.source import IcebergSource
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from tests.functional.lake import rows, run, snapshot_ids
from tests.functional.orders_stream import ALL, ORDERS, SOURCES, land

BY_NULLS = "unique_key='id', ignore_null_updates=true, batch_rows=1"
MORE = "insert into {schema}.orders values (9, 'foreign', 9.0, 9)"


def tables(project: Any) -> list[str]:
    return sorted(name for name, _ in project.adapter.catalog.relations(project.test_schema))


class TestRowsOfEarlierBatches:
    ENCODING, VERSION = "auto", 3

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        by_nulls = f"{BY_NULLS}, delete_encoding='{self.ENCODING}'"
        by_nulls += f", format_version={self.VERSION}"
        return {"orders.sql": ORDERS.replace("unique_key='id'", by_nulls), "sources.yml": SOURCES}

    def test_a_full_refresh(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        land(project, "1", (1, "new", 1.0, "c", 1), (2, "new", 2.0, "c", 1))
        land(project, "2", (1, None, 5.0, "u", 2), (3, "new", 3.0, "c", 2))
        land(project, "3", (1, "paid", None, "u", 3), (2, None, None, "d", 3))
        run_dbt(["run"])
        expected = [(1, "paid", 5.0), (3, "new", 3.0)]
        assert rows(project, ALL) == expected
        run(project, MORE)
        before = snapshot_ids(project, "orders")

        def die(*_: object) -> None:
            raise StreamError("killed")

        # The process ends before it can tidy up.
        with monkeypatch.context() as patch:
            patch.setattr(TableStream, "take_over", die)
            patch.setattr(TableStream, "drop_staged", lambda _: None)
            run_dbt(["run", "--full-refresh"], expect_pass=False)
        assert snapshot_ids(project, "orders") == before
        assert len(tables(project)) == 2
        land(project, "4", (3, "paid", None, "u", 4))
        run_dbt(["run"])
        expected = [(1, "paid", 5.0), (3, "paid", 3.0)]
        assert rows(project, ALL) == [*expected, (9, "foreign", 9.0)]
        assert tables(project) == ["orders"]

        before = snapshot_ids(project, "orders")
        run_dbt(["run", "--full-refresh"])
        assert len(snapshot_ids(project, "orders")) == len(before) + 1
        assert rows(project, ALL) == expected
        assert tables(project) == ["orders"]
        land(project, "5", (3, None, 8.0, "u", 5))
        run_dbt(["run"])
        assert rows(project, ALL) == [(1, "paid", 5.0), (3, "paid", 8.0)]


class TestRowsOfEarlierBatchesWithoutAnIndex(TestRowsOfEarlierBatches):
    ENCODING, VERSION = "equality", 2


EVENTS = """
{{ config(materialized='stream', batch_rows=3, commit_interval=0, %s) }}
select id, status from {{ stream(ref('landed')) }}
"""
LANDED = """
{{ config(materialized='incremental', incremental_strategy='append', format_version=%d) }}
select id, status from values (0, 'x') as t (id, status) where false
"""


class TestFirstReadOfATable:
    """It is cut into batches, within files, too, and continues where a run has failed."""

    VERSION, CONFIG = 2, "unique_key='id'"

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"landed.sql": LANDED % self.VERSION, "events.sql": EVENTS % self.CONFIG}

    def test_each_row_is_read_once(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        run_dbt(["run", "-s", "landed"])
        run(
            project,
            "alter table {schema}.landed set tblproperties ('write.delete.mode'='merge-on-read')",
        )
        run(
            project,
            "insert into {schema}.landed select /*+ coalesce(1) */ id, 'a' from range(7) t (id)",
        )
        run(
            project,
            "insert into {schema}.landed select /*+ coalesce(1) */ id + 7, 'b' from range(3) t (id)",
        )
        run(project, "delete from {schema}.landed where id in (1, 8)")
        read, calls = IcebergSource.read, []

        def fail(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) > 2:
                raise StreamError("killed")
            return read(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(IcebergSource, "read", fail)
            run_dbt(["run", "-s", "events"], expect_pass=False)
        query = "select id, status from {schema}.events order by id"
        assert 0 < len(rows(project, query)) < 8
        run_dbt(["run", "-s", "events"])
        expected = [(id, "a" if id < 7 else "b") for id in range(10) if id not in (1, 8)]
        assert rows(project, query) == expected
        assert len(snapshot_ids(project, "events")) >= 4
        run(project, "insert into {schema}.landed values (10, 'c')")
        run_dbt(["run", "-s", "events"])
        assert rows(project, query) == [*expected, (10, "c")]
