"""Which tables this process may write in place of Spark."""

from __future__ import annotations

from pathlib import Path

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.sessions.storage_reach import StorageReach

EMPTY: Metadata = {"current-snapshot-id": -1, "snapshots": []}


def table_with(manifest_list: str) -> Metadata:
    old = {"snapshot-id": 1, "manifest-list": "s3://lake/old.avro"}
    return {
        "current-snapshot-id": 2,
        "snapshots": [old, {"snapshot-id": 2, "manifest-list": manifest_list}],
    }


def test_all_tables_of_an_engine_on_this_machine(tmp_path: Path) -> None:
    reach = StorageReach()
    for metadata in (None, EMPTY, table_with(str(tmp_path / "missing.avro"))):
        assert reach.includes("lake", metadata)


def test_new_tables_of_a_cluster_are_created_there() -> None:
    reach = StorageReach(is_remote=True)
    assert not reach.includes("lake", None)
    assert not reach.includes("lake", EMPTY)
    assert reach.includes("lake", table_with("s3://lake/t/snap-2.avro"))


def test_a_local_path_is_that_of_the_cluster_if_the_files_are_in_it(tmp_path: Path) -> None:
    reach = StorageReach(is_remote=True)
    path = tmp_path / "snap-2.avro"
    metadata = table_with(f"file://{path}")
    assert not reach.includes("lake", metadata)
    path.touch()
    assert reach.includes("lake", metadata)


def test_a_catalog_whose_storage_had_an_error() -> None:
    for is_remote in (True, False):
        reach = StorageReach(is_remote)
        reach.exclude("lake")
        assert not reach.includes("lake", table_with("s3://lake/t/snap-2.avro"))
        assert reach.includes("other", table_with("s3://lake/t/snap-2.avro"))
