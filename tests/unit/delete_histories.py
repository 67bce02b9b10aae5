"""Random histories of a table with deletes, and its rows as the specification defines them."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.deletes import equality
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes
from dbt.adapters.iceberg_stream.tables.deletes.position_files import write_deletes_by_position
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import deleted_rows, snapshot_files
from dbt.adapters.iceberg_stream.tables.files.deletes import write_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.partitions import partition_key
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.tables import LATER
from tests.lost_files import missing_files
from tests.unit.local_tables import NAME, commit, evolve, load, make_table, rows, write

Key = tuple[Any, ...]
SCHEMA = Schema(
    NestedField(1, "n", LongType(), required=False),
    NestedField(2, "id", LongType(), required=False),
    NestedField(3, "part", StringType(), required=False),
    NestedField(4, "value", DoubleType(), required=False),
)
PARTITIONED = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "part"), spec_id=1)
COLUMNS = ("id", "part", "value")
ROWS = st.tuples(
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, "a"]),
    st.sampled_from([None, 0.0, -0.0, math.nan]),
)
KEYS = st.tuples(
    st.sampled_from([("id",), ("id", "part"), ("value",), ("id", "part", "value")]),
    st.lists(ROWS, min_size=1, max_size=2),
)
APPEND = st.tuples(st.just("append"), st.lists(ROWS, min_size=1, max_size=4))
UPSERT = st.tuples(st.just("upsert"), st.lists(ROWS, min_size=1, max_size=2))
DELETE = st.tuples(st.sampled_from(["delete_everywhere", "delete_in_partition"]), KEYS)
POSITION = st.tuples(st.just("delete_by_position"), st.integers(0, 20))
ONCE = st.tuples(st.sampled_from(["partition", "convert"]), st.none())
STEPS = st.lists(st.one_of(APPEND, UPSERT, DELETE, DELETE, POSITION, ONCE), min_size=4, max_size=10)


def exact(value: Any) -> Any:
    """A value that is equal as equality deletes compare: NaN is NaN, and 0.0 is not -0.0."""
    return struct.pack("<d", value) if isinstance(value, float) else value


def select(row: Key, columns: Sequence[str]) -> Key:
    return tuple(exact(row[COLUMNS.index(column)]) for column in columns)


ZERO, A = (0, None, None), (0, "a", None)
DELETE_ZERO = ("delete_everywhere", (("id",), [ZERO]))
TYPES = {"n": pa.int64(), "id": pa.int64(), "part": pa.string(), "value": pa.float64()}


class History:
    """A table, and its live rows by their numbers, as the specification defines them."""

    def __init__(self, lake: IcebergCatalog, version: int, name: tuple[str, str] = NAME) -> None:
        self.lake, self.version, self.name = lake, version, name
        make_table(lake, version, SCHEMA, name=name)
        self.live: dict[int, tuple[Key, bool]] = {}
        self.numbers = itertools.count()
        self.names = map("file-{}".format, itertools.count())
        self.is_partitioned = False

    def append(self, new: Sequence[Key]) -> None:
        self._commit(self._new_rows(new))

    def upsert(self, new: Sequence[Key]) -> None:
        """Rows, and deletes of their keys with the same sequence number: older rows only."""
        deletes = self._deletes(("id",), new, None, everywhere=True)
        ids = {row[0] for row in new}
        self._forget(lambda row, _: row[0] in ids)
        self._commit(self._new_rows(new), (deletes,))

    def delete_everywhere(self, keys: tuple[Sequence[str], Sequence[Key]]) -> None:
        columns, gone = keys[0], {select(row, keys[0]) for row in keys[1]}
        self._commit((), (self._deletes(*keys, part=None, everywhere=True),))
        self._forget(lambda row, _: select(row, columns) in gone)

    def delete_in_partition(self, keys: tuple[Sequence[str], Sequence[Key]]) -> None:
        if not self.is_partitioned:
            return
        columns, gone = keys[0], {select(row, keys[0]) for row in keys[1]}
        part = keys[1][0][1]
        self._commit((), (self._deletes(*keys, part=part, everywhere=False),))
        self._forget(lambda row, p: p and row[1] == part and select(row, columns) in gone)

    def delete_by_position(self, number: int) -> None:
        base = load(self.lake, self.name)
        files = sorted(snapshot_files(base).values(), key=lambda item: item.path)
        if not files:
            return
        item = files[number % len(files)]
        gone = deleted_rows(base, [item])[item.path] | BitMap([number % item.file.record_count])
        target = WriteTarget.of(base.metadata, base.io)
        files_of = [(item.file, gone)]
        new = write_deletes_by_position(target, self.version == 3, next(self.names), files_of)
        added = (AddedFiles(deletes=tuple(new.values())),)
        change = Change(Operation.DELETE, added, removed=tuple(item.own_deletes))
        commit(self.lake, change, name=self.name)
        numbers = pq.ParquetFile(target.path_of(item.path)).read(["n"])["n"].to_pylist()
        for position in gone:
            self.live.pop(numbers[position], None)

    def partition(self, _: None) -> None:
        if not self.is_partitioned:
            evolve(self.lake, spec=PARTITIONED, name=self.name)
            self.is_partitioned = True

    def convert(self, _: None = None) -> None:
        convert_equality_deletes(self.lake, self.name, {})

    def check(self) -> None:
        base = load(self.lake, self.name)
        assert not equality.equality_delete_files(base)
        expected = sorted((n, *map(exact, row)) for n, (row, _) in self.live.items())
        assert sorted(tuple(map(exact, row)) for row in rows(self.lake, self.name)) == expected
        assert not unreferenced_files(base, LATER)
        assert not missing_files(base)

    def _forget(self, gone: Callable[[Key, bool], bool]) -> None:
        self.live = {n: item for n, item in self.live.items() if not gone(*item)}

    def _new_rows(self, new: Sequence[Key]) -> list[DataFile]:
        numbered = [(next(self.numbers), *row) for row in new]
        self.live |= {number: (tuple(row), self.is_partitioned) for number, *row in numbered}
        columns = zip(*numbered, strict=True)
        arrays = [pa.array(c, k) for c, k in zip(columns, TYPES.values(), strict=True)]
        return write(self.lake, pa.Table.from_arrays(arrays, names=list(TYPES)), self.name)

    def _deletes(
        self, columns: Sequence[str], keys: Sequence[Key], part: Any, everywhere: bool
    ) -> DataFile:
        base = load(self.lake, self.name)
        target = WriteTarget.of(base.metadata, base.io)
        key = None if everywhere else partition_key(target.spec, target.schema, [part])
        arrays = [pa.array([row[COLUMNS.index(c)] for row in keys], TYPES[c]) for c in columns]
        table = pa.Table.from_arrays(arrays, names=list(columns))
        file = write_equality_deletes(target, next(self.names), table, key)
        if everywhere:
            file.spec_id = 0
        return file

    def _commit(self, data: Sequence[DataFile], deletes: Sequence[DataFile] = ()) -> None:
        added = (AddedFiles((*data,), (*deletes,)),)
        commit(self.lake, Change(Operation.OVERWRITE, added), name=self.name)
