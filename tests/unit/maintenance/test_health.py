"""The health of small tables, whose data files need not exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.maintenance.health import TableHealth, table_health
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from tests.unit.local_tables import (
    commit,
    data_file,
    evolve,
    load,
    make_catalog,
    make_table,
    set_metadata,
)

BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
MIB = 2**20
# Field id of `file_path` in position delete files.
PATH = 2147483546
UNMERGED = {"commit.manifest.min-count-to-merge": "1000"}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    """A catalog whose tables may have metadata that Iceberg refuses."""
    catalog = make_catalog(tmp_path)
    yield catalog
    catalog.close()


def health(lake: IcebergCatalog) -> TableHealth:
    return table_health(load(lake))


def add(lake: IcebergCatalog, *files: DataFile, **properties: str) -> None:
    data = tuple(file for file in files if file.content == DataFileContent.DATA)
    deletes = tuple(file for file in files if file.content != DataFileContent.DATA)
    added = (AddedFiles(data, deletes),)
    commit(lake, Change(Operation.APPEND, added, properties=properties))


def equality(path: str, keys: int, **more: Any) -> DataFile:
    content = DataFileContent.EQUALITY_DELETES
    return data_file(path, keys, content=content, equality_ids=[1], **more)


def positions(path: str, rows: int, **more: Any) -> DataFile:
    return data_file(path, rows, content=DataFileContent.POSITION_DELETES, **more)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_empty_table(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    empty = health(lake)
    assert (empty.format_version, empty.data_files, empty.snapshots) == (version, 0, 0)
    assert (empty.last_commit_ms, empty.deleted_share) == (None, 0.0)
    assert empty.cost.seconds == 0


@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_of_the_current_snapshot(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    add(lake, data_file("a", 10), data_file("b", 5))
    commit(lake, Change(Operation.DELETE, removed=(data_file("b", 5),)))
    now = health(lake)
    assert (now.data_files, now.data_bytes, now.rows) == (1, 100, 10)
    assert (now.manifests, now.snapshots) == (1, 2)
    assert now.last_commit_ms == load(lake).metadata["snapshots"][-1]["timestamp-ms"]


def test_deletes_by_kind(lake: IcebergCatalog) -> None:
    make_table(lake, 2)
    add(lake, data_file("a", 100), data_file("b", 100))
    add(lake, equality("e", 30), positions("p", 4))
    set_metadata(lake, format_version=3, next_row_id=0)
    vector = positions("v", 6, file_format=FileFormat.PUFFIN, referenced_data_file="a")
    add(lake, vector)
    now = health(lake)
    assert (now.equality_files, now.equality_keys) == (1, 30)
    assert (now.position_files, now.position_rows) == (1, 4)
    assert (now.vectors, now.vector_rows) == (1, 6)
    assert (now.delete_files, now.deleted_share) == (3, 0.2)
    assert now.cost_after_compact.positional.seconds == 0
    assert now.cost_after_convert.equality.seconds == 0


def test_position_deletes_cost_by_their_data_files(lake: IcebergCatalog) -> None:
    """Those of one data file are opened together."""
    make_table(lake)
    add(lake, data_file("a", 10), data_file("b", 10))
    of_a, of_b = (
        {"lower_bounds": {PATH: path}, "upper_bounds": {PATH: path}} for path in (b"a", b"b")
    )
    add(lake, positions("p", 1, **of_a), positions("q", 1, **of_a), positions("r", 1, **of_b))
    # Which data files this one is of is unknown.
    add(lake, positions("s", 1))
    cost = health(lake).cost.positional
    assert (cost.position_files, cost.position_targets, cost.positions) == (4, 3, 4)


def test_keys_count_once_for_each_older_split(lake: IcebergCatalog) -> None:
    make_table(lake)
    add(lake, data_file("a"), data_file("two splits", file_size_in_bytes=200 * MIB))
    add(lake, equality("e", 10))
    # A file of the same commit as the deletes is not theirs.
    add(lake, data_file("b"), equality("f", 7))
    add(lake, data_file("c"))
    assert health(lake).cost.equality.split_keys == 3 * 10 + 3 * 7 + 0
    evolve(lake, properties={"read.split.target-size": str(50 * MIB)})
    assert health(lake).cost.equality.split_keys == 5 * 10 + 5 * 7
    after = health(lake).cost_after_convert.positional
    assert (after.position_files, after.position_targets, after.vectors) == (2, 2, 0)
    set_metadata(lake, format_version=3, next_row_id=0)
    after = health(lake).cost_after_convert.positional
    assert (after.position_files, after.position_targets, after.vectors) == (0, 0, 2)


def test_keys_of_a_partition_do_not_apply_to_others(lake: IcebergCatalog) -> None:
    make_table(lake, spec=BY_ID)
    add(lake, *(data_file(f"d{n}", partition=[n]) for n in (1, 1, 2)))
    add(lake, equality("e", 10, partition=[1]))
    assert health(lake).cost.equality.split_keys == 20


def test_the_deletes_of_a_measured_table(lake: IcebergCatalog) -> None:
    """50 data files and 150 equality delete files: 65.7 s, and 0.6 s after the conversion."""
    make_table(lake)
    add(lake, *(data_file(f"d{n}", 100_000, file_size_in_bytes=MIB) for n in range(50)))
    add(lake, *(equality(f"e{n}", 20_000) for n in range(150)))
    now = health(lake)
    assert 40 < now.cost.seconds < 90
    assert now.cost_after_convert.seconds < 3


def test_small_files_are_counted_as_compaction_merges_them(lake: IcebergCatalog) -> None:
    make_table(lake, spec=BY_ID)
    lone = [data_file(f"lone{n}", partition=[n]) for n in range(20)]
    few = [data_file(f"few{n}", partition=[21]) for n in range(4)]
    many = [data_file(f"many{n}", partition=[22]) for n in range(6)]
    size = {"file_size_in_bytes": 90 * MIB}
    two = [data_file(f"two{n}", partition=[23], **size) for n in range(3)]
    large = [data_file(f"large{n}", partition=[24], file_size_in_bytes=100 * MIB) for n in range(9)]
    add(lake, *lone, *few, *many, *two, *large)
    now = health(lake)
    # Six become one; of three files with 270 MiB nothing is saved at a target of 128 MiB.
    assert (now.data_files, now.small_files, now.files_saved) == (42, 6, 5)
    assert now.cost_after_compact.data_files == 37
    assert (now.partitions, now.largest_partition_bytes) == (24, 900 * MIB)
    assert now.median_partition_bytes == 100
    evolve(lake, properties={"write.target-file-size-bytes": str(512 * MIB)})
    assert health(lake).files_saved == 5 + 7


def test_manifests(lake: IcebergCatalog) -> None:
    make_table(lake, properties=UNMERGED)
    for number in range(4):
        add(lake, data_file(f"d{number}"))
    now = health(lake)
    assert (now.manifests, now.small_manifests, now.manifests_saved) == (4, 4, 3)
    assert now.cost_after_manifests.manifests == 1
    evolve(lake, properties={"commit.manifest.target-size-bytes": "1000"})
    assert health(lake).manifests_saved == 0


@pytest.mark.parametrize(
    ("properties", "limit"),
    [
        ({}, 20),
        ({"write.metadata.delete-after-commit.enabled": "false"}, None),
        ({"write.metadata.previous-versions-max": "7"}, 7),
    ],
)
def test_metadata_versions(
    lake: IcebergCatalog, properties: dict[str, str], limit: int | None
) -> None:
    make_table(lake, properties=properties)
    for number in range(3):
        add(lake, data_file(f"d{number}"))
    now = health(lake)
    assert (now.metadata_versions, now.metadata_version, now.metadata_limit) == (3, 3, limit)


def test_other_branches_are_named_and_not_examined(lake: IcebergCatalog) -> None:
    make_table(lake)
    add(lake, data_file("a"))
    parent = load(lake).metadata["current-snapshot-id"]
    for name, kind in (("audit", "branch"), ("v1", "tag")):
        update = SetSnapshotRefUpdate(
            ref_name=name, type=kind, snapshot_id=parent, max_ref_age_ms=None
        )
        lake.commit(load(lake), (), (update,))
    added = (AddedFiles((data_file("b"),)),)
    commit(lake, Change(Operation.APPEND, added, branch="audit"))
    now = health(lake)
    assert (now.branches, now.data_files) == (("audit",), 1)


def test_a_sort_order(lake: IcebergCatalog) -> None:
    make_table(lake)
    assert not health(lake).is_sorted
    order = {
        "order-id": 1,
        "fields": [
            {
                "transform": "identity",
                "source-id": 1,
                "direction": "asc",
                "null-order": "nulls-first",
            }
        ],
    }
    set_metadata(lake, sort_orders=[order], default_sort_order_id=1)
    assert health(lake).is_sorted


def test_streams(lake: IcebergCatalog) -> None:
    make_table(lake)
    progress = Progress("model.p.m", 1, "run", {"files": 1}, "w1")
    properties = progress.summary(progress.frontier)
    added = (AddedFiles((data_file("a"),)),)
    change = Change(Operation.APPEND, added, properties=properties)
    commit(lake, change, progress.as_property())
    (stream,) = health(lake).streams
    assert (stream.sink_id, stream.problem) == ("model.p.m", None)
    assert stream.last_commit_ms == load(lake).metadata["snapshots"][-1]["timestamp-ms"]
    assert stream.last_progress_ms is not None
    set_metadata(lake, properties={"iceberg-stream.sink.model.p.m": "{"})
    (stream,) = health(lake).streams
    assert stream.problem is not None and "cannot be read" in stream.problem
    assert stream.last_progress_ms == stream.last_commit_ms


def test_a_snapshot_without_manifest_list(lake: IcebergCatalog) -> None:
    make_table(lake, 1)
    add(lake, data_file("a"))
    snapshot = dict(load(lake).metadata["snapshots"][0])
    del snapshot["manifest-list"]
    set_metadata(lake, snapshots=[snapshot | {"manifests": []}])
    with pytest.raises(CatalogError, match=r"s\.t has no manifest list"):
        health(lake)


def test_a_current_snapshot_that_is_missing(lake: IcebergCatalog) -> None:
    make_table(lake)
    add(lake, data_file("a"))
    set_metadata(lake, snapshots=[])
    with pytest.raises(CatalogError, match=r"metadata of s\.t lack its current snapshot"):
        health(lake)


def test_the_oldest_metadata_of_version_1(lake: IcebergCatalog) -> None:
    """One schema and one partition spec instead of lists, and neither refs nor a metadata log."""
    make_table(lake, 1)
    add(lake, data_file("a", 7))
    table = load(lake)
    newer = ("schemas", "partition-specs", "sort-orders", "default-sort-order-id", "refs")
    old = {k: v for k, v in table.metadata.items() if k not in (*newer, "metadata-log")}
    old |= {"schema": table.metadata["schemas"][0], "partition-spec": []}
    now = table_health(replace(table, metadata=old))
    assert (now.format_version, now.rows, now.metadata_versions) == (1, 7, 0)
    assert not now.is_sorted
