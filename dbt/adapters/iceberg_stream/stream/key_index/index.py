"""A key index: where the rows of a table's keys are.

Deletes by position need the data file and the position of each row that a batch changes. The index
has them for all rows of one snapshot, and for the rows of batches that are not committed yet, so
that a stream never scans its table. It is a cache: it can be built from the data files at any time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
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
from dbt.adapters.iceberg_stream.stream.key_index.late_changes import LiveRows
from dbt.adapters.iceberg_stream.stream.key_index.snapshot_index import (
    IndexedFile,
    SnapshotIndex,
    conform_rows,
)
from dbt.adapters.iceberg_stream.stream.key_index.storage import (
    StoredIndex,
    read_index,
    write_index,
)
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    SnapshotFile,
    bitmap,
)
from dbt.adapters.iceberg_stream.tables.keys.codes import encode
from dbt.adapters.iceberg_stream.tables.keys.runs import (
    Entries,
    pack,
    unpack,
)

# An index is stored if so many rows, and so large a share of all, are not stored yet.
STORED_ROWS, STORED_SHARE = 1_000_000, 0.1


class KeyIndex(SnapshotIndex):
    """Finds the rows of keys in a table that one stream changes, and others may change, too.

    Args:
        schema: of the key columns, as data files have them, with field ids.
        max_rows: rows of a table that are indexed, at most.
        prefix: how many first key columns `live_rows` has; 0 for all.

    Attributes:
        late_changes: finds changes that are older than their rows; None where none are.
    """

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
            if self._reaches_too_many:
                self._partitions = None
            self._follow(table, needed=set())

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

    def lacks(self, changes: Sequence[ChangedKeys]) -> bool:
        """Return whether changes are in partitions that must be indexed first, by `reach`.

        Args:
            changes: the changes.
        """
        with self.lock:
            return not self._partitions_of([part.keys for part in changes]) <= self._reached

    def reach(self, table: LoadedTable, keys: Sequence[pa.Table]) -> None:
        """Index the partitions of some keys, in place of others if they are too large together.

        Args:
            table: the table, at the snapshot that is indexed.
            keys: rows with the key columns.

        Raises:
            NotIndexable: these partitions, and those of pending batches, have too many rows.
            OSError: the storage refuses a file.
        """
        with self.lock, ExitStack() as undo:
            needed = self._partitions_of(keys)
            new = needed - self._reached
            if new:
                self._reached |= new
                undo.callback(lambda: self._reached.difference_update(new))
                self._follow(table, needed)
            undo.pop_all()

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
                    batch.deleted = [
                        self.late_changes.without_earlier(keys, deleted) for keys in batch.deleted
                    ]

    def clear(self) -> None:
        """Leave out all rows of the snapshot, because the next commit replaces them."""
        with self.lock:
            self._is_replaced = True
            if self.late_changes is not None:
                self.late_changes.clear()
            self._highest_in_files = None
            self._set_files({}, {})

    def may_be_late(self, changes: Sequence[ChangedKeys], watermark: Any) -> bool:
        """Return whether some changes may be older than the rows they change.

        Args:
            changes: the changes.
            watermark: as for `add`.
        """
        finder = self.late_changes
        return finder is not None and any(
            len(
                finder.candidates(
                    conform_rows(part.keys, finder.schema), watermark, self._highest()
                )
            )
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
            partitions = self._partitions_of([part.keys for part in changes])
            assert partitions <= self._reached, "`reach` has not been called"
            batch = IndexedBatch(
                deleted_keys=number, joins=before is not None, partitions=partitions
            )
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
            committed = self._snapshot_file(paths[number])
            yield LiveRows(
                paths[number],
                at[of_file].astype(np.int64),
                positions[of_file].astype(np.int64),
                None if committed is None else committed.file,
            )

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
        part = replace(part, keys=conform_rows(part.keys, self.late_changes.schema))
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
        keys = conform_rows(part.keys.select(self.schema.names), self.schema)
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
