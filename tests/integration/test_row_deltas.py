"""Snapshots of ours with deletes, as Spark and DuckDB read them, and after Iceberg's maintenance."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.files.deletes import (
    write_equality_deletes,
    write_position_deletes,
)
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import (
    DeletionVector,
    read_deletion_vector,
    write_deletion_vectors,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.tables import duckdb_rows, write


def batch(*rows: tuple[int, str]) -> pa.RecordBatch:
    ids, names = zip(*rows, strict=True)
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": pa.array(names)})


def new_table(spark: Session, version: int, partitioned: str = "") -> str:
    name = f"t{uuid.uuid4().hex[:8]}"
    properties = f"tblproperties ('format-version' = '{version}')"
    spark.run(f"create table s.{name} (id bigint, name string) {partitioned} {properties}")
    return name


def target(lake: IcebergCatalog, name: str) -> WriteTarget:
    base = lake.load(("s", name))
    return WriteTarget.of(base.metadata, base.io)


def commit(lake: IcebergCatalog, name: str, change: Change) -> Committed:
    return Committer(lake, ("s", name), change, lake.load(("s", name))).commit()


def insert(lake: IcebergCatalog, name: str, *rows: tuple[int, str]) -> list[DataFile]:
    files = write(lake, name, batch(*rows))
    commit(lake, name, append(*files, properties={}))
    return files


def keys(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def expect(lake: IcebergCatalog, spark: Session, name: str, rows: list[tuple[Any, ...]]) -> None:
    spark.run(f"refresh table s.{name}")
    assert as_rows(spark.query(f"select * from s.{name} order by id, name")) == rows
    assert sorted(duckdb_rows(lake, name)) == rows


def maintain(spark: Session, name: str) -> None:
    """All that Iceberg does to a table's files and metadata."""
    for call in (
        f"rewrite_manifests('s.{name}')",
        f"rewrite_data_files(table => 's.{name}', options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))",
        f"expire_snapshots(table => 's.{name}', older_than => current_timestamp(), retain_last => 1)",
    ):
        spark.fetch(spark.run(f"call lake.system.{call}"))


def test_deletes_of_version_2(lake: IcebergCatalog, spark: Session) -> None:
    name = new_table(spark, 2)
    (first,) = insert(lake, name, (1, "a"), (2, "b"), (3, "c"))
    insert(lake, name, (4, "d"), (5, "e"))
    where = target(lake, name)
    positions = write_position_deletes(where, "insert-p", {first.file_path: [2, 0]})
    equality = write_equality_deletes(where, "insert-e", keys(4))
    new = write(lake, name, batch((4, "D")))
    done = commit(
        lake, name, Change(Operation.OVERWRITE, (AddedFiles(tuple(new), (positions, equality)),))
    )
    expect(lake, spark, name, [(2, "b"), (4, "D"), (5, "e")])
    assert done.snapshot.properties["added-position-deletes"] == "2"
    assert done.snapshot.properties["total-equality-deletes"] == "1"
    maintain(spark, name)
    expect(lake, spark, name, [(2, "b"), (4, "D"), (5, "e")])


def test_deletion_vectors_of_version_3(lake: IcebergCatalog, spark: Session) -> None:
    name = new_table(spark, 3)
    (first,) = insert(lake, name, (1, "a"), (2, "b"), (3, "c"))
    (second,) = insert(lake, name, (4, "d"), (5, "e"))
    where = target(lake, name)
    old = write_deletion_vectors(
        where, "v1", [DeletionVector(first, [0]), DeletionVector(second, [1])]
    )
    commit(lake, name, Change(Operation.DELETE, (AddedFiles((), tuple(old)),)))
    expect(lake, spark, name, [(2, "b"), (3, "c"), (4, "d")])
    assert [read_deletion_vector(where.io, file) for file in old] == [[0], [1]]
    more = write_deletion_vectors(where, "v2", [DeletionVector(first, [0, 2])])
    commit(lake, name, Change(Operation.DELETE, (AddedFiles((), tuple(more)),), removed=(old[0],)))
    expect(lake, spark, name, [(2, "b"), (4, "d")])
    # A data file takes its vector with it.
    (again,) = write(lake, name, batch((2, "B")))
    done = commit(
        lake, name, Change(Operation.OVERWRITE, (AddedFiles((again,)),), removed=(first,))
    )
    expect(lake, spark, name, [(2, "B"), (4, "d")])
    assert done.snapshot.properties["removed-delete-files"] == "1"
    rows = as_rows(spark.query(f"select _row_id from s.{name}"))
    assert len(set(rows)) == 2
    spark.run(f"delete from s.{name} where id = 4")
    expect(lake, spark, name, [(2, "B")])
    maintain(spark, name)
    expect(lake, spark, name, [(2, "B")])


def test_large_positions() -> None:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    from dbt.adapters.iceberg_stream.tables.files.arrow_types import new_schema

    schema = new_schema(batch((1, "a")).schema)
    where = WriteTarget(
        schema,
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        {},
        f"/tmp/{uuid.uuid4()}",
        PyArrowFileIO(),
    )
    data = DataFile.from_args(_table_format_version=3, file_path="x", partition=[])
    data.spec_id = 0
    positions = [0, 7, 2**31, 2**32 - 1, 2**32, 2**33 + 5]
    (file,) = write_deletion_vectors(where, "v", [DeletionVector(data, positions)])
    assert read_deletion_vector(where.io, file) == positions


@pytest.mark.parametrize("version", [2, 3])
def test_many_sequence_numbers(lake: IcebergCatalog, spark: Session, version: int) -> None:
    """Three sub-batches of one commit update one key (facts: the next delete must reach the last)."""
    name = new_table(spark, version)
    insert(lake, name, (1, "0"))
    where = target(lake, name)
    steps = []
    for n in "abc":
        (data,) = write(lake, name, batch((1, n)))
        steps.append(
            AddedFiles((data,), (write_equality_deletes(where, f"e-{n}-{uuid.uuid4()}", keys(1)),))
        )
    commit(lake, name, Change(Operation.OVERWRITE, tuple(steps)))
    expect(lake, spark, name, [(1, "c")])
    assert lake.load(("s", name)).metadata["last-sequence-number"] == 4
    (data,) = write(lake, name, batch((1, "d")))
    deletes = write_equality_deletes(where, f"e-{uuid.uuid4()}", keys(1))
    commit(lake, name, Change(Operation.OVERWRITE, (AddedFiles((data,), (deletes,)),)))
    expect(lake, spark, name, [(1, "d")])
    maintain(spark, name)
    expect(lake, spark, name, [(1, "d")])


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("spec", ["bucket(4, id)", "truncate(2, name), id", "truncate(10, id)"])
@pytest.mark.variants(2)
def test_partitions(lake: IcebergCatalog, spark: Session, version: int, spec: str) -> None:
    name = new_table(spark, version, f"partitioned by ({spec})")
    rows = [(n, f"{n % 7}-{n}") for n in range(40)]
    files = insert(lake, name, *rows)
    assert len(files) > 3
    expect(lake, spark, name, rows)
    assert as_rows(spark.query(f"select name from s.{name} where id = 7")) == [("0-7",)]
    assert as_rows(spark.query(f"select id from s.{name} where name = '3-10'")) == [(10,)]
    partitions = as_rows(spark.query(f"select count(*) from s.{name}.partitions"))
    assert partitions == [(len({str(file.partition) for file in files}),)]
    maintain(spark, name)
    expect(lake, spark, name, rows)


def test_replaced_content_and_branches(lake: IcebergCatalog, spark: Session) -> None:
    name = new_table(spark, 2)
    insert(lake, name, (1, "a"))
    (data,) = write(lake, name, batch((2, "b")))
    commit(lake, name, append(data, properties={}, branch="audit"))
    expect(lake, spark, name, [(1, "a")])
    actual = as_rows(spark.query(f"select id from s.{name} version as of 'audit'"))
    assert actual == [(2,)]
    (data,) = write(lake, name, batch((3, "c")))
    commit(lake, name, Change(Operation.OVERWRITE, (AddedFiles((data,)),), removes_all=True))
    expect(lake, spark, name, [(3, "c")])


def test_many_small_commits_have_few_manifests(lake: IcebergCatalog, spark: Session) -> None:
    name = new_table(spark, 2)
    spark.run(
        f"alter table s.{name} set tblproperties ('commit.manifest.min-count-to-merge' = '5')"
    )
    for n in range(17):
        insert(lake, name, (n, "x"))
    expect(lake, spark, name, [(n, "x") for n in range(17)])
    assert as_rows(spark.query(f"select count(*) < 6 from s.{name}.manifests")) == [(True,)]
