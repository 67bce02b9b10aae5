"""What a report is made of: which tables, their writes, runs and streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table.update import SetSnapshotRefUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.report.contents import Table
from dbt.adapters.iceberg_stream.report.gather import gather
from dbt.adapters.iceberg_stream.report.project import read_project
from dbt.adapters.iceberg_stream.report.render import render
from tests.unit.local_tables import load, make_table, set_metadata
from tests.unit.report.lakes import (
    LATER_RUN,
    RUN,
    append,
    delete,
    fill,
    properties,
    stream_commits,
)


def only_table(lake: IcebergCatalog) -> Table:
    (table,) = gather(lake, ["s"]).tables
    return table


def refuse(lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, *namespaces: str) -> None:
    """Have the catalog refuse to list the tables of namespaces."""
    relations = lake.relations

    def refusing(namespace: str) -> list[tuple[str, str]]:
        if namespace in namespaces:
            raise CatalogError(f"The catalog refused to list the tables of {namespace}.")
        return relations(namespace)

    monkeypatch.setattr(lake, "relations", refusing)


def test_the_tables_of_a_project(lake: IcebergCatalog, tmp_path: Path) -> None:
    fill(lake, tmp_path)
    contents = gather(lake, project=read_project(tmp_path / "target"))
    assert [table.name[1] for table in contents.tables] == ["events", "events__eu", "orders"]
    assert contents.unreadable == {}
    assert len(contents.nodes) == 5


def test_the_tables_of_a_namespace(lake: IcebergCatalog, tmp_path: Path) -> None:
    fill(lake, tmp_path)
    lake.create_namespace("other")
    make_table(lake, name=("other", "t"))
    project = read_project(tmp_path / "target")
    contents = gather(lake, ["s"], project)
    assert len(contents.tables) == 6
    assert list(contents.unreadable) == ["s.gone"]
    (other,) = gather(lake, ["other"], project).tables
    assert (other.name, other.node) == (("other", "t"), None)
    assert gather(lake, ["other"], project).nodes == {}


def test_all_namespaces_without_a_project(lake: IcebergCatalog) -> None:
    lake.create_namespace("other")
    make_table(lake)
    make_table(lake, name=("other", "t"))
    assert [table.name for table in gather(lake).tables] == [("other", "t"), ("s", "t")]


def test_a_namespace_that_the_catalog_refuses(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create_namespace("secret")
    make_table(lake)
    refuse(lake, monkeypatch, "secret")
    contents = gather(lake)
    assert [table.name for table in contents.tables] == [("s", "t")]
    assert contents.unreadable == {"secret": "The catalog refused to list the tables of secret."}


def test_all_namespaces_are_refused(lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(lake, monkeypatch, "s")
    with pytest.raises(CatalogError, match="refused to list the tables of s"):
        gather(lake)


@pytest.mark.parametrize("key", ["current_snapshot_id", "snapshots"])
def test_damaged_metadata(lake: IcebergCatalog, key: str) -> None:
    make_table(lake)
    make_table(lake, name=("s", "whole"))
    append(lake, ("s", "t"))
    damaged = {"current_snapshot_id": 1, "refs": {}} if key != "snapshots" else {"snapshots": []}
    set_metadata(lake, **damaged)
    contents = gather(lake, ["s"])
    assert [table.name[1] for table in contents.tables] == ["whole"]
    assert contents.unreadable == {"s.t": "Its metadata lack the current snapshot."}


@pytest.mark.parametrize(
    "damage",
    [
        {"refs": [1]},
        {"snapshots": 7},
        {"snapshots": [{"snapshot-id": 1}]},
        {"properties": [], "partition_specs": None},
    ],
    ids=str,
)
def test_metadata_of_another_shape(lake: IcebergCatalog, damage: dict[str, object]) -> None:
    make_table(lake)
    make_table(lake, name=("s", "whole"))
    append(lake, ("s", "t"))
    set_metadata(lake, **damage)
    contents = gather(lake, ["s"])
    assert [table.name[1] for table in contents.tables] == ["whole"]
    assert "Its metadata" in contents.unreadable["s.t"]


def test_a_time_beyond_all_years(lake: IcebergCatalog) -> None:
    make_table(lake)
    for _ in range(3):
        append(lake, ("s", "t"))
    snapshots = load(lake).metadata["snapshots"]
    set_metadata(lake, snapshots=[{**s, "timestamp-ms": 2**62} for s in snapshots])
    assert "unknown" in render(gather(lake, ["s"]))


def test_manifests_that_are_gone(lake: IcebergCatalog) -> None:
    make_table(lake)
    append(lake, ("s", "t"))
    location = load(lake).metadata["snapshots"][0]["manifest-list"]
    Path(location.removeprefix("file://")).unlink()
    assert "FileNotFoundError" in gather(lake, ["s"]).unreadable["s.t"]


def test_writes(lake: IcebergCatalog) -> None:
    make_table(lake)
    append(lake, ("s", "t"), 44, **properties("orders"))
    append(lake, ("s", "t"), 16, **{"spark.app.id": "local-1", "engine-name": "spark"})
    delete(lake, ("s", "t"), 5)
    deleted, spark, first = only_table(lake).writes
    assert (first.writer, first.run, first.principal) == ("model orders", RUN, "ada")
    assert (first.operation, first.inserted, first.totals.rows) == ("append", 44, 44)
    assert (spark.writer, spark.run, spark.inserted) == ("Spark local-1", "", 16)
    assert (deleted.operation, deleted.deleted, deleted.totals.deletes) == ("delete", 5, 5)
    assert deleted.totals.delete_files == 1


def test_other_branches_are_not_listed(lake: IcebergCatalog) -> None:
    make_table(lake)
    append(lake, ("s", "t"))
    first = load(lake).metadata["current-snapshot-id"]
    append(lake, ("s", "t"), number="2")
    second = load(lake).metadata["current-snapshot-id"]
    for name, snapshot in (("audit", second), ("main", first)):
        fields = {"ref-name": name, "type": "branch", "snapshot-id": snapshot}
        lake.commit(load(lake), (), (SetSnapshotRefUpdate.model_validate(fields),))
    table = only_table(lake)
    assert [write.snapshot_id for write in table.writes] == [first]
    assert (table.snapshots, table.other_snapshots) == (1, 1)


def test_after_a_rollback_the_current_snapshot_counts(lake: IcebergCatalog) -> None:
    make_table(lake)
    append(lake, ("s", "t"), 3)
    first = load(lake).metadata["current-snapshot-id"]
    append(lake, ("s", "t"), 4)
    fields = {"ref-name": "main", "type": "branch", "snapshot-id": first}
    lake.commit(load(lake), (), (SetSnapshotRefUpdate.model_validate(fields),))
    table = only_table(lake)
    assert len(table.writes) == 2
    assert table.current is not None and table.current.totals.rows == 3


def test_runs(lake: IcebergCatalog, tmp_path: Path) -> None:
    fill(lake, tmp_path)
    contents = gather(lake, project=read_project(tmp_path / "target"))
    later, first = contents.runs
    assert (later.invocation_id, first.invocation_id) == (LATER_RUN, RUN)
    assert first.principals == ["ada"]
    (change,) = later.changes
    assert (change.table, change.writes, change.inserted) == (("s", "orders"), 1, 16)
    assert (change.rows_before, change.rows_after, change.seconds) == (44, 60, 12.34)
    assert (first.changes[0].rows_before, first.changes[0].seconds) == (None, None)


def test_streams(lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(lake)
    stream_commits(lake, ("s", "t"), 10, 20, 30)
    base = load(lake).metadata
    snapshots = [
        {**snapshot, "timestamp-ms": 1_700_000_000_000 + 1000 * number}
        for number, snapshot in enumerate(base["snapshots"])
    ]
    set_metadata(lake, snapshots=snapshots)
    (stream,) = only_table(lake).streams
    assert (stream.sink_id, stream.problem, stream.progress) == (
        "model.shop.events",
        None,
        '{"0": 2}',
    )
    # The first commit only starts the clock.
    assert (stream.commits, stream.rows_per_second) == (3, 25.0)


def test_a_stream_with_unreadable_progress(lake: IcebergCatalog) -> None:
    make_table(lake, properties={"iceberg-stream.sink.x": "no JSON"})
    (stream,) = only_table(lake).streams
    assert stream.problem is not None and "cannot be read" in stream.problem
    assert (stream.progress, stream.rows_per_second) == ("", None)


def test_many_files_are_examined_first(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined = []
    monkeypatch.setattr(
        "dbt.adapters.iceberg_stream.report.tables.table_health",
        lambda loaded, now: examined.append(loaded.name[1]),
    )
    monkeypatch.setattr("dbt.adapters.iceberg_stream.report.tables.THREADS", 1)
    for name, files, deletes in (("few", 1, 0), ("many", 9, 0), ("deleted", 2, 3)):
        make_table(lake, name=("s", name))
        append(lake, ("s", name), files=files)
        if deletes:
            delete(lake, ("s", name), 1, deletes)
    gather(lake, ["s"])
    assert examined == ["deleted", "many", "few"]
