"""Find changes that are older than the row, or the delete, of their key.

The files of such changes are written already. Their rows do not become visible, because the commit
deletes them by position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import (
    DeletedKeysFile,
    warn_of_missing,
)
from dbt.adapters.iceberg_stream.stream.key_index.highest_values import HighestValues, higher
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import read_keys, read_rows_at
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.keys.codes import Mask
from dbt.adapters.iceberg_stream.tables.keys.runs import Indices
from dbt.adapters.iceberg_stream.tables.merge.rows import Source, later


@dataclass(frozen=True)
class LiveRows:
    """Rows of a data file with the keys of some changes.

    Attributes:
        location: of the data file.
        changes: the position of each row's change.
        positions: of the rows in the file.
        file: the data file; None if it is not committed yet.
    """

    location: str
    changes: Indices
    positions: Indices
    file: DataFile | None = None


@dataclass
class LateChanges:
    """Finds late changes of one stream.

    Attributes:
        schema: of the key columns and the `sequence_by` columns, as files have them, with ids.
        keys: columns that identify a row.
        sequence_by: columns that order the changes of a key.
        days: days after which a deleted key is forgotten.
        load: loads the table, for its storage.
        deleted_keys: files of keys that the stream has deleted.
        deleted_by_others: files of keys that other streams have deleted.
        highest_of_others: the highest value of the first `sequence_by` column in the changes of
            other streams; None or null if there are none.
        missing: locations of such files that do not exist any more.
        followed: locations of files with deletes of others that pending changes were compared with.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    days: float
    load: Callable[[], LoadedTable]
    deleted_keys: tuple[DeletedKeysFile, ...] = ()
    deleted_by_others: tuple[DeletedKeysFile, ...] = ()
    highest_of_others: pa.Scalar | None = None
    missing: set[str] = field(default_factory=set)
    followed: set[str] = field(default_factory=set)
    _highest_values: HighestValues = field(init=False)

    def __post_init__(self) -> None:
        self._highest_values = HighestValues(self._first)

    def clear(self) -> None:
        """Forget all deleted keys, because the next commit replaces the table's rows."""
        self.deleted_keys, self.deleted_by_others = (), ()
        self.highest_of_others = None

    def highest_in(self, files: Iterable[DataFile]) -> pa.Scalar:
        """Return the highest value of the first `sequence_by` column in data files; null if none.

        Args:
            files: the data files.

        Raises:
            UnsupportedFile, OSError: as for `mask`.
        """
        return self._highest_values.of(self._target(), files)

    @property
    def _first(self) -> pa.Field:
        return self.schema.field(self.sequence_by[0])

    def candidates(
        self, changes: pa.Table, watermark: Any, highest: pa.Scalar | None = None
    ) -> Indices:
        """Return the positions of changes that may be late.

        Args:
            changes: with the columns of `schema`.
            watermark: the highest value of the first `sequence_by` column in all changes before
                these; None if there were none.
            highest: the highest value of that column in the files of other writers; None or null
                if there is none.
        """
        first = changes[self._first.name]
        highest = higher(
            pa.scalar(watermark, first.type),
            pa.scalar(None, first.type) if highest is None else highest,
        )
        if not highest.is_valid or not changes.num_rows:
            return np.empty(0, np.int64)
        # Where several columns order changes, those after the first may differ.
        is_before = pc.less if len(self.sequence_by) == 1 else pc.less_equal
        mask = is_before(first, highest)
        return np.flatnonzero(pc.fill_null(mask, True).to_numpy(zero_copy_only=False))

    def rows_after(self, others: pa.Table, location: str, positions: Indices) -> Mask:
        """Return which rows of other writers come after rows of a file that is not committed yet.

        Args:
            others: their rows, with the columns of `schema`.
            location: of the file.
            positions: of the rows in the file, one for each of theirs.
        """
        schema = pa.schema([self.schema.field(name) for name in self.sequence_by])
        ours = read_rows_at(self._target(), schema, location, positions)
        return self._is_after(others, ours, np.arange(len(positions)))

    def deletes_before(self, others: pa.Table, deleted: Sequence[pa.Table]) -> Mask:
        """Return which rows of other writers come before, or with, the delete of their key.

        Args:
            others: their rows, with the columns of `schema`.
            deleted: keys with the order of their deletes.
        """
        is_before = np.zeros(others.num_rows, np.bool_)
        # A key is in each table once, and may have several of the rows.
        for keys in deleted:
            matches = Source(keys, self.keys).match(others.select(self.keys))
            at, ours = matches.in_file.to_numpy(), keys.take(matches.in_source)
            is_before[at[~self._is_after(others.take(at), ours, np.arange(len(at)))]] = True
        return is_before

    def without_earlier(self, deleted: pa.Table, by_others: pa.Table) -> pa.Table:
        """Return deleted keys without those that another stream has deleted later.

        Args:
            deleted: the keys, with the order of their deletes.
            by_others: the same of another stream.
        """
        matches = Source(deleted, self.keys).match(by_others.select(self.keys))
        at = matches.in_source.to_numpy()
        is_later = self._is_after(by_others.take(matches.in_file), deleted, at)
        stays = np.ones(deleted.num_rows, np.bool_)
        stays[at[is_later]] = False
        return deleted.filter(pa.array(stays))

    def read(self, file: DataFile, positions: Indices) -> pa.Table:
        """Read keys and order of some rows of a data file.

        Args:
            file: the file.
            positions: of the rows.
        """
        target = self._target()
        schema = target.schema_in(file, self.schema)
        return read_rows_at(target, schema, file.file_path, positions)

    def mask(
        self, changes: pa.Table, live_rows: Iterable[LiveRows], pending: Sequence[pa.Table]
    ) -> Mask:
        """Return which changes are late.

        Args:
            changes: those that may be late, with the columns of `schema`.
            live_rows: the rows with their keys.
            pending: deleted keys that are not committed yet, with the columns of `schema`.

        Raises:
            UnsupportedFile: a file has values that the columns cannot have.
            OSError: the storage refuses a file.
        """
        late = np.zeros(changes.num_rows, np.bool_)
        target = self._target()
        schema = pa.schema([self.schema.field(name) for name in self.sequence_by])
        for rows in live_rows:
            columns = target.schema_in(rows.file, schema)
            before = read_rows_at(target, columns, rows.location, rows.positions)
            late[rows.changes[self._is_after(before, changes, rows.changes)]] = True
        source = Source(changes, self.keys)
        for deleted in (*pending, *self._read_deleted(target, changes)):
            matches = source.match(deleted.select(self.keys))
            at = matches.in_source.to_numpy()
            late[at[self._is_after(deleted.take(matches.in_file), changes, at)]] = True
        return late

    def _is_after(self, before: pa.Table, changes: pa.Table, at: Indices) -> Mask:
        """Return which rows come after the changes at some positions."""
        ours = changes.select(self.sequence_by).take(at)
        return np.asarray(later(before.select(self.sequence_by).columns, ours.columns))

    @property
    def of_others(self) -> tuple[str, ...]:
        """The locations of the files with deletes of other streams."""
        return tuple(file.location for file in self.deleted_by_others)

    def read_deleted(self, location: str) -> Iterator[pa.Table]:
        """Yield deleted keys with their order.

        Args:
            location: of a file that has them.
        """
        yield from self._read(self._target(), [location], None)

    def _read_deleted(self, target: WriteTarget, changes: pa.Table) -> Iterator[pa.Table]:
        """Yield deleted keys, without row groups whose keys were all deleted before the changes."""
        first = self.sequence_by[0]
        is_needed = partial(_may_reach, first, pc.min(changes[first]))
        files = (*self.deleted_keys, *self.deleted_by_others)
        yield from self._read(target, [file.location for file in files], is_needed)

    def _read(
        self,
        target: WriteTarget,
        locations: Sequence[str],
        is_needed: Callable[[int, pq.RowGroupMetaData], bool] | None,
    ) -> Iterator[pa.Table]:
        for location in locations:
            if location in self.missing:
                continue
            try:
                for _, part in read_keys(target, self.schema, location, is_needed):
                    yield part
            except FileNotFoundError:
                self.missing.add(location)
                warn_of_missing(location)

    def _target(self) -> WriteTarget:
        table = self.load()
        return WriteTarget.of(table.metadata, table.io)


def _may_reach(name: str, lowest: pa.Scalar, _: int, group: pq.RowGroupMetaData) -> bool:
    """Return whether a row group may have a value of a column that is not below another one."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == name and _is_ordered(lowest.type):
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                return True
            highest = pa.scalar(statistics.max, lowest.type)
            return not pc.less(highest, lowest).as_py()
    return True


def _is_ordered(kind: pa.DataType) -> bool:
    """Return whether bounds of a type in Parquet files can be relied on."""
    return (
        pa.types.is_integer(kind)
        or pa.types.is_date(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )
