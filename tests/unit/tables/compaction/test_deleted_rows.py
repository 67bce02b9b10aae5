"""Writing files again without their deleted rows: which ones, and who may be in the way."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.tables.compaction import deleted_rows
from dbt.adapters.iceberg_stream.tables.compaction.deleted_rows import rewrite_deleted_rows
from dbt.adapters.iceberg_stream.tables.compaction.rewrite import Compaction, _Rewrite
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import snapshot_files
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.tables import LATER
from tests.unit.local_tables import NAME, evolve, insert, load, make_table, rows
from tests.unit.tables.compaction.writers import Rival, append, delete, delete_keys


@pytest.fixture(params=[2, 3])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def filled(lake: IcebergCatalog, version: int) -> IcebergCatalog:
    """A table with three files of ten rows."""
    make_table(lake, version)
    for number in range(3):
        append(lake, *range(10 * number, 10 * number + 10))
    return lake


def rewrite(lake: IcebergCatalog, **more: Any) -> Compaction | None:
    return rewrite_deleted_rows(lake, NAME, {"by": "test"}, **more)


def test_files_with_many_deleted_rows_become_one(filled: IcebergCatalog) -> None:
    delete(filled, 0, 1, 2, 3)
    delete(filled, 1, *range(9))
    delete(filled, 2, 4, 5)
    before = rows(filled)
    done = rewrite(filled)
    assert done is not None
    assert (done.merged, done.written) == (2, 1)
    assert done.committed.snapshot.operation == "replace"
    assert done.committed.snapshot.properties["by"] == "test"
    assert rows(filled) == before
    left = {i.file.record_count: len(i.own_deletes) for i in snapshot_files(load(filled)).values()}
    # Two of ten rows are too few.
    assert left == {8: 0, 10: 1}
    assert rewrite(filled) is None
    assert not unreferenced_files(load(filled), LATER)


def test_no_row_is_left(filled: IcebergCatalog) -> None:
    for number in range(3):
        delete(filled, number, *range(10))
    done = rewrite(filled)
    assert done is not None
    assert (done.merged, done.written) == (3, 0)
    assert rows(filled) == []
    assert snapshot_files(load(filled)) == {}


def test_a_table_without_deletes(filled: IcebergCatalog) -> None:
    assert rewrite(filled) is None
    assert rewrite_deleted_rows(filled, ("s", "other"), {}) is None


def test_rows_keep_their_ids(lake: IcebergCatalog) -> None:
    """Iceberg spec, "Row Lineage"."""
    make_table(lake, 3)
    for number in range(2):
        append(lake, *range(10 * number, 10 * number + 10))
        delete(lake, number, *range(4))
    rewrite(lake)
    base = load(lake)
    (item,) = snapshot_files(base).values()
    target = WriteTarget.of(base.metadata, base.io)
    stored = pq.ParquetFile(target.path_of(item.path)).read().to_pylist()
    lineage = {r["id"]: (r["_row_id"], r["_last_updated_sequence_number"]) for r in stored}
    expected = {n: (n, 1) for n in range(4, 10)} | {n: (n, 3) for n in range(14, 20)}
    assert lineage == expected


def test_partitions_stay_apart(lake: IcebergCatalog, version: int) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "x"))
    make_table(lake, version, spec=spec)
    for x in "aabb":
        insert(lake, pa.table({"id": pa.array(range(4), pa.int64()), "x": [x] * 4}))
    for number in range(4):
        delete(lake, number, 0, 1)
    before = rows(lake)
    done = rewrite(lake)
    assert done is not None
    assert (done.merged, done.written) == (4, 2)
    assert rows(lake) == before
    files = [item.file for item in snapshot_files(load(lake)).values()]
    assert sorted((f.partition[0], f.record_count) for f in files) == [("a", 4), ("b", 4)]


def test_groups_are_bounded(filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_rows, "MOST_ROWS", 10)
    for number in range(3):
        delete(filled, number, *range(5))
    done = rewrite(filled)
    assert done is not None
    assert (done.merged, done.written) == (3, 2)


def test_files_that_are_too_large_stay(
    filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_rows, "MOST_ROWS", 5)
    delete(filled, 0, *range(4))
    delete(filled, 1, *range(5))
    done = rewrite(filled)
    assert done is not None
    assert (done.merged, done.written) == (1, 1)


def test_one_commit_does_not_rewrite_everything(
    filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_rows, "MOST_ROWS", 5)
    for number in range(3):
        delete(filled, number, *range(5))
    size = max(item.file.file_size_in_bytes for item in snapshot_files(load(filled)).values())
    before = rows(filled)
    assert rewrite(filled, most_bytes=size - 100) is None
    merged = [done.merged for _ in range(4) if (done := rewrite(filled, most_bytes=2 * size))]
    assert merged == [2, 1]
    assert rows(filled) == before


def test_equality_deletes_that_apply_prevent_it(filled: IcebergCatalog) -> None:
    delete(filled, 0, *range(5))
    delete_keys(filled, 7)
    assert rewrite(filled) is None
    convert_equality_deletes(filled, NAME, {})
    assert len(rows(filled)) == 24
    assert rewrite(filled) is not None
    assert len(rows(filled)) == 24


def test_files_of_an_older_spec_stay(filled: IcebergCatalog) -> None:
    delete(filled, 0, *range(5))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "x"), spec_id=1)
    evolve(filled, spec=spec)
    assert rewrite(filled) is None


def test_another_writer_deletes(filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    delete(filled, 0, *range(5))
    Rival(monkeypatch, lambda: delete(filled, 0, 7))
    assert rewrite(filled) is None
    assert len(rows(filled)) == 24
    assert not unreferenced_files(load(filled), LATER)


def test_another_writer_deletes_keys(
    filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete(filled, 0, *range(5))
    Rival(monkeypatch, lambda: delete_keys(filled, 7))
    rewrite(filled)
    convert_equality_deletes(filled, NAME, {})
    assert len(rows(filled)) == 24
    assert not unreferenced_files(load(filled), LATER)


def test_an_error_leaves_no_file_behind(
    filled: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_rows, "MOST_ROWS", 5)
    for number in range(3):
        delete(filled, number, *range(5))
    before, merge = load(filled).location, _Rewrite._merge
    calls: list[int] = []

    def failing(self: _Rewrite, *arguments: Any) -> DataFile | None:
        if calls:
            raise OSError("away")
        calls.append(1)
        return merge(self, *arguments)

    monkeypatch.setattr(_Rewrite, "_merge", failing)
    with pytest.raises(OSError, match="away"):
        rewrite(filled)
    assert load(filled).location == before
    assert not unreferenced_files(load(filled), LATER)
