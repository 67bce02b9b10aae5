"""Files of Hive's layout, which lack the columns that partition them, as PyIceberg reads tables."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.compaction.small_files import merge_small_files
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import read_keys
from dbt.adapters.iceberg_stream.tables.files.deletes import write_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.partitions import partition_key
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge.engine import merge
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan
from tests.unit.local_tables import NAME, commit, data_file, home, live, load, make_table, rows

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "part", StringType(), required=False),
    NestedField(3, "day", DateType(), required=False),
    NestedField(4, "x", StringType(), required=False),
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "part"),
    PartitionField(3, 1001, IdentityTransform(), "day"),
)
PARTITIONS = [("a", 0), (None, 1), ("b", None)]
DAYS = {0: "1970-01-01", 1: "1970-01-02", None: None}
_numbers = itertools.count()


@pytest.fixture(params=[2, 3])
def hive(request: pytest.FixtureRequest, lake: IcebergCatalog) -> IcebergCatalog:
    """A table with eight files of a row in each of three partitions."""
    make_table(lake, request.param, SCHEMA, SPEC)
    for partition, _ in itertools.product(PARTITIONS, range(8)):
        add_file(lake, partition)
    return lake


def add_file(lake: IcebergCatalog, partition: tuple[Any, ...]) -> None:
    number = next(_numbers) % 24
    kept = WriteTarget.of(load(lake).metadata, load(lake).io).file_schema
    schema = pa.schema([kept.field("id"), kept.field("x")])
    path = home(lake) / f"part={partition}" / f"{number}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table([[number], ["old"]], schema=schema), path)
    size = path.stat().st_size
    file = data_file(f"file://{path}", 1, partition, file_size_in_bytes=size)
    commit(lake, append(file, properties={}))


def expected(changes: dict[int, str] | None = None) -> list[tuple[Any, ...]]:
    found = []
    for number in range(24):
        part, day = PARTITIONS[number // 8]
        found.append((number, part, DAYS[day], (changes or {}).get(number, "old")))
    return found


def actual(lake: IcebergCatalog) -> list[tuple[Any, ...]]:
    found = [(i, part, None if day is None else str(day), x) for i, part, day, x in rows(lake)]
    return sorted(found, key=lambda row: row[0])


def run_merge(lake: IcebergCatalog, keys: tuple[str, ...], mode: str) -> None:
    numbers = [1, 14, 23]
    parts = [PARTITIONS[n // 8] for n in numbers]
    source = pa.table(
        {
            "id": numbers,
            "part": [part for part, _ in parts],
            "day": pa.array([day for _, day in parts], pa.int32()).cast(pa.date32()),
            "x": ["new"] * 3,
        }
    )
    stream = lambda: iter([source.schema, *source.to_batches()])  # noqa: E731
    plan, options = MergePlan(keys, ("x",), True), {"merge_mode": mode}
    assert merge(lake, NAME, plan, options, stream, "w", {}).spark_because is None


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("keys", [("id",), ("id", "part", "day")])
def test_merges(hive: IcebergCatalog, keys: tuple[str, ...], mode: str) -> None:
    run_merge(hive, keys, mode)
    assert actual(hive) == expected({1: "new", 14: "new", 23: "new"})
    assert {tuple(file.partition) for file in live(hive) if file.record_count} == {*PARTITIONS}


def test_small_files(hive: IcebergCatalog) -> None:
    assert merge_small_files(hive, NAME, {}) is not None
    assert actual(hive) == expected()
    assert len(live(hive)) == 3


def test_equality_deletes(hive: IcebergCatalog) -> None:
    """A key with the partition deletes a row whose file does not have it."""
    base = load(hive)
    target = WriteTarget.of(base.metadata, base.io)
    partition = partition_key(target.spec, target.schema, PARTITIONS[0])
    keys = pa.table({"id": [2], "part": ["a"]})
    file = write_equality_deletes(target, "equal", keys, partition=partition)
    commit(hive, Change(Operation.DELETE, (AddedFiles((), (file,)),)))
    convert_equality_deletes(hive, NAME, {})
    assert actual(hive) == [row for row in expected() if row[0] != 2]


def test_readers_of_keys(hive: IcebergCatalog) -> None:
    base = load(hive)
    target = WriteTarget.of(base.metadata, base.io)
    found = []
    for file in live(hive):
        schema = target.schema_in(file, target.file_schema)
        for _, keys in read_keys(target, schema, file.file_path):
            found += keys.to_pylist()
    found = [(r["id"], r["part"], r["day"] and str(r["day"]), r["x"]) for r in found]
    assert sorted(found, key=lambda row: row[0]) == expected()
