"""Deletes by position and files without rows, of tables with other deletes, row groups and lineage."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import (
    deletion_vectors,
    live_deletes,
    position_deletes,
)
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.files.deletes import (
    read_position_deletes,
    write_position_deletes,
)
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import (
    DeletionVector,
    read_deletion_vector,
    write_deletion_vectors,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.unit.local_tables import FIELD, commit, data_file, insert, live, load, make_table, rows

BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
ROWS = pa.table({"id": [1, 1, 2, 2], "x": ["a", "b", "c", "d"]})


def target(lake: IcebergCatalog) -> WriteTarget:
    base = load(lake)
    return WriteTarget.of(base.metadata, base.io)


def delete(lake: IcebergCatalog, *files: DataFile, removed: tuple[DataFile, ...] = ()) -> None:
    commit(lake, Change(Operation.DELETE, (AddedFiles(deletes=files),), removed=removed))


def referenced(file: DataFile) -> str | None:
    path: str | None = file[FIELD["referenced_data_file"]]
    return path


def positions(*of: tuple[DataFile, list[int]]) -> dict[str, pa.Array]:
    return {file.file_path: pa.array(rows, pa.int64()) for file, rows in of}


def test_one_delete_file_for_each_partition(lake: IcebergCatalog) -> None:
    make_table(lake, spec=BY_ID)
    insert(lake, ROWS)
    insert(lake, ROWS.slice(0, 2))
    data = live(lake)
    gone = positions(*((file, [1]) for file in data if file.partition[0] == 1))
    deletes = position_deletes(target(lake), "d", gone, data)
    assert [(file.partition[0], file.spec_id, file.record_count) for file in deletes] == [(1, 0, 2)]
    both = position_deletes(target(lake), "e", positions(*((file, [0]) for file in data)), data)
    assert sorted(file.partition[0] for file in both) == [1, 2]
    assert len({file.file_path for file in both}) == 2
    delete(lake, *deletes)
    assert rows(lake) == [(1, "a"), (1, "a"), (2, "c"), (2, "d")]


def test_specs_have_delete_files_of_their_own(lake: IcebergCatalog) -> None:
    make_table(lake)
    files = [data_file("a", spec_id=0), data_file("b", spec_id=1), data_file("c")]
    deletes = position_deletes(
        target(lake), "d", positions((files[0], [1]), (files[1], [1])), files
    )
    assert [file.spec_id for file in deletes] == [0, 1]
    contents = [dict(read_position_deletes(load(lake).io, file)) for file in deletes]
    assert [list(each) for each in contents] == [["a"], ["b"]]


def read(lake: IcebergCatalog, vectors: list[DataFile]) -> dict[str | None, list[int]]:
    return {referenced(v): read_deletion_vector(load(lake).io, v) for v in vectors}


def test_vectors_have_what_older_ones_and_position_deletes_delete(lake: IcebergCatalog) -> None:
    make_table(lake, 3)
    a, b, c = (data_file(name) for name in "abc")
    of = target(lake)
    old = write_deletion_vectors(of, "v", [DeletionVector(a, [3]), DeletionVector(c, [8])])
    shared = write_position_deletes(of, "p", {"a": [5], "b": [6], "c": [7]})
    own = write_position_deletes(of, "q", {"b": [0]})
    others = write_position_deletes(of, "r", {"c": [1]})
    equality = data_file("e", content=DataFileContent.EQUALITY_DELETES, equality_ids=[1])
    vectors, replaced = deletion_vectors(
        of,
        "new",
        positions((a, [9, 3]), (b, [4])),
        [a, b, c],
        [equality, old[1], others, shared, old[0], own],
    )
    assert read(lake, vectors) == {"a": [3, 5, 9], "b": [0, 4, 6]}
    assert replaced == [old[0], own]


def test_no_positions_make_no_vectors(lake: IcebergCatalog) -> None:
    make_table(lake, 3)
    assert deletion_vectors(target(lake), "v", {}, [data_file("a")], []) == ([], [])
    assert position_deletes(target(lake), "v", {}, [data_file("a")]) == []


def test_deletes_in_other_formats_are_refused(lake: IcebergCatalog) -> None:
    make_table(lake, 3)
    avro = data_file("x", content=DataFileContent.POSITION_DELETES, file_format=FileFormat.AVRO)
    with pytest.raises(StreamError, match="x has position deletes in AVRO"):
        deletion_vectors(
            target(lake), "v", positions((data_file("a"), [1])), [data_file("a")], [avro]
        )


def test_deletes_of_the_table(lake: IcebergCatalog) -> None:
    make_table(lake, 3)
    insert(lake, ROWS)
    (file,) = live(lake)
    assert live_deletes(load(lake).io, load(lake).metadata) == []
    first, _ = deletion_vectors(target(lake), "v", positions((file, [0])), [file], [])
    delete(lake, *first)
    assert rows(lake) == [(1, "b"), (2, "c"), (2, "d")]
    table = load(lake)
    existing = live_deletes(table.io, table.metadata)
    assert [referenced(v) for v in existing] == [file.file_path]
    second, replaced = deletion_vectors(target(lake), "w", positions((file, [2])), [file], existing)
    delete(lake, *second, removed=tuple(replaced))
    assert rows(lake) == [(1, "b"), (2, "d")]
    table = load(lake)
    assert len(live_deletes(table.io, table.metadata)) == 1
