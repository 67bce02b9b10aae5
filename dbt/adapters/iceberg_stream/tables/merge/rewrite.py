"""Run a MERGE by changing the data files with changed rows.

Article on the write contract, "Row-Level Writes: Copy-on-Write". The merge first reads only the
key columns of each file that may have a key of the source. It rewrites a file only if a matched
row changes, and keeps the order of its rows; with merge-on-read it deletes these rows by position
and writes them anew. It appends rows without a match. All changes are one commit; after a conflict,
the merge processes only files that other writers changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, Validation
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.commit.errors import ValidationFailed
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.manifests import FILE_FIRST_ROW_ID
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot, remove_quietly
from dbt.adapters.iceberg_stream.tables.commit.read_check import ReadCheck
from dbt.adapters.iceberg_stream.tables.deletes.equality import (
    EqualityDeletes,
    is_equality_delete,
)
from dbt.adapters.iceberg_stream.tables.deletes.position_files import write_deletes_by_position
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    SnapshotFile,
    UnsupportedFile,
    bitmap,
    deleted_rows,
    old_file,
    snapshot_files,
)
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.data_files import describe_in_place, with_lineage
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting, OldFile
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.candidates import (
    PartitionsOfRows,
    manifests_that_may_satisfy,
    may_hold,
    may_satisfy,
)
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileChange, FileRewrite
from dbt.adapters.iceberg_stream.tables.merge.layout import (
    merges_in_place,
    partition_columns,
    sorted_by,
)
from dbt.adapters.iceberg_stream.tables.merge.located import Locate, Located
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan
from dbt.adapters.iceberg_stream.tables.merge.rows import Source, distinct
from dbt.adapters.iceberg_stream.tables.merge.threads import Runner, in_threads

MERGE_PREFIX = "spark.merge-into.num-target-rows-"
MERGE_ATTEMPTS = 5


@dataclass(frozen=True)
class Merged:
    """The result of a merge.

    Attributes:
        committed: the snapshot; None if nothing changed.
        updated: number of updated rows.
        inserted: number of inserted rows.
        deleted: number of deleted rows.
        probed: number of files whose keys were read.
        rewritten: number of files whose rows changed.
    """

    committed: Committed | None
    updated: int
    inserted: int
    deleted: int
    probed: int
    rewritten: int


# The delete files of a data file, its first row id, and its data sequence number: a file that is
# added again has another one, and older deletes do not apply to it.
_ReadState = tuple[frozenset[tuple[str, int | None]], int | None, int | None]


@dataclass
class RewriteMerge:
    """One merge by rewriting files.

    Attributes:
        catalog: the catalog, as the user who writes.
        name: namespace and identifier of the table.
        source: the source's rows.
        plan: what the merge does.
        refuses: returns why the merge cannot be done with table metadata; None if it can.
        write_id: id of the write.
        properties: snapshot properties.
        runner: processes files.
        branch: the branch that is merged into.
        mode: `merge_mode` of the model; None for the table's.
        locate: locates rows where SQL conditions decide; None to match the keys.
        inserts: which of the source's rows may be inserted; None for all.
        may_update: which of the source's rows may update their match; None for all.
        read_check: whether the source's rows may be merged after commits of other writers; None
            if they are computed from no table.
        rewrites: number of files that were rewritten, or got deletes, in all attempts.
    """

    catalog: IcebergCatalog
    name: Name
    source: Source
    plan: MergePlan
    refuses: Callable[[Metadata], str | None]
    write_id: str
    properties: dict[str, str]
    runner: Runner = in_threads
    branch: str = MAIN
    mode: str | None = None
    locate: Locate | None = None
    inserts: pa.BooleanArray | None = None
    may_update: pa.BooleanArray | None = None
    read_check: ReadCheck | None = None
    rewrites: int = 0
    _attempt: int = 0
    # The changes of files, and in which state each was read, by location.
    _results: dict[str, FileChange] = field(default_factory=dict)
    _read_with: dict[str, _ReadState] = field(default_factory=dict)
    # Rows that equality deletes delete, by the location of their file, and what deletes them.
    _deleted_by_key: dict[str, BitMap] = field(default_factory=dict)
    _equality_deletes: frozenset[str] = frozenset()
    # What all results have in common.
    _basis: object = None
    # New files of an attempt, beside those that replace others.
    _new: list[DataFile] = field(default_factory=list)

    def run(self, base: LoadedTable) -> Merged:
        """Merge, with retries for files that other writers change.

        Args:
            base: the table.

        Raises:
            NotByRewriting: the merge cannot be done by rewriting files; nothing was written.
            ValidationFailed: the commit conflicted in every attempt; nothing was written.
            TableChanged: the rows may not be merged after another writer's commit; nothing was
                written.
            CatalogError: the catalog refuses; nothing was written.
        """
        while True:
            self._attempt += 1
            with self._remove_on_error(base):
                merged, change = self._rewrite(base)
            check = self.read_check.check_attempt if self.read_check else None
            if change is None:
                # The rows may only be there because another writer has made the same change.
                if check:
                    check(base.metadata)
                return merged
            # From here on the committer owns the files, except after ValidationFailed.
            try:
                committed = Committer(self.catalog, self.name, change, base, check=check).commit()
                return replace(merged, committed=committed)
            except ValidationFailed:
                with self._remove_on_error(base):
                    current = self.catalog.load(self.name)
                    if current is None or self._attempt == MERGE_ATTEMPTS:
                        raise
                    if self.read_check is not None:
                        self.read_check.check_repetition()
                    _require_same_columns(base.metadata, current.metadata)
                self._remove_new(base)
                base = current

    def _rewrite(self, base: LoadedTable) -> tuple[Merged, Change | None]:
        """Process the files; return the result, and the change to commit if there is one."""
        metadata = base.metadata
        if reason := self.refuses(metadata):
            raise NotByRewriting(reason)
        target = WriteTarget.of(metadata, base.io)
        may_change = self._file_test(target)
        located = self.locate(base, self.source) if self.locate is not None else None
        files = self._candidates(base, may_change, located)
        rewrite = self._file_rewrite(metadata, target)
        basis = (metadata["format-version"], rewrite.in_place, rewrite.moved_by)
        # Conditions may have other answers for the same files, after commits to what they read.
        if basis != self._basis or located is not None:
            self._drop_stale_results(base, {})
        self._basis = basis
        self._drop_stale_results(base, files)
        unread = [item for path, item in files.items() if path not in self._results]
        for result in self.runner(rewrite, self._old_files(base, target, unread, located)):
            self._results[result.location] = result
            self._read_with[result.location] = _read_state(files[result.location])
            self.rewrites += bool(result.new_files or len(result.dead))
        changed = [item for path, item in files.items() if self._results[path].changes_rows]
        inserted = self._insert(target, metadata, files, located)
        merged = self._summarize(files, changed, inserted)
        if not changed and not self._new:
            return merged, None
        return merged, self._change(base, target, changed, merged, may_change)

    def _candidates(
        self,
        base: LoadedTable,
        may_change: Callable[[DataFile], bool],
        located: Located | None,
    ) -> dict[str, SnapshotFile]:
        """Return the data files that may change, by their locations."""
        io, metadata = base.io, base.metadata
        manifest_may_change, partition_may_change = self._partition_tests(metadata)

        def is_candidate(item: ManifestEntry) -> bool:
            if located is not None:
                return item.data_file.file_path in located.files
            return partition_may_change(item.data_file) and may_change(item.data_file)

        deletes = live_entries(
            io, metadata, ManifestContent.DELETES, self.branch, manifests=manifest_may_change
        )
        data = live_entries(
            io, metadata, ManifestContent.DATA, self.branch, is_candidate, manifest_may_change
        )
        data.sort(key=lambda item: item.data_file.file_path)
        try:
            self._read_equality_deletes(base, data, deletes)
            return snapshot_files(base, data, deletes)
        except UnsupportedFile as error:
            raise NotByRewriting(str(error)) from error

    def _read_equality_deletes(
        self, base: LoadedTable, data: Sequence[ManifestEntry], deletes: Sequence[ManifestEntry]
    ) -> None:
        by_key = [item for item in deletes if is_equality_delete(item.data_file)]
        paths = frozenset(item.data_file.file_path for item in by_key)
        if paths != self._equality_deletes:
            self._drop_stale_results(base, {})
        self._equality_deletes = paths
        self._deleted_by_key = {}
        if by_key:
            with EqualityDeletes(base, by_key) as of_table:
                reached = [item for item in data if of_table.apply_to(item)]
                rows = of_table.deleted_in(reached)
                self._deleted_by_key = {file.file_path: positions for file, positions in rows}

    def _old_files(
        self,
        base: LoadedTable,
        target: WriteTarget,
        files: Sequence[SnapshotFile],
        located: Located | None,
    ) -> list[OldFile]:
        dead, by_key = deleted_rows(base, files), self._deleted_by_key
        old = [
            old_file(target, item, dead[item.path] | by_key.get(item.path, BitMap()))
            for item in files
        ]
        if located is None:
            return old
        found = {path: vars(rows) for path, rows in located.files.items()}
        return [replace(file, is_located=True, **found.get(file.location, {})) for file in old]

    def _summarize(
        self, files: dict[str, SnapshotFile], changed: list[SnapshotFile], inserted: int
    ) -> Merged:
        results = [self._results[item.path] for item in changed]
        return Merged(
            committed=None,
            updated=sum(result.changed for result in results),
            inserted=inserted,
            deleted=sum(result.deleted for result in results),
            probed=len(files),
            rewritten=len(changed),
        )

    def _schema(self, metadata: Metadata, target: WriteTarget) -> Schema:
        """Return the schema of rewritten files, and of those with rows that move."""
        return with_lineage(target.schema) if metadata["format-version"] >= 3 else target.schema

    def _file_rewrite(self, metadata: Metadata, target: WriteTarget) -> FileRewrite:
        return FileRewrite(
            target.filesystem(),
            file_schema(self._schema(metadata, target)),
            target.options,
            f"merge-{self.write_id}-{self._attempt}-",
            self._needed_by_files,
            self.plan.updates,
            self.plan.deletes,
            sorted(partition_columns(metadata) & set(self.plan.updates)),
            merges_in_place(self.mode, metadata),
            self.plan.condition,
            self.plan.updates_if,
        )

    @cached_property
    def _needed_by_files(self) -> Source:
        """The source's keys and the columns that are updated; each key once."""
        names = list(dict.fromkeys([*self.plan.keys, *self.plan.updates]))
        rows = self.source.rows.select(names)
        if self.plan.replaces:
            rows = distinct(rows)
        elif len(names) == self.source.rows.num_columns and self.may_update is None:
            return self.source
        return Source(rows, self.plan.keys, self.may_update)

    @contextmanager
    def _remove_on_error(self, base: LoadedTable) -> Iterator[None]:
        with ExitStack() as undo:
            undo.callback(self._drop_stale_results, base, {})
            undo.callback(self._remove_new, base)
            yield
            undo.pop_all()

    def _file_test(self, target: WriteTarget) -> Callable[[DataFile], bool]:
        """Return a test of data files: whether the merge may change their rows."""
        if self.plan.deletes is Deletes.UNMATCHED:
            return lambda file: True
        tests = []
        if self.plan.condition is not None:
            tests.append(may_satisfy(self.plan.condition, target.schema))
        if self.plan.deletes is not Deletes.SATISFYING:
            tests.append(may_hold(self.source.rows, self.plan.keys, target.schema))
        return lambda file: all(test(file) for test in tests)

    def _partition_tests(
        self, metadata: Metadata
    ) -> tuple[Callable[[ManifestFile], bool], Callable[[DataFile], bool]]:
        """Return tests of manifests and of files: whether their partitions may change."""
        of_manifests, of_files = [], []
        if self.plan.condition is not None:
            of_manifests.append(manifests_that_may_satisfy(self.plan.condition, metadata))
        if self.plan.deletes not in (Deletes.UNMATCHED, Deletes.SATISFYING):
            partitions = PartitionsOfRows(self.source.rows, self.plan.keys, metadata)
            of_manifests.append(partitions.may_be_in)
            of_files.append(partitions.may_be_of)
        return (
            lambda manifest: all(test(manifest) for test in of_manifests),
            lambda file: all(test(file) for test in of_files),
        )

    def _change(
        self,
        base: LoadedTable,
        target: WriteTarget,
        changed: Sequence[SnapshotFile],
        merged: Merged,
        may_change: Callable[[DataFile], bool],
    ) -> Change:
        snapshot = parent_snapshot(base.metadata, self.branch)
        staying = [(item, dead) for item in changed if (dead := self._dead_rows(item))]
        kept = {item.path for item, _ in staying}
        gone = [item for item in changed if item.path not in kept]
        data = [new for item in gone for new in self._describe(base.metadata, target, item.file)]
        data += self._new
        deletes = write_deletes_by_position(
            target,
            base.metadata["format-version"] >= 3,
            f"merge-{self.write_id}-{self._attempt}-deletes",
            [(item.file, dead) for item, dead in staying],
        )
        self._new += deletes.values()
        return Change(
            Operation.OVERWRITE if changed else Operation.APPEND,
            (AddedFiles(tuple(data), tuple(deletes.values())),),
            removed=(
                *(item.file for item in gone),
                *(delete for item in changed for delete in item.own_deletes),
            ),
            properties={
                **self.properties,
                f"{MERGE_PREFIX}updated": str(merged.updated),
                f"{MERGE_PREFIX}inserted": str(merged.inserted),
                f"{MERGE_PREFIX}deleted": str(merged.deleted),
            },
            validation=Validation(
                snapshot["snapshot-id"] if snapshot else None,
                may_change,
                located=frozenset(kept),
                lacks_row_ids=any(item.lacks_row_ids for item in changed),
            ),
            branch=self.branch,
        )

    def _dead_rows(self, item: SnapshotFile) -> BitMap | None:
        """Return the deleted rows of a file that stays; None if the file does not."""
        dead = self._results[item.path].dead
        # A file without rows that are left is removed.
        return bitmap(dead.to_numpy()) if 0 < len(dead) < item.file.record_count else None

    def _describe(self, metadata: Metadata, target: WriteTarget, file: DataFile) -> list[DataFile]:
        """Return the descriptors of the files that replace a file."""
        result, schema = self._results[file.file_path], self._schema(metadata, target)
        # Rows keep their positions, so only updates of sort columns can break the order.
        in_order = not result.changed or not sorted_by(metadata, file) & set(self.plan.updates)
        return [
            describe_in_place(schema, dict(target.properties), file, new, in_order)
            for new in result.new_files
        ]

    def _insert(
        self,
        target: WriteTarget,
        metadata: Metadata,
        files: dict[str, SnapshotFile],
        located: Located | None,
    ) -> int:
        """Write rows that go to new files; return how many of them are inserted."""
        results = [self._results[path] for path in files]
        moved = [result.moved for result in results if result.moved is not None]
        inserted = self.source.rows.slice(0, 0)
        if self.plan.inserts:
            matched = [result.matched for result in results if not self.plan.replaces]
            matched = matched if located is None else [located.matched]
            if self.plan.has_new_keys and self.inserts is not None:
                _require_new_keys(self.inserts, matched)
            inserted = self._unmatched(matched)
        if not moved and not inserted.num_rows:
            return 0
        if moved:
            target = replace(target, schema=self._schema(metadata, target))
        # The number keeps names unique while the files of the attempt before are removed.
        writer = DataFileWriter(target, "merge", f"{self.write_id}-new{self._attempt}")
        with writer:
            for rows in [*moved, inserted]:
                writer.write(rows.to_batches())
            self._new = writer.close()
        return inserted.num_rows

    def _unmatched(self, matched: Sequence[pa.Int64Array]) -> pa.Table:
        """Return the source's rows to insert, which are not among the matched ones."""
        rows = self.source.rows
        if self.inserts is None and not any(map(len, matched)):
            return rows
        positions = pa.arange(0, rows.num_rows)
        if any(map(len, matched)):
            is_matched = pc.is_in(positions, value_set=pa.concat_arrays(matched))
            positions = positions.filter(pc.invert(is_matched))
        if self.inserts is not None:
            positions = positions.filter(self.inserts.take(positions))
        return rows.take(positions)

    def _drop_stale_results(self, base: LoadedTable, files: dict[str, SnapshotFile]) -> None:
        """Remove the results of files that are no longer candidates, or have other deletes now."""
        for location in list(self._results):
            item = files.get(location)
            if item is None or _read_state(item) != self._read_with[location]:
                for file in self._results.pop(location).new_files:
                    remove_quietly(base.io, file.location)

    def _remove_new(self, base: LoadedTable) -> None:
        for file in self._new:
            remove_quietly(base.io, file.file_path)
        self._new = []


def _read_state(item: SnapshotFile) -> _ReadState:
    return item.delete_keys, item.file[FILE_FIRST_ROW_ID], item.sequence_number


def _require_same_columns(before: Metadata, now: Metadata) -> None:
    """Check that a source with the columns of one version can be merged into another one.

    Raises:
        NotByRewriting: it cannot.
    """
    if before["current-schema-id"] != now["current-schema-id"]:
        raise NotByRewriting("another writer has changed the columns while the merge ran")


def _require_new_keys(inserts: pa.BooleanArray, matched: Sequence[pa.Int64Array]) -> None:
    if any(pc.any(inserts.take(positions)).as_py() for positions in matched):
        raise NotByRewriting("the table has keys of rows that may be inserted")
