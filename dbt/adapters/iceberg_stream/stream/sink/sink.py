"""Commit the written batches of a stream: many data sequence numbers in one snapshot.

Article on many data sequence numbers, "Improving write performance"; article on the streaming sink,
"Recovery Without External State".
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table.update import TableUpdate
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata, same_rows
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, with_schema
from dbt.adapters.iceberg_stream.stream.errors import RowsMoved, StreamConflict, StreamError
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import DeletedKeysUpdate
from dbt.adapters.iceberg_stream.stream.key_index.index import KeyIndex
from dbt.adapters.iceberg_stream.stream.key_index.snapshot_index import NotIndexable
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import DeltaPlan
from dbt.adapters.iceberg_stream.stream.row_deltas.written import NOTHING_READ, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.claimed_table import ClaimedTable
from dbt.adapters.iceberg_stream.stream.sink.descriptors import (
    Descriptors,
    partitioned_by,
)
from dbt.adapters.iceberg_stream.stream.sink.maintenance import MaintenanceCommit, SinkMaintenance
from dbt.adapters.iceberg_stream.stream.sink.newest_rows import NewestRows
from dbt.adapters.iceberg_stream.stream.sink.partition_specs import (
    require_spec,
    require_specs_of_rows,
)
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress, require_current_run
from dbt.adapters.iceberg_stream.stream.sink.sink_commit import (
    SinkCommit,
    operation_of,
)
from dbt.adapters.iceberg_stream.stream.sink.table_index import (
    ChangeOrder,
    RowLookup,
    deleted_keys,
    file_schema,
    follow_index,
    late_changes,
    open_index,
    order_column,
    rows_of,
    store_index,
    update_deleted_keys,
)
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    current_snapshot_id,
    parent_snapshot,
)
from dbt.adapters.iceberg_stream.tables.commit.schema_updates import (
    schemas_changed,
)
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import UnsupportedFile
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

# Commits in which other writers may be faster, until the stream starts again.
REBASES = 20


@dataclass
class Sink(ClaimedTable):
    """Commits a stream's batches to its table.

    Attributes:
        index: locates the rows to delete; None if equality deletes or a query do.
        newest_rows: tells which changes may be older than rows; None with an index, or if changes
            come in their order.
    """

    index: KeyIndex | None = None
    newest_rows: NewestRows | None = None

    def plan(self, write_id: str, **settings: Any) -> DeltaPlan:
        """Plan the files of a batch, by the table's current metadata.

        Args:
            write_id: of the batch, in the names of its files.
            settings: further fields of the plan.
        """
        base = self._load(history=False)
        target = WriteTarget.of(with_schema(base.metadata, self.updates), base.io)
        location = target.locations.new_data_location("x").rsplit("/", 1)[0]
        return DeltaPlan(
            filesystem=target.filesystem(),
            location=location,
            path=target.path_of(location),
            schema=target.file_schema,
            keys=self.keys,
            options=target.options,
            write_id=write_id,
            deletes_by_partition=partitioned_by(base.io, base.metadata, target, self.keys),
            **settings,
        )

    def commit(self, write_id: str, batches: Sequence[WrittenBatch]) -> Committed | None:
        """Commit batches in one snapshot.

        Args:
            write_id: of the commit.
            batches: the batches, in their order.

        Returns:
            The commit; None if the batches change nothing.

        Raises:
            Fenced: another run has taken over; the batches' files are removed.
            StreamConflict: another writer committed first; the batches' files are removed.
            CatalogError: the catalog refuses the commit; the batches' files are removed.
            CommitStateUnknown: it is not known whether the commit was made; the files stay.
        """
        with self.lock:
            try:
                return self._commit(write_id, batches)
            except RowsMoved as error:
                self.discard(batches)
                raise StreamConflict(str(error)) from error

    @retry(
        retry=retry_if_exception_type(RowsMoved),
        stop=stop_after_attempt(REBASES),
        wait=wait_random_exponential(multiplier=0.05, max=2.0),
        reraise=True,
    )
    def _commit(self, write_id: str, batches: Sequence[WrittenBatch]) -> Committed | None:
        with ExitStack() as undo:
            undo.callback(self.discard, batches)
            try:
                commit = self.prepare(write_id, batches)
            except RowsMoved:
                # The batches' files stay, for the next attempt.
                undo.pop_all()
                raise
            undo.pop_all()
        return None if commit is None else self.apply_commit(commit, commit.commit(self.remove))

    def prepare(self, write_id: str, batches: Sequence[WrittenBatch]) -> SinkCommit | None:
        """Prepare the commit of batches; the caller must hold `lock`.

        Args:
            write_id: of the commit.
            batches: the batches, in their order.

        Returns:
            The commit; None if the batches change nothing.
        """
        last = batches[-1]
        frontier, watermark = last.batch_range.upper, last.watermark
        takeover = self._takeover
        done = {"frontier": frontier, "watermark": watermark, "must_refresh": False}
        done["may_be_staged"] = takeover is not None
        ahead = replace(self.progress, write_id=write_id, **done)
        base = self._load(history=False)
        head = parent_snapshot(base.metadata, MAIN) or {}
        if (head.get("summary") or {}).get(WRITE_ID) != self.progress.write_id:
            # Others have committed: only the whole history shows whether the table was rolled back.
            base = self._load()
        require_spec(base.metadata, self.spec_id, ".".join(self.name))
        target = WriteTarget.of(with_schema(base.metadata, self.updates), base.io)
        descriptors = Descriptors(target, base.metadata, write_id, self.keys)
        indexed = None
        added: Sequence[AddedFiles]
        removed: Sequence[DataFile] = ()
        sink_id = self.progress.sink_id
        with ExitStack() as undo:
            undo.callback(self.remove, descriptors.delete_locations)
            if takeover is not None:
                added = takeover.added
            elif self.index is None:
                added, removed = descriptors.describe_all(batches, base)
            else:
                self._follow(self.index, base)
                indexed = descriptors.describe_indexed(batches, self.index)
                added, removed = indexed.added, indexed.removed
            kept = takeover.deleted_keys if takeover is not None else ()
            deleted_keys = update_deleted_keys(
                base,
                sink_id,
                self.index,
                batches,
                self.replaces,
                self._replaced is not None,
                kept,
            )
            undo.pop_all()
        if not (added or removed or self.replaces or deleted_keys is not None):
            if self.index is not None and indexed is not None:
                indexed.record(self.index, None)
                self.remove(indexed.unused)
            return None
        covered, summaries = self._summaries.next_summary(frontier, write_id)
        change = Change(
            operation_of(added, removed, self.replaces),
            added,
            removed=tuple(removed),
            removes_all=self.replaces,
            properties={**self.properties, **ahead.summary(covered)},
            next_row_id=0 if takeover is None else takeover.next_row_id,
        )
        committer = self._committer(base, change, ahead, batches, deleted_keys)
        deletes = descriptors.delete_locations
        return SinkCommit(committer, ahead, summaries, deletes, indexed, deleted_keys)

    def _follow(self, index: KeyIndex, base: LoadedTable) -> None:
        if index.snapshot_id != current_snapshot_id(base.metadata) and not self.replaces:
            schema = file_schema(base, self.updates, self.keys)
            follow_index(index, base, schema, self.progress.sink_id)

    def _reach(self, index: KeyIndex, base: LoadedTable, keys: Sequence[pa.Table]) -> None:
        """Index what others have committed, and the partitions of some keys."""
        try:
            self._follow(index, base)
            index.reach(base, keys)
        except (RowsMoved, FileNotFoundError) as error:
            raise StreamConflict(str(error)) from error
        except NotIndexable as error:
            raise StreamConflict(f"{'.'.join(self.name)} cannot be indexed: {error}.") from error

    def apply_commit(self, commit: SinkCommit, committed: Committed) -> Committed:
        """Advance the progress after a prepared commit was made.

        Args:
            commit: the prepared commit.
            committed: its result.

        Returns:
            The result.
        """
        self.progress = commit.ahead
        self.replaces, self.updates, self._replaced = False, (), None
        self._summaries, takeover, self._takeover = commit.summaries, self._takeover, None
        if self.newest_rows is not None:
            self.newest_rows.committed(commit.committer.snapshot_id)
        if self.index is not None and takeover is not None:
            self.index.committed((), commit.committer.snapshot_id, {}, (), commit.deleted_keys)
        if self.index is not None and commit.indexed is not None:
            # After an unknown commit state the newest snapshot may be another writer's.
            commit.indexed.record(self.index, commit.committer.snapshot_id, commit.deleted_keys)
            self.remove(commit.indexed.unused)
        if commit.deleted_keys is not None:
            self.remove(commit.deleted_keys.removed)
        return committed

    def _committer(
        self,
        base: LoadedTable,
        change: Change,
        ahead: Progress,
        batches: Sequence[WrittenBatch],
        deleted_keys: DeletedKeysUpdate | None,
    ) -> Committer:
        batch, name = batches[-1], ".".join(self.name)

        def check(metadata: Metadata) -> None:
            require_current_run(metadata, self.progress)
            require_spec(metadata, self.spec_id, name)
            require_specs_of_rows(base, change, metadata, self.spec_id)
            if batch.read_from != NOTHING_READ and batch.read_from not in same_rows(metadata):
                raise StreamConflict(
                    f"Another writer committed to {name} after the rows were read "
                    "that the changes depend on."
                )
            if self.newest_rows is not None and not self.replaces:
                self.newest_rows.require_older(replace(base, metadata=metadata), batches)
            deletes = batch.target_deletes
            if deletes is not None and deletes.snapshot_id != current_snapshot_id(metadata):
                raise StreamConflict(
                    f"Another writer committed to {name} after the rows to delete were located."
                )
            if metadata["format-version"] != base.metadata["format-version"]:
                # The rows are deleted in another way then.
                raise RowsMoved(name)
            index = None if self.replaces else self.index
            if index is not None and index.snapshot_id != current_snapshot_id(metadata):
                raise RowsMoved(name)
            if self.updates and schemas_changed(self._replaced or base.metadata, metadata):
                raise StreamError(
                    f"The schema of {name} was changed while it was replaced. "
                    "Nothing was written. Run the model again."
                )

        def progress_update(snapshot: Mapping[str, Any]) -> tuple[TableUpdate, ...]:
            number, snapshot_id = snapshot["sequence-number"], snapshot["snapshot-id"]
            progress = replace(ahead, sequence_number=number, snapshot_id=snapshot_id)
            if deleted_keys is None:
                return (progress.as_property(),)
            return (progress.as_property(), *deleted_keys.as_updates(ahead.sink_id))

        return Committer(
            self.catalog, self.name, change, base, self.updates, check, progress_update
        )

    def load_index(
        self, max_rows: int, refresh: bool, order: ChangeOrder | None = None, prefix: int = 0
    ) -> None:
        """Index the table's keys, so that commits delete rows by position.

        Args:
            max_rows: rows of the table that are indexed, at most.
            refresh: whether the run replaces all rows.
            order: of changes that may be older than the rows they change, which are left out then;
                None if all changes come in their order.
            prefix: how many of the keys, from the first, `rows_of` finds rows by; 0 for all.

        Raises:
            NotIndexable: the table's keys cannot be indexed; the sink has no index then.
            OSError: the storage refuses a file.
        """
        base = self._load()
        index, self.index = self.index, None
        updates, keys, sink_id = self.updates, self.keys, self.progress.sink_id
        index = open_index(base, updates, keys, index, max_rows, sink_id, refresh, prefix)
        index.late_changes = None
        if order is not None:
            load = partial(self._load, history=False)
            finder = late_changes(base, updates, keys, order, load, sink_id, refresh)
            index.late_changes = finder
        index.load(replace(base, metadata=with_schema(base.metadata, updates)), refresh)
        self.index = index

    def compare_rows(self, sequence_by: Sequence[str]) -> None:
        """Look at the order of the table's rows, which changes may be older than.

        Args:
            sequence_by: columns that order the changes.

        Raises:
            OSError: the storage refuses a file.
        """
        base = self._load(history=False)
        column = order_column(base, self.updates, sequence_by)
        self.newest_rows = NewestRows(column, self.progress.sink_id, len(sequence_by) == 1)
        if not self.replaces:
            self.newest_rows.follow(base)

    def order_by(self, sequence_by: Sequence[str]) -> None:
        """Record the column that the watermark is of, beside it.

        Args:
            sequence_by: columns that order the changes.

        Raises:
            StreamError: values of the first one cannot be compared.
        """
        column = order_column(self._load(history=False), self.updates, sequence_by)
        self.progress = replace(self.progress, ordered_by=field_id(column))

    def store_index(self) -> None:
        """Store the key index beside the table, for the next run; not if others commit meanwhile.

        Raises:
            CatalogError: the catalog refuses the commit.
            OSError: the storage refuses the file.
        """
        if self.index is not None:
            with self.lock:
                sink_id = self.progress.sink_id
                store_index(self.catalog, self._load(), self.index, sink_id, self.remove)

    @property
    def maintenance(self) -> SinkMaintenance:
        """Commits that change no row of the table, between those of changes."""
        return SinkMaintenance(self.catalog, self.name, self._paused)

    @contextmanager
    def _paused(self) -> Iterator[MaintenanceCommit | None]:
        """Let other commits of this sink wait."""
        with self.lock:
            # Without the progress: these snapshots are no commits of the stream's changes.
            properties = {**self.properties, WRITE_ID: uuid.uuid4().hex}
            commit = MaintenanceCommit(properties, self._check_run, self._follow_now)
            yield None if self.replaces else commit

    def _follow_now(self) -> None:
        if self.index is not None:
            # If that fails, the next commit tries again.
            with suppress(RowsMoved, StreamConflict, OSError):
                self._follow(self.index, self._load())

    def _check_run(self, metadata: Metadata) -> None:
        require_current_run(metadata, self.progress)

    def add_to_index(
        self, batch: WrittenBatch, watermark: Any = None, joins: bool = False
    ) -> WrittenBatch:
        """Add a batch to the key index, which locates the rows that it deletes.

        Args:
            batch: the next batch to commit.
            watermark: the highest value of the first `sequence_by` column before this batch; None
                if none of its changes can be late.
            joins: whether this batch and the one before it will be in the same commit.

        Raises:
            StreamError: rows cannot be read that may be newer than changes.
            OSError: the storage refuses a file.
        """
        if self.index is None:
            return batch
        changes = batch.changed_keys()
        if self.index.may_be_late(changes, watermark):
            # Their rows may be another writer's. If that fails, the next commit tries again.
            with self.lock, suppress(RowsMoved, StreamConflict):
                self._follow(self.index, self._load(history=False))
        if self.index.lacks(changes):
            with self.lock:
                self._reach(self.index, self._load(history=False), [c.keys for c in changes])
        try:
            return batch.with_index(self.index.add(changes, watermark, joins))
        except UnsupportedFile as error:
            raise StreamError(
                f"{'.'.join(self.name)}: changes cannot be compared with the rows that they change "
                f"({error}). Set `delete_encoding: equality`, with which Spark compares them."
            ) from error

    def rows_of(self, lookup: RowLookup) -> pa.Table | None:
        """Return the live rows that have some keys; None if they cannot be read here.

        Args:
            lookup: the keys.

        Raises:
            StreamConflict: another writer is changing the table.
            OSError: the storage refuses a file.
        """
        index = self.index
        assert index is not None, "rows are located by a key index"
        with self.lock:
            base = self._load(history=False)
            self._reach(index, base, [lookup.keys])
            try:
                schema = file_schema(base, self.updates, lookup.columns)
                return rows_of(index, base, lookup, schema)
            except UnsupportedFile:
                return None

    def replace_rows(self) -> None:
        """Let the next commit replace all rows of the table; batches before it are committed."""
        self.replaces = True
        if self.index is not None:
            self.index.clear()

    def deleted_keys(self, schema: pa.Schema, is_versioned: bool = False) -> list[str]:
        """Return the locations of files with the keys that were deleted, and with their order.

        Args:
            schema: of the stream's keys and the columns of their order.
            is_versioned: whether the table has all versions of its rows.
        """
        if self.replaces:
            return []
        return deleted_keys(self._load(), self.progress.sink_id, is_versioned, schema)
