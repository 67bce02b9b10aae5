"""A key index: where the rows of a table's keys are.

Deletes by position need the data file and the position of each row that a batch changes. The index
has them for all rows of one snapshot, and for the rows of batches that are not committed yet, so
that a stream never scans its table. It is a cache: it can be built from the data files at any time.

Entries never change. Whether a row is live depends on the snapshot: on its data files, and on their
position deletes and deletion vectors. Another writer's commit therefore costs what it has changed.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
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
from dbt.adapters.iceberg_stream.tables.keys.codes import encode, encode_prefix
from dbt.adapters.iceberg_stream.tables.keys.live_entries import LiveEntries
from dbt.adapters.iceberg_stream.tables.keys.runs import (
    Entries,
    Indices,
    Rows,
    Run,
    RunWriter,
    by_file,
    merge_entries,
    merge_runs,
    pack,
    unpack,
)

# Runs of similar size that are merged into one, a power of two; runs of the next size are so many
# times as long.
MERGED_RUNS = 8
SMALLEST_RUN = 1024
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
    """

    number: int
    snapshot_file: SnapshotFile
    deleted: BitMap


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
        self._folder = tempfile.TemporaryDirectory(prefix="iceberg-stream-keys-")
        self._names = itertools.count()
        self._numbers = itertools.count()
        self._runs: list[Run] = []
        self._files: dict[str, IndexedFile] = {}
        # Number and deleted rows of files in a stored index, until it is loaded.
        self._restored: dict[str, tuple[int, BitMap]] = {}
        self._stored_rows = 0
        self._pending: list[IndexedBatch] = []
        # Whether the next commit replaces the snapshot's rows, whatever they are.
        self._is_replaced = False
        # Folders of runs that may have entries of pending batches.
        self._pending_runs: set[Path] = set()
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
            self._pending_runs.clear()
            self._follow(table)

    def restore(self, table: LoadedTable, sink_id: str) -> None:
        """Open the index that an earlier run has stored beside the table, if there is one.

        Args:
            table: the table.
            sink_id: of the stream.
        """
        with self.lock:
            stored = read_index(table, sink_id, self.schema, Path(self._folder.name), self.prefix)
            if stored is None:
                return
            self._runs = [stored.run]
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
            rows = sum(run.count for run in self._runs)
            unstored = rows - self._stored_rows
            if not rows or self._pending or unstored < max(STORED_ROWS, rows * STORED_SHARE):
                return None
            self._merge(list(self._runs))
            if not self._runs:
                return None
            files = {path: (item.number, item.deleted) for path, item in self._files.items()}
            (run,) = self._runs
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

    def clear(self) -> None:
        """Leave out all rows of the snapshot, because the next commit replaces them."""
        with self.lock:
            self._is_replaced = True
            if self.late_changes is not None:
                self.late_changes.clear()
            self._set_files({})

    def may_be_late(self, changes: Sequence[ChangedKeys], watermark: Any) -> bool:
        """Return whether some changes may be older than the rows they change.

        Args:
            changes: the changes.
            watermark: as for `add`.
        """
        finder = self.late_changes
        return finder is not None and any(
            len(finder.candidates(_conform(part.keys, finder.schema), watermark))
            for part in changes
        )

    def add(self, changes: Sequence[ChangedKeys], watermark: Any = None) -> IndexedBatch:
        """Add the changes of a batch to the index, and find the rows that they replace.

        Args:
            changes: the changes, in their order.
            watermark: the highest value of the first `sequence_by` column in all batches before;
                None if no change can be late.

        Raises:
            UnsupportedFile: late changes cannot be looked for: a file has values that the columns
                cannot have.
            OSError: the storage refuses a file.
        """
        with self.lock, ExitStack() as undo:
            batch = IndexedBatch(deleted_keys=next(self._numbers))
            self._pending.append(batch)
            undo.callback(self._update_deleted)
            undo.callback(self._pending.pop)
            for part in changes:
                self._add(batch, self._without_late(part, watermark))
            undo.pop_all()
            self._merge_runs()
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
                number = numbers[path] if path in numbers else self._files[path].number
                positions = deleted.get(path, BitMap())
                self._files[path] = IndexedFile(number, snapshot_file, positions)
            for path in deleted.keys() - files.keys():
                # All its rows are deleted, and the commit has removed it.
                self._files.pop(path, None)
            self._pending, self._is_replaced = self._pending[len(batches) :], False
            if not self._pending:
                self._pending_runs.clear()
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
            return sum(run.count_of(keys, by_prefix=self.prefix > 0) for run in self._runs)

    def live_rows(self, changes: pa.Table) -> Iterator[LiveRows]:
        """Yield the live rows with the keys of some changes, by data file; the lock must be held.

        Args:
            changes: with the key columns that rows are found by, and perhaps others.
        """
        entries = self._lookups(changes)
        index, rows = self._find(entries, by_prefix=self.prefix > 0)
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
        at = self.late_changes.candidates(part.keys, watermark)
        if not len(at):
            return part
        changes = part.keys.take(at)
        pending = [deleted for batch in self._pending for deleted in batch.deleted]
        late = np.zeros(part.keys.num_rows, np.bool_)
        late[at] = self.late_changes.mask(changes, self.live_rows(changes), pending)
        return part.without(late)

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
        self._delete(batch, self._live(self._find(entries)[1]))
        if (run := self._write_run([entries])) is not None:
            self._pending_runs.add(run.folder)
        if self.late_changes is not None:
            batch.deleted.append(part.keys.filter(pc.less(part.positions, 0)))

    def _delete(self, batch: IndexedBatch, rows: Mapping[int, BitMap]) -> None:
        for number, positions in rows.items():
            batch.deletes[number] = batch.deletes.get(number, BitMap()) | positions
            self._deleted[number] = self._deleted[number] | positions

    def _find(
        self, entries: Entries, runs: Sequence[Run] | None = None, by_prefix: bool = False
    ) -> tuple[Indices, Rows]:
        """Return positions of entries, and the rows of all or some runs with the same keys."""
        keys = entries.lookup_keys()
        pairs = [run.find(keys, by_prefix) for run in (self._runs if runs is None else runs)]
        indices = [np.empty(0, np.int64), *(index for index, _ in pairs)]
        rows = [np.empty(0, np.uint64), *(found for _, found in pairs)]
        return np.concatenate(indices), np.concatenate(rows)

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
            raise NotIndexable(f"it has over {self._max_rows:,} rows")
        changed = [item for item in files.values() if not self._has(item)]
        deleted = deleted_rows(table, changed)
        kept: dict[str, IndexedFile] = {}
        new: list[IndexedFile] = []
        for path, item in files.items():
            known = self._files.get(path)
            before = (known.number, known.deleted) if known else self._restored.get(path)
            positions = deleted.get(path, known.deleted if known is not None else BitMap())
            if before is not None and before[1] <= positions:
                kept[path] = IndexedFile(before[0], item, positions)
            else:
                # Its entries may have been left out of a merge, if rows of it are live again.
                kept[path] = IndexedFile(next(self._numbers), item, positions)
                new.append(kept[path])
        previous, self._restored = self._files, {}
        self._set_files(kept)
        with ExitStack() as undo:
            # Files whose keys are not read must not count as indexed in the next attempt.
            undo.callback(self._set_files, previous)
            self._index_files(table, new)
            undo.pop_all()
        self.snapshot_id = current_snapshot_id(table.metadata)
        self._merge_runs()

    def _has(self, item: SnapshotFile) -> bool:
        known = self._files.get(item.file.file_path)
        return known is not None and known.snapshot_file.delete_keys == item.delete_keys

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
        for entries in self._read(target, files):
            if self._pending:
                self._delete_changed(entries)
            pending.append(entries)
            if sum(len(part.rows) for part in pending) >= ROWS_PER_RUN:
                self._write_run(pending)
                pending = []
        self._write_run(pending)

    def _read(self, target: WriteTarget, files: Sequence[IndexedFile]) -> Iterator[Entries]:
        for item in files:
            location = item.snapshot_file.file.file_path
            for begin, rows in read_keys(target, self.schema, location):
                if rows.num_rows:
                    yield Entries.of(encode(rows, self.prefix), item.number, begin)

    def _delete_changed(self, entries: Entries) -> None:
        """Let pending batches delete the rows that another writer has added of their keys."""
        pending = [run for run in self._runs if run.folder in self._pending_runs]
        index, rows = self._find(entries, pending)
        numbers, _ = unpack(rows)
        for batch, own_numbers in self._owners():
            own = np.isin(numbers, own_numbers)
            self._delete(batch, self._live(entries.rows[index[own]]))

    def _owners(self) -> list[tuple[IndexedBatch, list[int]]]:
        return [(b, [*b.numbers.values(), b.deleted_keys]) for b in self._pending]

    def _write_run(self, parts: Sequence[Entries]) -> Run | None:
        parts = [part for part in parts if len(part.rows)]
        if not parts:
            return None
        writer = RunWriter(self._new_folder())
        with ExitStack() as undo:
            undo.callback(writer.abort)
            writer.append(merge_entries(parts))
            run = writer.close()
            undo.pop_all()
        self._runs.append(run)
        return run

    def _merge_runs(self) -> None:
        """Merge runs of similar size, so that their number grows with the logarithm of the rows."""
        while (runs := self._similar_runs()) is not None:
            self._merge(runs)

    def _merge(self, runs: Sequence[Run]) -> None:
        live = self._live_entries()
        merged = merge_runs(runs, self._new_folder(), lambda entries: live.has(entries.rows))
        self._runs = [run for run in self._runs if run not in runs]
        if merged.count:
            self._runs.append(merged)
        else:
            merged.remove()
        if any(run.folder in self._pending_runs for run in runs):
            self._pending_runs.add(merged.folder)
        for run in runs:
            run.remove()

    def _similar_runs(self) -> list[Run] | None:
        levels: dict[int, list[Run]] = {}
        for run in self._runs:
            level = (run.count // SMALLEST_RUN).bit_length() // (MERGED_RUNS.bit_length() - 1)
            levels.setdefault(level, []).append(run)
        return next((runs for runs in levels.values() if len(runs) >= MERGED_RUNS), None)

    def _live_entries(self) -> LiveEntries:
        """Return which entries the index still needs."""
        deleted = {item.number: item.deleted for item in self._files.values()}
        pending = (number for _, own in self._owners() for number in own)
        return LiveEntries({*deleted, *pending}, deleted)

    def _new_folder(self) -> Path:
        return Path(self._folder.name) / f"run-{next(self._names)}"


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of a query with the types that data files have."""
    batches = [conform(batch, schema) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, schema)
