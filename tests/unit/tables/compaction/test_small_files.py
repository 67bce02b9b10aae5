"""Merging small data files: which ones, what becomes of their rows, and who may be in the way."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StructType, UUIDType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.tables.compaction import small_files
from dbt.adapters.iceberg_stream.tables.compaction.small_files import (
    Compaction,
    merge_small_files,
)
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import snapshot_files
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.tables import LATER
from tests.unit.local_tables import (
    NAME,
    SCHEMA,
    evolve,
    insert,
    load,
    make_table,
    manifests,
    rows,
)
from tests.unit.tables.compaction.writers import Rival, append, delete, delete_keys


@pytest.fixture(params=[2, 3])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def filled(lake: IcebergCatalog, version: int) -> IcebergCatalog:
    """A table with eight files of two rows."""
    make_table(lake, version)
    for number in range(8):
        append(lake, number, number + 100)
    return lake


def merge(lake: IcebergCatalog, **more: Any) -> Compaction | None:
    return merge_small_files(lake, NAME, {"by": "test"}, **more)


def test_files_and_manifests_are_merged(filled: IcebergCatalog) -> None:
    before = rows(filled)
    done = merge(filled)
    assert done is not None
    assert (done.merged, done.written) == (8, 1)
    assert done.committed.snapshot.operation == "replace"
    assert done.committed.snapshot.properties["by"] == "test"
    assert rows(filled) == before
    assert len(snapshot_files(load(filled))) == 1
    # One of the new file, and one that says which files were removed.
    assert len(manifests(filled)) == 2
    assert merge(filled) is None
    assert not unreferenced_files(load(filled), LATER)


def test_deleted_rows_stay_deleted(filled: IcebergCatalog) -> None:
    delete(filled, 0, 1)
    delete(filled, 1, 0, 1)
    before = rows(filled)
    assert len(before) == 13
    merge(filled)
    assert rows(filled) == before
    (item,) = snapshot_files(load(filled)).values()
    assert (item.file.record_count, item.own_deletes) == (13, [])


def test_no_row_is_left(filled: IcebergCatalog) -> None:
    for number in range(8):
        delete(filled, number, 0, 1)
    done = merge(filled)
    assert done is not None
    assert done.written == 0
    assert snapshot_files(load(filled)) == {}
    assert rows(filled) == []


def test_rows_keep_their_ids(lake: IcebergCatalog) -> None:
    """Iceberg spec, "Row Lineage"."""
    make_table(lake, 3)
    for number in range(8):
        append(lake, number, number + 100)
    merge(lake)
    for number in range(200, 207):
        append(lake, number)
    # The merged file is merged once more.
    merge(lake)
    base = load(lake)
    (item,) = snapshot_files(base).values()
    target = WriteTarget.of(base.metadata, base.io)
    stored = pq.ParquetFile(target.path_of(item.path)).read().to_pylist()
    lineage = {r["id"]: (r["_row_id"], r["_last_updated_sequence_number"]) for r in stored}
    expected = {n: (2 * n, n + 1) for n in range(8)}
    expected |= {n + 100: (2 * n + 1, n + 1) for n in range(8)}
    # The compaction has taken 16 row ids and the ninth sequence number.
    expected |= {n: (n - 200 + 32, n - 200 + 10) for n in range(200, 207)}
    assert lineage == expected


def test_large_and_few_files_stay(filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    size = max(item.file.file_size_in_bytes for item in snapshot_files(load(filled)).values())
    monkeypatch.setattr(small_files, "LARGEST", size)
    monkeypatch.setattr(small_files, "SMALLEST", size)
    monkeypatch.setattr(small_files, "MERGED_FILES", 16)
    assert merge(filled) is None


def test_groups_are_bounded(filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    size = max(item.file.file_size_in_bytes for item in snapshot_files(load(filled)).values())
    monkeypatch.setattr(small_files, "MOST_BYTES", 4 * size)
    monkeypatch.setattr(small_files, "MERGED_FILES", 4)
    done = merge(filled)
    assert done is not None
    assert (done.merged, done.written) == (8, 2)


def test_files_have_the_target_size(filled: IcebergCatalog) -> None:
    size = max(item.file.file_size_in_bytes for item in snapshot_files(load(filled)).values())
    evolve(filled, properties={"write.target-file-size-bytes": str(size)})
    assert merge(filled) is None


def test_one_commit_does_not_merge_everything(
    filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "MERGED_FILES", 4)
    size = max(item.file.file_size_in_bytes for item in snapshot_files(load(filled)).values())
    monkeypatch.setattr(small_files, "MOST_BYTES", 4 * size)
    assert merge(filled, most_bytes=3 * size) is None
    first, second = merge(filled, most_bytes=5 * size), merge(filled, most_bytes=5 * size)
    assert first is not None
    assert second is not None
    assert (first.merged, second.merged) == (4, 4)
    assert len(rows(filled)) == 16


def test_manifests_stay_if_the_table_says_so(filled: IcebergCatalog) -> None:
    evolve(filled, properties={"commit.manifest-merge.enabled": "false"})
    assert merge(filled) is not None
    # Eight that say which files were removed, and one of the new file.
    assert len(manifests(filled)) == 9
    assert len(rows(filled)) == 16


def test_manifests_have_the_target_size(filled: IcebergCatalog) -> None:
    longest = max(manifest.manifest_length for manifest in manifests(filled))
    evolve(filled, properties={"commit.manifest.target-size-bytes": str(4 * longest)})
    assert merge(filled) is not None
    assert len(manifests(filled)) == 3
    assert len(rows(filled)) == 16


def test_a_damaged_file(filled: IcebergCatalog) -> None:
    base = load(filled)
    path = min(snapshot_files(base))
    Path(WriteTarget.of(base.metadata, base.io).path_of(path)).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(OSError, match=re.escape(path)):
        merge(filled)


def test_partitions_stay_apart(lake: IcebergCatalog, version: int) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "x"))
    make_table(lake, version, spec=spec)
    for number in range(8):
        ids = pa.array([number, number], pa.int64())
        insert(lake, pa.table({"id": ids, "x": ["a", "b" if number else "c"]}))
    before = rows(lake)
    done = merge(lake)
    assert done is not None
    # Of `b` there are seven files only.
    assert (done.merged, done.written) == (8, 1)
    assert rows(lake) == before
    parts = sorted(item.file.partition[0] for item in snapshot_files(load(lake)).values())
    assert parts == ["a", *["b"] * 7, "c"]


def test_equality_deletes_prevent_a_merge(filled: IcebergCatalog) -> None:
    delete_keys(filled, 3)
    assert merge(filled) is None
    assert len(snapshot_files(load(filled))) == 8


def test_another_writer_appends(filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    Rival(monkeypatch, lambda: append(filled, 50))
    done = merge(filled)
    assert done is not None
    assert done.committed.attempts == 2
    assert len(rows(filled)) == 17


def test_another_writer_deletes(filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    Rival(monkeypatch, lambda: delete(filled, 2, 0))
    assert merge(filled) is None
    assert len(rows(filled)) == 15
    assert not unreferenced_files(load(filled), LATER)


def test_another_writer_merges(filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    Rival(monkeypatch, lambda: merge(filled) and None)
    assert merge(filled) is None
    assert len(rows(filled)) == 16
    assert not unreferenced_files(load(filled), LATER)


def test_the_check_refuses(filled: IcebergCatalog) -> None:
    def refuse(_: Metadata) -> None:
        raise CatalogError("Not now.")

    before = load(filled).location
    with pytest.raises(CatalogError, match=r"Not now\."):
        merge(filled, check=refuse)
    assert load(filled).location == before
    assert not unreferenced_files(load(filled), LATER)


def test_a_missing_table(lake: IcebergCatalog) -> None:
    assert merge_small_files(lake, ("s", "other"), {}) is None


def test_columns_with_defaults(lake: IcebergCatalog) -> None:
    """Files from before the column was added do not contain its default."""
    new = NestedField(3, "y", LongType(), required=False, initial_default=7)
    make_table(lake, 3)
    for number in range(8):
        append(lake, number)
    evolve(lake, schema=Schema(*SCHEMA.fields, new, schema_id=1))
    assert merge(lake) is not None
    assert {row["y"] for row in lake.table(("s", "t")).scan().to_arrow().to_pylist()} == {7}


def test_nested_uuids(lake: IcebergCatalog) -> None:
    inner = StructType(NestedField(4, "u", UUIDType(), required=False))
    make_table(lake, 3, Schema(*SCHEMA.fields, NestedField(3, "s", inner, required=False)))
    ids = pa.array([bytes(15) + b"a", None], pa.binary(16)).cast(pa.uuid())
    for number in range(8):
        structs = pa.StructArray.from_arrays([ids], ["u"], mask=pa.array([False, number < 4]))
        insert(lake, pa.table({"id": [number, -number], "x": ["a", "b"], "s": structs}))
    assert merge(lake) is not None
    found = lake.table(("s", "t")).scan().to_arrow()
    assert (found.num_rows, found["s"].null_count) == (16, 4)
