"""The index of one snapshot's files, and of the batches that are not committed on top of it.

Entries never change. Whether a row is live depends on the snapshot: on its data files, and on their
position deletes and deletion vectors. Another writer's commit therefore costs what it has changed.

If the table has too many rows, and its keys decide their partitions, only the partitions that
changes reach are indexed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import ManifestEntry
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.key_index.changed_keys import (
    IndexedBatch,
)
from dbt.adapters.iceberg_stream.stream.key_index.index_runs import IndexRuns
from dbt.adapters.iceberg_stream.stream.key_index.key_partitions import (
    KeyPartition,
    KeyPartitions,
)
from dbt.adapters.iceberg_stream.stream.key_index.late_changes import LateChanges
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id
from dbt.adapters.iceberg_stream.tables.deletes.equality import deletes_of_keys, scope_of
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    SnapshotFile,
    UnsupportedFile,
    bitmap,
    deleted_rows,
    read_keys,
    snapshot_files,
)
from dbt.adapters.iceberg_stream.tables.files.casting import conform
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.keys.codes import Mask, encode, encode_prefix
from dbt.adapters.iceberg_stream.tables.keys.live_entries import LiveEntries
from dbt.adapters.iceberg_stream.tables.keys.runs import (
    Entries,
    Rows,
    by_file,
    pack,
    unpack,
)

# Rows that are sorted at once when data files are indexed.
ROWS_PER_RUN = 1 << 20


class NotIndexable(Exception):
    """The table's keys cannot be indexed; the message says why."""


@dataclass
class IndexedFile:
    """A data file of the snapshot.

    Attributes:
        number: of the file in the index.
        snapshot_file: the data file and its delete files.
        deleted: positions of rows that the snapshot has deleted.
        is_own: whether the stream has written the file in this run, whose watermark has its values.
    """

    number: int
    snapshot_file: SnapshotFile
    deleted: BitMap
    is_own: bool = False


# Live rows that another writer has added of pending keys: their file, their places, and those of
# the pending entries of their keys.
ForeignRows = tuple[IndexedFile, Rows, Rows]


class SnapshotIndex:
    """Where the rows of a snapshot and of pending batches are, kept up with other writers.

    Args:
        schema: of the key columns, as data files have them, with field ids.
        max_rows: rows of a table that are indexed, at most: of all its partitions, or of those that
            pending batches and the next one change.
        prefix: how many first key columns rows are found by; 0 for all.

    Attributes:
        late_changes: finds changes that are older than their rows; None where none are.
    """

    def __init__(self, schema: pa.Schema, max_rows: int, prefix: int = 0) -> None:
        self.schema = schema
        self.prefix = prefix
        self.late_changes: LateChanges | None = None
        self.lock = threading.RLock()
        self.snapshot_id: int | None = None
        self._max_rows = max_rows
        # None if all partitions are indexed; otherwise tells which are, beside those of _files.
        self._partitions: KeyPartitions | None = None
        self._reached: set[KeyPartition] = set()
        self._reaches_too_many = False
        self._numbers = itertools.count()
        self._runs = IndexRuns()
        self._files: dict[str, IndexedFile] = {}
        self._highest_in_files: pa.Scalar | None = None
        # Number and deleted rows of files in a stored index, until it is loaded.
        self._restored: dict[str, tuple[int, BitMap]] = {}
        self._stored_rows = 0
        self._pending: list[IndexedBatch] = []
        # Rows that each equality delete file has deleted, by the number of their data file.
        self._equality_deleted: dict[str, dict[int, BitMap]] = {}
        # Whether the next commit replaces the snapshot's rows, whatever they are.
        self._is_replaced = False
        # Deleted rows by the number of their file, for files of the snapshot and pending ones.
        self._deleted: dict[int, BitMap] = {}

    def _delete(self, batch: IndexedBatch, rows: Mapping[int, BitMap]) -> None:
        for number, positions in rows.items():
            batch.deletes[number] = batch.deletes.get(number, BitMap()) | positions
            self._deleted[number] = self._deleted[number] | positions

    def _live(self, rows: Rows) -> dict[int, BitMap]:
        """Return the positions of those of some rows that are live now, by data file."""
        return {
            number: live
            for number, positions in by_file(*unpack(rows)).items()
            if number in self._deleted and (live := bitmap(positions) - self._deleted[number])
        }

    def _follow(self, table: LoadedTable, needed: Set[KeyPartition] | None = None) -> None:
        try:
            self._index_snapshot(table, needed)
        except UnsupportedFile as error:
            raise NotIndexable(str(error)) from error

    def _index_snapshot(self, table: LoadedTable, needed: Set[KeyPartition] | None) -> None:
        late_changes = self.late_changes
        of_table = {} if self._is_replaced else snapshot_files(table)
        files = self._to_index(table.metadata, of_table, needed)
        changed = [item for item in files.values() if not self._has(item)]
        deleted = deleted_rows(table, changed)
        equality_deletes = self._equality_deletes(table)
        paths = {entry.data_file.file_path for entry in equality_deletes}
        equality = {path: one for path, one in self._equality_deleted.items() if path in paths}
        dead, still_dead = _by_number(self._equality_deleted), _by_number(equality)
        kept: dict[str, IndexedFile] = {}
        new: list[IndexedFile] = []
        for path, item in files.items():
            indexed = self._known(item)
            before = (indexed.number, indexed.deleted) if indexed else self._restored.get(path)
            is_own = indexed is not None and indexed.is_own
            positions = deleted.get(path, indexed.deleted if indexed is not None else BitMap())
            if before is not None and before[1] | dead.get(before[0], BitMap()) <= (
                positions | still_dead.get(before[0], BitMap())
            ):
                kept[path] = IndexedFile(before[0], item, positions, is_own)
            else:
                # Its entries may have been left out of a merge, if rows of it are live again.
                kept[path] = IndexedFile(next(self._numbers), item, positions, is_own)
                new.append(kept[path])
        if late_changes is not None:
            own = {path for path, item in kept.items() if item.is_own}
            others = (item.file for path, item in of_table.items() if path not in own)
            self._highest_in_files = late_changes.highest_in(others)
        previous, self._restored = (self._files, self._equality_deleted), {}
        self._set_files(kept, equality)
        with ExitStack() as undo:
            # Files whose keys are not read must not count as indexed in the next attempt.
            undo.callback(self._set_files, *previous)
            self._index_files(table, new, equality_deletes)
            undo.pop_all()
        self.snapshot_id = current_snapshot_id(table.metadata)
        self._runs.merge_similar(self._live_entries)

    def _to_index(
        self,
        metadata: Metadata,
        files: Mapping[str, SnapshotFile],
        needed: Set[KeyPartition] | None,
    ) -> Mapping[str, SnapshotFile]:
        """Return those of a snapshot's files that are indexed.

        Args:
            metadata: of the table.
            files: of the snapshot.
            needed: partitions that the next changes reach, for which others may be forgotten; None
                between changes, whose partitions stay.

        Raises:
            NotIndexable: they have too many rows.
        """
        if self._partitions is None:
            if _rows_of(files) <= self._max_rows:
                return files
            partitions = KeyPartitions(metadata, self._names)
            if needed is None or self._reaches_too_many or not partitions.are_decided:
                raise self._too_many_rows
            self._partitions, self._files, self._reached = partitions, {}, set()
        indexed = self._indexed(files, {*self._files, *self._restored})
        if needed is None or _rows_of(indexed) <= self._max_rows:
            return indexed
        self._reached = {*needed, *(each for batch in self._pending for each in batch.partitions)}
        indexed = self._indexed(files, ())
        if _rows_of(indexed) > self._max_rows:
            self._reaches_too_many = bool(needed)
            raise self._too_many_rows
        self._files = {path: item for path, item in self._files.items() if path in indexed}
        return indexed

    @property
    def _too_many_rows(self) -> NotIndexable:
        whose = "the partitions of its changes have" if self._reaches_too_many else "the table has"
        return NotIndexable(f"{whose} over {self._max_rows:,} rows (`max_indexed_rows`)")

    def _indexed(
        self, files: Mapping[str, SnapshotFile], known: Collection[str]
    ) -> dict[str, SnapshotFile]:
        """Return files that are known, or whose partitions have been reached."""
        return {path: item for path, item in files.items() if path in known or self._reach(item)}

    def _reach(self, item: SnapshotFile) -> bool:
        """Return whether changes have reached the partition of a file."""
        assert self._partitions is not None
        partition = self._partitions.of_file(item.file)
        return partition is None or partition in self._reached

    @property
    def _names(self) -> list[str]:
        """The columns that rows are found by."""
        return list(self.schema.names[: self.prefix or None])

    def _partitions_of(self, keys: Sequence[pa.Table]) -> set[KeyPartition]:
        """Return the partitions of some keys, if not all are indexed."""
        if self._partitions is None:
            return set()
        found = [self._partitions.of_rows(self._conformed(rows)) for rows in keys]
        return set().union(*found)

    def _conformed(self, rows: pa.Table) -> pa.Table:
        """Return the columns that rows are found by, with the types that data files have."""
        schema = pa.schema(list(self.schema)[: self.prefix or None])
        return conform_rows(rows.select(schema.names), schema)

    def _has(self, item: SnapshotFile) -> bool:
        indexed = self._known(item)
        return indexed is not None and indexed.snapshot_file.delete_keys == item.delete_keys

    def _known(self, item: SnapshotFile) -> IndexedFile | None:
        """Return a file as it is indexed; None if it is not, or was added again since."""
        indexed = self._files.get(item.path)
        if indexed is None:
            return None
        numbers = {indexed.snapshot_file.sequence_number, item.sequence_number} - {None}
        return indexed if len(numbers) < 2 else None

    def _set_files(
        self, files: dict[str, IndexedFile], equality: dict[str, dict[int, BitMap]]
    ) -> None:
        self._files, self._equality_deleted = files, equality
        self._update_deleted()

    def _update_deleted(self) -> None:
        deleted = {item.number: item.deleted for item in self._files.values()}
        for number, positions in _by_number(self._equality_deleted).items():
            if number in deleted:
                deleted[number] = deleted[number] | positions
        for batch in self._pending:
            for number in batch.numbers.values():
                deleted.setdefault(number, BitMap())
            for number, positions in batch.deletes.items():
                if number in deleted:
                    deleted[number] = deleted[number] | positions
        self._deleted = deleted

    def _index_files(
        self,
        table: LoadedTable,
        files: Sequence[IndexedFile],
        equality_deletes: Sequence[ManifestEntry],
    ) -> None:
        target = WriteTarget.of(table.metadata, table.io)
        pending: list[Entries] = []
        foreign: list[ForeignRows] = []
        for item, entries in self._read(target, files):
            if self._pending:
                foreign += self._of_pending_keys(item, entries)
            pending.append(entries)
            if sum(len(part.rows) for part in pending) >= ROWS_PER_RUN:
                self._runs.add(pending)
                pending = []
        self._runs.add(pending)
        if self.late_changes is None:
            for _, rows, own_rows in foreign:
                self._delete_changed(rows, own_rows)
        else:
            for entry in equality_deletes:
                path = entry.data_file.file_path
                is_known = path in self._equality_deleted
                if not is_known or any(_reaches(entry, item) for item in files):
                    self._equality_deleted[path] = self._rows_deleted_by(table, entry)
            self._update_deleted()
            self._delete_earlier(self.late_changes, foreign)

    def _equality_deletes(self, table: LoadedTable) -> list[ManifestEntry]:
        """Return the equality deletes whose rows are not compared with changes."""
        if self.late_changes is None or self.prefix or self._is_replaced:
            return []
        return deletes_of_keys(table, self.schema)

    def _rows_deleted_by(self, table: LoadedTable, entry: ManifestEntry) -> dict[int, BitMap]:
        metadata, delete = table.metadata, entry.data_file
        scope = scope_of(metadata, delete)
        reached = {
            item.number
            for item in self._files.values()
            if _reaches(entry, item)
            and scope in (None, scope_of(metadata, item.snapshot_file.file))
        }
        deleted: dict[int, BitMap] = {}
        target = WriteTarget.of(metadata, table.io)
        for _, keys in read_keys(target, self.schema, delete.file_path):
            rows = self._runs.find(self._lookups(keys).lookup_keys())[1]
            for number, positions in by_file(*unpack(rows)).items():
                if number in reached:
                    deleted[number] = deleted.get(number, BitMap()) | bitmap(positions)
        return deleted

    def _read(
        self, target: WriteTarget, files: Sequence[IndexedFile]
    ) -> Iterator[tuple[IndexedFile, Entries]]:
        for item in files:
            location = item.snapshot_file.path
            schema = target.schema_in(item.snapshot_file.file, self.schema)
            for begin, rows in read_keys(target, schema, location):
                if rows.num_rows:
                    yield item, Entries.of(encode(rows, self.prefix), item.number, begin)

    def _of_pending_keys(self, item: IndexedFile, entries: Entries) -> Iterator[ForeignRows]:
        index, own_rows = self._runs.find_pending(entries.lookup_keys())
        rows = entries.rows[index]
        is_live = np.array([int(p) not in item.deleted for p in unpack(rows)[1]], np.bool_)
        if is_live.any():
            yield item, rows[is_live], own_rows[is_live]

    def _delete_changed(self, rows: Rows, own_rows: Rows) -> None:
        """Let pending batches delete the rows that another writer has added of their keys."""
        numbers, _ = unpack(own_rows)
        for batch, own_numbers in self._owners():
            own = np.isin(numbers, own_numbers)
            self._delete(batch, self._live(rows[own]))

    def _delete_earlier(self, finder: LateChanges, foreign: Sequence[ForeignRows]) -> None:
        """Let pending batches delete earlier rows of their keys, and their own if others are later.

        Raises:
            UnsupportedFile: the order of rows cannot be read.
            OSError: the storage refuses a file.
        """
        earlier: list[tuple[IndexedBatch, Rows, Rows]] = []
        for item, rows, own_rows in foreign:
            is_live = ~np.isin(unpack(rows)[1], self._deleted[item.number].to_array())
            rows, own_rows = rows[is_live], own_rows[is_live]
            others = finder.read(item.snapshot_file.file, unpack(rows)[1].astype(np.int64))
            for batch, _ in self._owners():
                is_earlier = self._earlier(finder, batch, others, own_rows)
                earlier.append((batch, rows[is_earlier], own_rows[is_earlier]))
        for batch, rows, own_rows in earlier:
            numbers, positions = unpack(own_rows)
            places = zip(numbers.tolist(), positions.tolist(), strict=True)
            stays = [p not in batch.deletes.get(n, ()) for n, p in places]
            self._delete(batch, self._live(rows[np.array(stays, np.bool_)]))

    def _earlier(
        self, finder: LateChanges, batch: IndexedBatch, others: pa.Table, own_rows: Rows
    ) -> Mask:
        """Return which rows of others a batch changes later; delete those that it changes earlier.

        Args:
            finder: compares rows.
            batch: the pending batch.
            others: rows of other writers.
            own_rows: the place of a pending entry for each of them.
        """
        numbers, positions = unpack(own_rows)
        is_deleted = np.flatnonzero(numbers == batch.deleted_keys)
        is_earlier = np.zeros(len(numbers), np.bool_)
        is_earlier[is_deleted] = finder.deletes_before(others.take(is_deleted), batch.deleted)
        for path, number in batch.numbers.items():
            at = np.flatnonzero(numbers == number)
            if not len(at):
                continue
            own = positions[at].astype(np.int64)
            is_late = finder.rows_after(others.take(at), path, own)
            self._delete(batch, {number: bitmap(own[is_late])})
            is_earlier[at[~is_late]] = True
        return is_earlier

    def _owners(self) -> list[tuple[IndexedBatch, list[int]]]:
        return [(b, [*b.numbers.values(), b.deleted_keys]) for b in self._pending]

    def _last_commit(self) -> Iterator[IndexedBatch]:
        """Yield the batches of the newest pending commit, newest first."""
        for batch in reversed(self._pending):
            yield batch
            if not batch.joins:
                return

    def _live_entries(self) -> LiveEntries:
        """Return which entries the index still needs."""
        deleted = {item.number: item.deleted for item in self._files.values()}
        # No snapshot will have rows that their own commit deletes; nothing after it does so yet.
        last = (number for batch in self._last_commit() for number in batch.numbers.values())
        deleted |= {number: self._deleted[number] for number in last}
        pending = (number for _, own in self._owners() for number in own)
        return LiveEntries({*deleted, *pending}, deleted)

    def _lookups(self, changes: pa.Table) -> Entries:
        """Return the keys of changes, each with the change's position in place of a row's."""
        keys = self._conformed(changes)
        places = np.arange(changes.num_rows, dtype=np.uint64)
        return Entries.at(encode_prefix(keys) if self.prefix else encode(keys), pack(0, places))


def _rows_of(files: Mapping[str, SnapshotFile]) -> int:
    return sum(item.file.record_count for item in files.values())


def _by_number(deleted: Mapping[str, Mapping[int, BitMap]]) -> dict[int, BitMap]:
    """Return the rows that any equality delete file has deleted, by the number of their file."""
    rows: dict[int, BitMap] = {}
    for of_file in deleted.values():
        for number, positions in of_file.items():
            rows[number] = rows.get(number, BitMap()) | positions
    return rows


def _reaches(entry: ManifestEntry, item: IndexedFile) -> bool:
    """Return whether an equality delete file is newer than a data file."""
    return (item.snapshot_file.sequence_number or 0) < (entry.sequence_number or 0)


def conform_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of a query with the types that data files have."""
    batches = [conform(batch, schema) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, schema)
