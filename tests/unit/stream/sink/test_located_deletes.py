"""Deletes of rows that a query has located, of tables with other deletes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict, StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import TargetDeletes
from dbt.adapters.iceberg_stream.stream.sink.descriptors import Descriptors
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.files.deletes import write_position_deletes
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import (
    DeletionVector,
    write_deletion_vectors,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.unit.local_tables import (
    commit,
    data_file,
    evolve,
    insert,
    live,
    live_deletes,
    load,
    make_table,
    rows,
)

BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
ROWS = pa.table({"id": [1, 1, 2, 2], "x": ["a", "b", "c", "d"]})


def target(lake: IcebergCatalog) -> WriteTarget:
    base = load(lake)
    return WriteTarget.of(base.metadata, base.io)


def delete(lake: IcebergCatalog, *files: DataFile, removed: tuple[DataFile, ...] = ()) -> None:
    commit(lake, Change(Operation.DELETE, (AddedFiles(deletes=files),), removed=removed))


def delete_located(lake: IcebergCatalog, write_id: str, located: dict[str, list[int]]) -> None:
    base = load(lake)
    positions = {path: pa.array(rows, pa.int64()) for path, rows in located.items()}
    descriptors = Descriptors(target(lake), base.metadata, write_id, ("id",))
    added, removed = descriptors.describe_target_deletes(TargetDeletes(None, positions), base)
    delete(lake, *added.deletes, removed=tuple(removed))


@pytest.mark.parametrize("version", [2, 3])
def test_a_file_keeps_one_delete_file(lake: IcebergCatalog, version: int) -> None:
    make_table(lake, version)
    insert(lake, ROWS)
    (file,) = live(lake)
    for position, left in enumerate([["b", "c", "d"], ["c", "d"], ["d"]]):
        delete_located(lake, f"w{position}", {file.file_path: [position]})
        assert [x for _, x in rows(lake)] == left
        assert len(live_deletes(load(lake).io, load(lake).metadata)) == 1


def test_files_of_several_partitions_and_specs(lake: IcebergCatalog) -> None:
    make_table(lake, spec=BY_ID)
    insert(lake, ROWS)
    evolve(lake, spec=PartitionSpec(spec_id=1))
    insert(lake, ROWS)
    one, two, unpartitioned = sorted(live(lake), key=lambda f: (f.spec_id, repr(f.partition)))
    delete_located(
        lake, "w", {one.file_path: [0], two.file_path: [1], unpartitioned.file_path: [1, 2]}
    )
    assert rows(lake) == [(1, "a"), (1, "b"), (2, "c"), (2, "d")]
    specs = [file.spec_id for file in live_deletes(load(lake).io, load(lake).metadata)]
    assert sorted(specs) == [0, 0, 1]


def test_deletes_of_several_files_stay(lake: IcebergCatalog) -> None:
    """A vector has what they delete, too: readers ignore them where there is one."""
    make_table(lake)
    for _ in range(3):
        insert(lake, ROWS)
    data = live(lake)
    a, b, c = (file.file_path for file in data)
    delete(lake, write_position_deletes(target(lake), "p", {a: [0], b: [0], c: [0]}))
    delete(lake, write_position_deletes(target(lake), "q", {b: [1]}))
    lake.commit(load(lake), (), (UpgradeFormatVersionUpdate.model_validate({"format-version": 3}),))
    delete(lake, *write_deletion_vectors(target(lake), "v", [DeletionVector(data[0], [0, 1])]))
    delete_located(lake, "w", {a: [2], b: [3]})
    assert rows(lake) == [(1, "b"), (2, "c"), (2, "c"), (2, "d"), (2, "d")]
    formats = [file.file_format for file in live_deletes(load(lake).io, load(lake).metadata)]
    assert sorted(formats) == [FileFormat.PARQUET, FileFormat.PUFFIN, FileFormat.PUFFIN]


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_in_other_formats(lake: IcebergCatalog, version: int) -> None:
    """Position deletes add up; a vector would hide those that it does not have."""
    make_table(lake, version)
    insert(lake, ROWS)
    (file,) = live(lake)
    content = DataFileContent.POSITION_DELETES
    delete(lake, data_file("x", content=content, file_format=FileFormat.AVRO))
    if version == 2:
        delete_located(lake, "w", {file.file_path: [1]})
        formats = [file.file_format for file in live_deletes(load(lake).io, load(lake).metadata)]
        assert sorted(formats) == [FileFormat.AVRO, FileFormat.PARQUET]
        return
    with pytest.raises(StreamError, match="x has position deletes in AVRO.*Compact the table"):
        delete_located(lake, "w", {file.file_path: [1]})


def test_a_file_that_the_table_does_not_have(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake, ROWS)
    (file,) = live(lake)
    with pytest.raises(StreamConflict, match="s.t after the rows to delete were located"):
        delete_located(lake, "w", {file.file_path: [1], "compacted.parquet": [0]})
