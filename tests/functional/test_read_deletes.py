"""Models that read tables with equality deletes, each delete file once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.materializations import read_deletes
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.deletes.conversion import STAGED
from dbt.adapters.iceberg_stream.tables.files.deletes import write_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.functional.lake import rows, run, table

SOURCES = """
sources:
  - name: raw
    schema: "{{ target.schema }}"
    tables: [{name: events}, {name: keys}]
"""
JOINED = """
select e.id, e.value from {{ source('raw', 'events') }} e
where e.id in (select id from {{ source('raw', 'events') }})
"""
MERGED = """
{{ config(materialized='incremental', unique_key='id', read_deletes='once') }}
select id, value from {{ source('raw', 'events') }}
"""
HISTORY = """
{% snapshot history %}
{{ config(unique_key='id', strategy='check', check_cols=['value'], read_deletes='once') }}
select id, value from {{ source('raw', 'events') }}
{% endsnapshot %}
"""


def delete_keys(project: Any, name: str, *keys: int) -> None:
    """Commit an equality delete, as Flink does."""
    catalog = project.adapter.catalog
    base = catalog.load((project.test_schema, name))
    target = WriteTarget.of(base.metadata, base.io)
    rows_of_keys = pa.table({"id": pa.array(keys, pa.int32())})
    file = write_equality_deletes(target, f"deletes-{'-'.join(map(str, keys))}", rows_of_keys)
    change = Change(Operation.DELETE, (AddedFiles(deletes=(file,)),))
    Committer(catalog, (project.test_schema, name), change, base).commit()


def staged(project: Any, name: str = "events") -> list[int]:
    """Ids of the snapshots that no branch has."""
    snapshots = table(project, name).metadata.snapshots
    return [s.snapshot_id for s in snapshots if STAGED in s.summary.additional_properties]


@pytest.fixture
def events(project: Any) -> Callable[..., list[tuple[Any, ...]]]:
    """A table of three rows, of which one is deleted by its key: its rows in a model."""
    run(project, "drop table if exists {schema}.events")
    run(project, "create table {schema}.events (id int, value string) using iceberg")
    run(project, "insert into {schema}.events values (1, 'a'), (2, 'b'), (3, 'c')")
    delete_keys(project, "events", 2)

    def read(model: str) -> list[tuple[Any, ...]]:
        return rows(project, f"select id, value from {{schema}}.{model} order by id")

    return read


class TestReadDeletes:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "sources.yml": SOURCES,
            "joined.sql": "{{ config(materialized='table', read_deletes='once') }}" + JOINED,
            "estimated.sql": "{{ config(materialized='table', read_deletes='auto') }}" + JOINED,
            "by_spark.sql": "{{ config(materialized='table') }}" + JOINED,
            "a_view.sql": "{{ config(materialized='view', read_deletes='once') }}" + JOINED,
            "merged.sql": MERGED,
        }

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"history.sql": HISTORY}

    def test_a_table(self, project: Any, events: Any) -> None:
        before = table(project, "events").metadata
        run_dbt(["run", "--select", "joined"])
        assert events("joined") == [(1, "a"), (3, "c")]
        after = table(project, "events").metadata
        assert after.current_snapshot_id == before.current_snapshot_id
        (first,) = staged(project)
        # The next model reads the same snapshot.
        run_dbt(["run", "--select", "joined"])
        assert staged(project) == [first]
        # The snapshot has no equality deletes.
        files = rows(
            project, "select content from {schema}.events.all_delete_files where content = 2"
        )
        assert len(files) == 1
        run(project, "insert into {schema}.events values (4, 'd')")
        delete_keys(project, "events", 1)
        run_dbt(["run", "--select", "joined"])
        assert events("joined") == [(3, "c"), (4, "d")]
        assert len(staged(project)) == 2

    def test_spark_reads_where_that_is_faster(self, project: Any, events: Any) -> None:
        run_dbt(["run", "--select", "estimated", "by_spark", "a_view"])
        for model in ("estimated", "by_spark", "a_view"):
            assert events(model) == [(1, "a"), (3, "c")]
        assert staged(project) == []

    def test_once_where_that_is_faster(
        self, project: Any, events: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(read_deletes, "SECONDS_PER_KEY", 0.0)
        run_dbt(["run", "--select", "estimated"])
        assert events("estimated") == [(1, "a"), (3, "c")]
        assert len(staged(project)) == 1

    def test_an_incremental_model(self, project: Any, events: Any) -> None:
        run_dbt(["run", "--select", "merged", "--full-refresh"])
        assert events("merged") == [(1, "a"), (3, "c")]
        run(project, "insert into {schema}.events values (4, 'd')")
        delete_keys(project, "events", 3)
        run_dbt(["run", "--select", "merged"])
        # A merge deletes nothing.
        assert events("merged") == [(1, "a"), (3, "c"), (4, "d")]
        assert len(staged(project)) == 2

    def test_a_snapshot(self, project: Any, events: Any) -> None:
        run_dbt(["snapshot"])
        assert events("history") == [(1, "a"), (3, "c")]
        run(project, "insert into {schema}.events values (4, 'd')")
        delete_keys(project, "events", 3)
        run_dbt(["snapshot"])
        assert events("history") == [(1, "a"), (3, "c"), (4, "d")]
        assert len(staged(project)) == 2

    def test_the_catalog_refuses(
        self, project: Any, events: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The user may read the source, but not write to it."""

        def refuse(*_: Any) -> None:
            raise CatalogError("rita may not write.")

        monkeypatch.setattr(read_deletes, "stage_conversion", refuse)
        _, log = run_dbt_and_capture(["run", "--select", "joined"])
        assert "cannot be read once: rita may not write." in log
        assert events("joined") == [(1, "a"), (3, "c")]


class TestStreams:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        config = "{{ config(materialized='stream', unique_key='id', read_deletes='READS') }}"
        query = "select id, value from {{ stream(source('raw', 'events')) }}"
        sources = SOURCES.replace(
            "{name: events}", "{name: events, config: {meta: {stream: {changes: true}}}}"
        )
        return {
            "sources.yml": sources,
            "by_spark.sql": config.replace("READS", "spark") + query,
            "once.sql": config.replace("READS", "once") + query,
            "wrong.sql": config.replace("READS", "twice") + query,
        }

    def test_the_first_read_of_a_source(self, project: Any, events: Any) -> None:
        run_dbt(["run", "--select", "by_spark"])
        assert staged(project) == []
        run_dbt(["run", "--select", "once"])
        assert len(staged(project)) == 1
        for model in ("once", "by_spark"):
            assert events(model) == [(1, "a"), (3, "c")]
        # Later snapshots are read by their own files.
        run(project, "insert into {schema}.events values (4, 'd')")
        delete_keys(project, "events", 1)
        run_dbt(["run", "--select", "once", "by_spark"])
        for model in ("once", "by_spark"):
            assert events(model) == [(3, "c"), (4, "d")]
        assert len(staged(project)) == 1

    def test_a_wrong_choice(self, project: Any, events: Any) -> None:
        (result,) = run_dbt(["run", "--select", "wrong"], expect_pass=False)
        assert "`read_deletes` must be one of spark, once, auto; got 'twice'" in result.message


class TestWrongChoice:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "wrong.sql": "{{ config(materialized='table', read_deletes='twice') }} select 1 as id"
        }

    def test_the_message(self, project: Any) -> None:
        (result,) = run_dbt(["run"], expect_pass=False)
        assert "`read_deletes` must be one of spark, once, auto; got 'twice'" in result.message
