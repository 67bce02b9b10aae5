"""A key index: where the rows of a table's keys are.

Deletes by position need the data file and the position of each row that a batch changes. The index
has them for all rows of one snapshot, and for the rows of batches that are not committed yet, so
that a stream never scans its table. It is a cache: it can be built from the data files at any time.

Entries never change. Whether a row is live depends on the snapshot: on its data files, and on their
position deletes and deletion vectors. Another writer's commit therefore costs what it has changed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.key_index.changed_keys import (
    ChangedKeys,
    FileDeletes,
    IndexedBatch,
)
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import DeletedKeysUpdate
from dbt.adapters.iceberg_stream.stream.key_index.highest_values import higher
from dbt.adapters.iceberg_stream.stream.key_index.index_runs import IndexRuns
from dbt.adapters.iceberg_stream.stream.key_index.late_changes import LateChanges, LiveRows
from dbt.adapters.iceberg_stream.stream.key_index.storage import (
    StoredIndex,
    read_index,
    write_index,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    SnapshotFile,
    UnsupportedFile,
    bitmap,
    deleted_rows,
    read_keys,
    require_no_defaults,
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

# An index is stored if so many rows, and so large a share of all, are not stored yet.
STORED_ROWS, STORED_SHARE = 1_000_000, 0.1
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


class KeyIndex:
    """Finds the rows of keys in a table that one stream changes, and others may change, too.

    Args:
        schema: of the key columns, as data files have them, with field ids.
        max_rows: rows of a table that are indexed, at most.
        prefix: how many first key columns `live_rows` has; 0 for all.

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
        self._numbers = itertools.count()
        self._runs = IndexRuns()
        self._files: dict[str, IndexedFile] = {}
        self._highest_in_files: pa.Scalar | None = None
        # Number and deleted rows of files in a stored index, until it is loaded.
        self._restored: dict[str, tuple[int, BitMap]] = {}
        self._stored_rows = 0
        self._pending: list[IndexedBatch] = []
        # Whether the next commit replaces the snapshot's rows, whatever they are.
        self._is_replaced = False
        # Deleted rows by the number of their file, for files of the snapshot and pending ones.
        self._deleted: dict[int, BitMap] = {}

    def load(self, table: LoadedTable, is_empty: bool = False) -> None:
        """Forget pending batches, and index what the table has.

        Args:
            table: the table.
            is_empty: whether the next commit replaces all rows.

        Raises:
            NotIndexable: the table's keys cannot be indexed.
            OSError: the storage refuses a file.
        """
        with self.lock:
            self._pending, self._is_replaced = [], is_empty
            self._runs.all_committed()
            self._follow(table)

    def restore(self, table: LoadedTable, sink_id: str) -> None:
        """Open the index that an earlier run has stored beside the table, if there is one.

        Args:
            table: the table.
            sink_id: of the stream.
        """
        with self.lock:
            stored = read_index(table, sink_id, self.schema, self._runs.folder, self.prefix)
            if stored is None:
                return
            self._runs.set(stored.run)
            # The snapshot's own descriptors and deletes replace these when the index is loaded.
            self._restored = dict(stored.files)
            numbers = [number for number, _ in stored.files.values()]
            self._numbers = itertools.count(max(numbers, default=-1) + 1)
            self._stored_rows = stored.run.count

    def store(self, table: LoadedTable) -> str | None:
        """Store the index beside the table, if building it again would take long.

        Args:
            table: the table, at the snapshot that is indexed.

        Returns:
            The location of the file; None if nothing was written.

        Raises:
            OSError: the storage refuses the file.
        """
        with self.lock:
            rows = self._runs.rows
            unstored = rows - self._stored_rows
            if not rows or self._pending or unstored < max(STORED_ROWS, rows * STORED_SHARE):
                return None
            run = self._runs.merge_all(self._live_entries())
            if run is None:
                return None
            files = {path: (item.number, item.deleted) for path, item in self._files.items()}
            location = write_index(table, self.schema, StoredIndex(run, files), self.prefix)
            self._stored_rows = run.count
            return location

    def follow(self, table: LoadedTable) -> None:
        """Index what other writers have committed; pending batches delete rows of their keys, too.

        Args:
            table: the table, with its current snapshot.

        Raises:
            NotIndexable: the table's keys cannot be indexed any more.
            OSError: the storage refuses a file.
        """
        with self.lock:
            self._follow(table)

    def follow_deletes(self, deleted: pa.Table) -> None:
        """Leave out pending changes that are older than deletes of other streams.

        Args:
            deleted: keys with the order of their deletes.

        Raises:
            UnsupportedFile: the order of rows cannot be read.
            OSError: the storage refuses a file.
        """
        with self.lock:
            if self._pending and self.late_changes is not None and deleted.num_rows:
                entries = self._lookups(deleted)
                index, own_rows = self._runs.find_pending(entries.lookup_keys())
                others = deleted.take(unpack(entries.rows[index])[1])
                for batch in self._pending:
                    self._earlier(self.late_changes, batch, others, own_rows)

    def clear(self) -> None:
        """Leave out all rows of the snapshot, because the next commit replaces them."""
        with self.lock:
            self._is_replaced = True
            if self.late_changes is not None:
                self.late_changes.clear()
            self._highest_in_files = None
            self._set_files({})

    def may_be_late(self, changes: Sequence[ChangedKeys], watermark: Any) -> bool:
        """Return whether some changes may be older than the rows they change.

        Args:
            changes: the changes.
            watermark: as for `add`.
        """
        finder = self.late_changes
        return finder is not None and any(
            len(finder.candidates(_conform(part.keys, finder.schema), watermark, self._highest()))
            for part in changes
        )

    def add(
        self, changes: Sequence[ChangedKeys], watermark: Any = None, joins: bool = False
    ) -> IndexedBatch:
        """Add the changes of a batch to the index, and find the rows that they replace.

        Args:
            changes: the changes, in their order.
            watermark: the highest value of the first `sequence_by` column in all batches before;
                None if no change can be late.
            joins: whether this batch and the one before it will be in the same commit.

        Raises:
            UnsupportedFile: late changes cannot be looked for: a file has values that the columns
                cannot have.
            OSError: the storage refuses a file.
        """
        with self.lock, ExitStack() as undo:
            before = self._pending[-1] if joins and self._pending else None
            number = next(self._numbers) if before is None else before.deleted_keys
            batch = IndexedBatch(deleted_keys=number, joins=before is not None)
            self._pending.append(batch)
            undo.callback(self._update_deleted)
            undo.callback(self._pending.pop)
            for part in changes:
                self._add(batch, self._without_late(part, watermark))
            undo.pop_all()
            self._runs.merge_similar(self._live_entries)
            return batch

    def deletes(self, batches: Sequence[IndexedBatch]) -> list[FileDeletes]:
        """Return the deletes of pending batches, with the rows that are deleted already.

        Args:
            batches: the first pending ones.
        """
        with self.lock:
            numbers = {number: path for b in batches for path, number in b.numbers.items()}
            new: dict[str, BitMap] = {}
            paths = {item.number: path for path, item in self._files.items()} | numbers
            for batch in batches:
                for number, positions in batch.deletes.items():
                    if number in paths and positions:
                        path = paths[number]
                        new[path] = new.get(path, BitMap()) | positions
            return [
                FileDeletes(path, positions | self._deleted_before(path), self._snapshot_file(path))
                for path, positions in sorted(new.items())
            ]

    def committed(
        self,
        batches: Sequence[IndexedBatch],
        snapshot_id: int | None,
        files: Mapping[str, SnapshotFile],
        deletes: Sequence[FileDeletes],
        deleted_keys: DeletedKeysUpdate | None = None,
    ) -> None:
        """Record that pending batches are in the table's snapshot.

        Args:
            batches: the first pending ones.
            snapshot_id: of the commit; None if the batches have changed nothing.
            files: data files that the commit has added, or whose delete files it has replaced.
            deletes: all deleted rows of the files that have any.
            deleted_keys: the files of deleted keys after the commit; None if they stay.
        """
        with self.lock:
            if self.late_changes is not None and deleted_keys is not None:
                self.late_changes.deleted_keys = deleted_keys.files
            deleted = {item.location: item.positions for item in deletes}
            numbers = {path: n for batch in batches for path, n in batch.numbers.items()}
            for path, snapshot_file in files.items():
                is_new = path in numbers
                number = numbers[path] if is_new else self._files[path].number
                is_own = is_new or self._files[path].is_own
                positions = deleted.get(path, BitMap())
                self._files[path] = IndexedFile(number, snapshot_file, positions, is_own)
            for path in deleted.keys() - files.keys():
                # All its rows are deleted, and the commit has removed it.
                self._files.pop(path, None)
            self._pending, self._is_replaced = self._pending[len(batches) :], False
            if not self._pending:
                self._runs.all_committed()
            if snapshot_id is not None:
                self.snapshot_id = snapshot_id
            self._update_deleted()

    def most_rows(self, changes: pa.Table) -> int:
        """Return a number that `live_rows` does not exceed, without comparing keys.

        Args:
            changes: as for `live_rows`.
        """
        with self.lock:
            keys = self._lookups(changes).lookup_keys()
            return self._runs.count_of(keys, by_prefix=self.prefix > 0)

    def live_rows(self, changes: pa.Table) -> Iterator[LiveRows]:
        """Yield the live rows with the keys of some changes, by data file; the lock must be held.

        Args:
            changes: with the key columns that rows are found by, and perhaps others.
        """
        entries = self._lookups(changes)
        index, rows = self._runs.find(entries.lookup_keys(), by_prefix=self.prefix > 0)
        _, at = unpack(entries.rows[index])
        numbers, positions = unpack(rows)
        paths = self._paths()
        for number, live in self._live(rows).items():
            of_file = numbers == number
            of_file[of_file] = [int(p) in live for p in positions[of_file]]
            yield LiveRows(
                paths[number], at[of_file].astype(np.int64), positions[of_file].astype(np.int64)
            )

    def _lookups(self, changes: pa.Table) -> Entries:
        """Return the keys of changes, each with the change's position in place of a row's."""
        schema = pa.schema(list(self.schema)[: self.prefix or None])
        keys = _conform(changes.select(schema.names), schema)
        places = np.arange(changes.num_rows, dtype=np.uint64)
        return Entries.at(encode_prefix(keys) if self.prefix else encode(keys), pack(0, places))

    def _deleted_before(self, path: str) -> BitMap:
        item = self._files.get(path)
        return BitMap() if item is None else item.deleted

    def _snapshot_file(self, path: str) -> SnapshotFile | None:
        item = self._files.get(path)
        return None if item is None else item.snapshot_file

    def _without_late(self, part: ChangedKeys, watermark: Any) -> ChangedKeys:
        """Return changes without those that are older than the row, or the delete, of their key."""
        if self.late_changes is None:
            return part
        part = replace(part, keys=_conform(part.keys, self.late_changes.schema))
        at = self.late_changes.candidates(part.keys, watermark, self._highest())
        if not len(at):
            return part
        changes = part.keys.take(at)
        pending = [deleted for batch in self._pending for deleted in batch.deleted]
        late = np.zeros(part.keys.num_rows, np.bool_)
        late[at] = self.late_changes.mask(changes, self.live_rows(changes), pending)
        return part.without(late)

    def _highest(self) -> pa.Scalar | None:
        """Return the highest value of the first `sequence_by` column that others have written."""
        others = None if self.late_changes is None else self.late_changes.highest_of_others
        values = [value for value in (self._highest_in_files, others) if value is not None]
        return reduce(higher, values) if values else None

    def _paths(self) -> dict[int, str]:
        """Return the locations of all data files, pending ones included, by their numbers."""
        paths = {item.number: path for path, item in self._files.items()}
        for batch in self._pending:
            paths |= {number: path for path, number in batch.numbers.items()}
        return paths

    def _add(self, batch: IndexedBatch, part: ChangedKeys) -> None:
        numbers = np.empty(len(part.locations) + 1, np.int64)
        numbers[-1] = batch.deleted_keys
        for place, (location, deleted) in enumerate(zip(part.locations, part.deleted, strict=True)):
            number = batch.numbers[location] = next(self._numbers)
            numbers[place] = number
            batch.deletes[number] = self._deleted[number] = bitmap(deleted.to_numpy())
        at = numbers[part.files.to_numpy()]
        positions = np.maximum(part.positions.to_numpy(), 0).astype(np.uint64)
        keys = _conform(part.keys.select(self.schema.names), self.schema)
        entries = Entries.at(encode(keys, self.prefix), pack(at, positions))
        is_known = np.zeros(len(entries.rows), np.bool_)
        for index, rows in self._runs.find_by_run(entries.lookup_keys()):
            is_known[index[unpack(rows)[0] == batch.deleted_keys]] = True
            self._delete(batch, self._live(rows))
        # A commit needs an entry of each deleted key once.
        is_deleted_key = unpack(entries.rows)[0] == batch.deleted_keys
        self._runs.add([entries.where(~(is_known & is_deleted_key))], is_pending=True)
        if self.late_changes is not None:
            batch.deleted.append(part.keys.filter(pc.less(part.positions, 0)))

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

    def _follow(self, table: LoadedTable) -> None:
        try:
            self._index_snapshot(table)
        except UnsupportedFile as error:
            raise NotIndexable(str(error)) from error

    def _index_snapshot(self, table: LoadedTable) -> None:
        late_changes = self.late_changes
        schema = self.schema if late_changes is None else late_changes.schema
        require_no_defaults(table.metadata, schema)
        files = {} if self._is_replaced else snapshot_files(table)
        if sum(item.file.record_count for item in files.values()) > self._max_rows:
            raise NotIndexable(f"the table has over {self._max_rows:,} rows (`max_indexed_rows`)")
        changed = [item for item in files.values() if not self._has(item)]
        deleted = deleted_rows(table, changed)
        kept: dict[str, IndexedFile] = {}
        new: list[IndexedFile] = []
        for path, item in files.items():
            indexed = self._files.get(path)
            before = (indexed.number, indexed.deleted) if indexed else self._restored.get(path)
            is_own = indexed is not None and indexed.is_own
            positions = deleted.get(path, indexed.deleted if indexed is not None else BitMap())
            if before is not None and before[1] <= positions:
                kept[path] = IndexedFile(before[0], item, positions, is_own)
            else:
                # Its entries may have been left out of a merge, if rows of it are live again.
                kept[path] = IndexedFile(next(self._numbers), item, positions, is_own)
                new.append(kept[path])
        if late_changes is not None:
            others = (item.snapshot_file.file for item in kept.values() if not item.is_own)
            self._highest_in_files = late_changes.highest_in(others)
        previous, self._restored = self._files, {}
        self._set_files(kept)
        with ExitStack() as undo:
            # Files whose keys are not read must not count as indexed in the next attempt.
            undo.callback(self._set_files, previous)
            self._index_files(table, new)
            undo.pop_all()
        self.snapshot_id = current_snapshot_id(table.metadata)
        self._runs.merge_similar(self._live_entries)

    def _has(self, item: SnapshotFile) -> bool:
        indexed = self._files.get(item.file.file_path)
        return indexed is not None and indexed.snapshot_file.delete_keys == item.delete_keys

    def _set_files(self, files: dict[str, IndexedFile]) -> None:
        self._files = files
        self._update_deleted()

    def _update_deleted(self) -> None:
        deleted = {item.number: item.deleted for item in self._files.values()}
        for batch in self._pending:
            for number in batch.numbers.values():
                deleted.setdefault(number, BitMap())
            for number, positions in batch.deletes.items():
                if number in deleted:
                    deleted[number] = deleted[number] | positions
        self._deleted = deleted

    def _index_files(self, table: LoadedTable, files: Sequence[IndexedFile]) -> None:
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
            self._delete_earlier(self.late_changes, foreign)

    def _read(
        self, target: WriteTarget, files: Sequence[IndexedFile]
    ) -> Iterator[tuple[IndexedFile, Entries]]:
        for item in files:
            location = item.snapshot_file.path
            for begin, rows in read_keys(target, self.schema, location):
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
            others = finder.read(item.snapshot_file.path, unpack(rows)[1].astype(np.int64))
            for batch, _ in self._owners():
                is_earlier = self._earlier(finder, batch, others, own_rows)
                earlier.append((batch, rows[is_earlier], own_rows[is_earlier]))
        for batch, rows, own_rows in earlier:
            numbers, positions = unpack(own_rows)
            places = zip(numbers.tolist(), positions.tolist(), strict=True)
            is_live = [p not in batch.deletes.get(n, ()) for n, p in places]
            self._delete(batch, self._live(rows[np.array(is_live, np.bool_)]))

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


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of a query with the types that data files have."""
    batches = [conform(batch, schema) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, schema)
