"""Random histories of a table, whose versions are compared by `diff` and by another engine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DoubleType, FloatType, ListType, LongType, NestedField, StringType
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes
from dbt.adapters.iceberg_stream.tables.deletes.position_files import write_deletes_by_position
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import deleted_rows, snapshot_files
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.deletes import (
    write_equality_deletes,
    write_position_deletes,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.lost_files import missing_files
from tests.unit.local_tables import commit, evolve, load, make_table, write

FIELDS = (
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "value", FloatType(), required=False),
    NestedField(4, "tags", ListType(5, StringType(), False), required=False),
)


def steps(ids: Sequence[int | None]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Steps of a history.

    Args:
        ids: values of the column `id`, which equality deletes compare.
    """
    row = st.tuples(
        st.sampled_from(ids),
        st.sampled_from([None, "", "a", "a longer text than one word of a hash"]),
        st.sampled_from([None, 0.0, -0.0, math.nan, 1.5]),
        st.sampled_from([None, [], ["a"], ["a", None]]),
    )
    rows = st.lists(row, min_size=1, max_size=6)
    # With an id of their own, so that comparisons by key are not all refused.
    unique = st.lists(row, min_size=1, max_size=6, unique_by=lambda values: values[0])
    some_ids = st.lists(st.sampled_from(ids), min_size=1, max_size=2, unique=True)
    number = st.integers(0, 20)
    step = st.one_of(
        st.tuples(st.just("append"), rows),
        st.tuples(st.just("rebuild"), unique),
        st.tuples(st.just("upsert"), unique),
        st.tuples(st.just("delete"), some_ids),
        st.tuples(st.just("delete_by_position"), number),
        st.tuples(st.just("delete_in_all_files"), number),
        st.tuples(st.sampled_from(["convert", "rename", "add", "widen", "drop"]), st.none()),
    )
    return st.lists(step, min_size=2, max_size=8)


@dataclass(frozen=True)
class Version:
    """A version of the table.

    Attributes:
        location: of its metadata file.
        snapshot_id: the snapshot.
        schema: the table's schema then.
    """

    location: str
    snapshot_id: int
    schema: Schema


class History:
    """A table, and its versions after each commit of rows."""

    def __init__(self, lake: IcebergCatalog, version: int, name: tuple[str, str]) -> None:
        self.lake, self.format_version, self.name = lake, version, name
        make_table(lake, version, Schema(*FIELDS), name=name)
        self.fields = list(FIELDS)
        self.files = map("file-{}".format, itertools.count())
        self.versions: list[Version] = []

    def run(self, steps: Sequence[tuple[str, Any]]) -> None:
        """Make the steps, and remember the versions."""
        for step, argument in [("append", [(0, "a", 1.5, ["a"])]), *steps]:
            getattr(self, step)(argument)
            table = load(self.lake, self.name)
            snapshot_id = table.metadata["current-snapshot-id"]
            if not self.versions or self.versions[-1].snapshot_id != snapshot_id:
                # As the snapshot's schema id says it; `evolve` after it makes no snapshot.
                self.versions.append(Version(table.location, snapshot_id, Schema(*self.fields)))
        assert missing_files(load(self.lake, self.name)) == []

    def append(self, rows: Sequence[Any]) -> None:
        self._commit(Operation.APPEND, self._rows(rows))

    def rebuild(self, rows: Sequence[Any]) -> None:
        added = (AddedFiles((*self._rows(rows[:3]), *self._rows(rows[3:]))),)
        commit(self.lake, Change(Operation.OVERWRITE, added, removes_all=True), name=self.name)

    def upsert(self, rows: Sequence[Any]) -> None:
        self._commit(Operation.OVERWRITE, self._rows(rows), [self._deletes([r[0] for r in rows])])

    def delete(self, ids: Sequence[int | None]) -> None:
        self._commit(Operation.DELETE, (), [self._deletes(ids)])

    def delete_by_position(self, number: int) -> None:
        """Delete one row of one file, by a file or a vector of its own."""
        base = load(self.lake, self.name)
        files = sorted(snapshot_files(base).values(), key=lambda item: item.path)
        if not files:
            return
        item = files[number % len(files)]
        gone = deleted_rows(base, [item])[item.path] | BitMap([number % item.file.record_count])
        target = WriteTarget.of(base.metadata, base.io)
        new = write_deletes_by_position(
            target, self.format_version == 3, next(self.files), [(item.file, gone)]
        )
        change = Change(
            Operation.DELETE,
            (AddedFiles(deletes=tuple(new.values())),),
            removed=tuple(item.own_deletes),
        )
        commit(self.lake, change, name=self.name)

    def delete_in_all_files(self, number: int) -> None:
        """Delete a row of each file by one position delete file, which format version 3 forbids."""
        base = load(self.lake, self.name)
        files = snapshot_files(base)
        if self.format_version == 3 or not files:
            return
        target = WriteTarget.of(base.metadata, base.io)
        positions = {path: [number % item.file.record_count] for path, item in files.items()}
        self._commit(
            Operation.DELETE, (), [write_position_deletes(target, next(self.files), positions)]
        )

    def convert(self, _: None) -> None:
        convert_equality_deletes(self.lake, self.name, {})

    def rename(self, _: None) -> None:
        field = self.fields[1]
        self._evolve([*self.fields[:1], renamed(field), *self.fields[2:]])

    def add(self, _: None) -> None:
        if all(field.field_id != 6 for field in self.fields):
            self._evolve([*self.fields, NestedField(6, "extra", StringType(), required=False)])

    def widen(self, _: None) -> None:
        # DuckDB 1.5 cannot read a widened column that equality deletes compare.
        wide = self.fields[2].model_copy(update={"field_type": DoubleType()})
        self._evolve([*self.fields[:2], wide, *self.fields[3:]])

    def drop(self, _: None) -> None:
        self._evolve([field for field in self.fields if field.field_id != 4])

    def _evolve(self, fields: list[NestedField]) -> None:
        self.fields = fields
        schema_id = len(load(self.lake, self.name).metadata["schemas"])
        evolve(self.lake, Schema(*fields, schema_id=schema_id), name=self.name)

    def _rows(self, rows: Sequence[Any]) -> list[DataFile]:
        if not rows:
            return []
        schema = file_schema(Schema(*self.fields))
        value: dict[int, Callable[[Any], Any]] = {
            **{number: (lambda row, at=number: row[at - 1]) for number in (1, 2, 3, 4)},
            6: lambda row: row[1],
        }
        arrays = [
            pa.array([value[field.field_id](row) for row in rows], kind.type)
            for field, kind in zip(self.fields, schema, strict=True)
        ]
        return write(self.lake, pa.Table.from_arrays(arrays, schema=schema), self.name)

    def _deletes(self, ids: Sequence[int | None]) -> DataFile:
        base = load(self.lake, self.name)
        kind = file_schema(Schema(self.fields[0])).field(0).type
        keys = pa.table({"id": pa.array(ids, kind)})
        target = WriteTarget.of(base.metadata, base.io)
        return write_equality_deletes(target, next(self.files), keys)

    def _commit(
        self, operation: Operation, data: Sequence[DataFile], deletes: Sequence[DataFile] = ()
    ) -> None:
        added = (AddedFiles((*data,), (*deletes,)),)
        commit(self.lake, Change(operation, added), name=self.name)


def renamed(field: NestedField) -> NestedField:
    """The field with another name each time."""
    return field.model_copy(update={"name": f"{field.name}_x"})
