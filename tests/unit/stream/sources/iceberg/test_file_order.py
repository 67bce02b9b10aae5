"""The order of files, as their manifests and snapshots tell it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertCreate
from pyiceberg.types import LongType, NestedField

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.stream.sources.iceberg.file_order import (
    order_of_added,
    order_of_all,
)
from dbt.adapters.iceberg_stream.stream.sources.source import UNKNOWN_ORDER
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter

NAME = ("s", "t")
SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    names = SqliteBackend("lake", tmp_path)
    names.create_namespace("s")
    lake = IcebergCatalog("lake", names)
    staged = lake.stage(NAME, SCHEMA, PartitionSpec(), {"format-version": "2"})
    lake.commit(staged, (AssertCreate(),), ())
    yield lake
    lake.close()


def files(lake: IcebergCatalog, *names: str) -> dict[str, Any]:
    base = lake.load(NAME)
    assert base is not None
    added = {}
    for name in names:
        writer = DataFileWriter(WriteTarget.of(base.metadata, base.io), "insert", name)
        writer.write([pa.record_batch({"id": pa.array([1], pa.int64())})])
        (added[name],) = writer.close()
    return added


def commit(lake: IcebergCatalog, change: Change) -> None:
    base = lake.load(NAME)
    assert base is not None
    Committer(lake, NAME, change, base).commit()


def ordered(table: pa.Table) -> list[str]:
    """Names of the files, the first one first; those whose order is not known in brackets."""
    rows = sorted(table.to_pylist(), key=lambda row: (row["major"], row["minor"]))
    names = [row["file"].rsplit("/", 1)[1].split("-")[1] for row in rows]
    unknown = [row["minor"] >= UNKNOWN_ORDER for row in rows]
    return [f"({n})" if u else n for n, u in zip(names, unknown, strict=True)]


def of_all(lake: IcebergCatalog, depth: int = 100) -> list[str]:
    base = lake.load(NAME)
    assert base is not None
    ancestors = base.metadata["snapshots"][::-1][:depth]
    return ordered(order_of_all(base.io, ancestors))


def test_snapshots_then_sequence_numbers(lake: IcebergCatalog) -> None:
    added = files(lake, *"abcd")
    for name in "ab":
        commit(lake, Change(Operation.APPEND, (AddedFiles((added[name],)),)))
    # Two data sequence numbers in one snapshot, as a stream's commits have them.
    sets = (AddedFiles((added["d"],)), AddedFiles((added["c"],)))
    commit(lake, Change(Operation.APPEND, sets))
    assert of_all(lake) == ["a", "b", "d", "c"]
    base = lake.load(NAME)
    assert base is not None
    assert ordered(order_of_added(base.io, base.metadata["snapshots"][-1])) == ["d", "c"]


def test_added_files_of_format_version_1(lake: IcebergCatalog) -> None:
    """They have no sequence numbers: the caller knows the order of the snapshots."""
    staged = lake.stage(("s", "v1"), SCHEMA, PartitionSpec(), {"format-version": "1"})
    lake.commit(staged, (AssertCreate(),), ())
    added = files(lake, *"ab")
    for name in "ab":
        base = lake.load(("s", "v1"))
        assert base is not None
        change = Change(Operation.APPEND, (AddedFiles((added[name],)),))
        Committer(lake, ("s", "v1"), change, base).commit()
    base = lake.load(("s", "v1"))
    assert base is not None
    parts = [
        order_of_added(base.io, snapshot, number)
        for number, snapshot in enumerate(base.metadata["snapshots"], -5)
    ]
    assert ordered(pa.concat_tables(parts)) == ["a", "b"]
    assert [part["major"].to_pylist() for part in parts] == [[-5], [-4]]


def test_files_that_were_rewritten(lake: IcebergCatalog) -> None:
    added = files(lake, *"abcd")
    for name in "ab":
        commit(lake, Change(Operation.APPEND, (AddedFiles((added[name],)),)))
    # As Iceberg compacts: the rows keep the number of the snapshot that was compacted.
    rewritten = AddedFiles((added["c"],), sequence_number=2)
    commit(lake, Change(Operation.REPLACE, (rewritten,), removed=(added["a"], added["b"])))
    commit(lake, Change(Operation.APPEND, (AddedFiles((added["d"],)),)))
    assert of_all(lake) == ["(c)", "d"]
    # The compaction has expired.
    assert of_all(lake, depth=1) == ["(c)", "d"]


@pytest.mark.parametrize("operation", [Operation.OVERWRITE, Operation.REPLACE])
def test_files_that_were_rewritten_under_a_number_of_their_own(
    lake: IcebergCatalog, operation: Operation
) -> None:
    """As a copy-on-write does, and then expires."""
    added = files(lake, *"abc")
    commit(lake, Change(Operation.APPEND, (AddedFiles((added["a"],)),)))
    commit(lake, Change(operation, (AddedFiles((added["b"],)),), removed=(added["a"],)))
    commit(lake, Change(Operation.APPEND, (AddedFiles((added["c"],)),)))
    assert of_all(lake) == ["(b)", "c"]
    assert of_all(lake, depth=1) == ["(b)", "c"]
