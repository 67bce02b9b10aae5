"""Run a MERGE by rewriting the data files with changed rows.

Article on the write contract, "Row-Level Writes: Copy-on-Write". The merge first reads only the
key columns of each file that may have a key of the source. It rewrites a file only if a matched
row changes, and keeps the order of its rows. It appends rows without a match. All changes are one
commit; after a conflict, the merge processes only files that other writers changed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile, FileFormat, ManifestFile
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, Validation
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.commit.errors import ValidationFailed
from dbt.adapters.iceberg_stream.tables.commit.live_files import has_deletes, live_files
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot, remove_quietly
from dbt.adapters.iceberg_stream.tables.commit.read_check import ReadCheck
from dbt.adapters.iceberg_stream.tables.files.data_files import describe_in_place
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter
from dbt.adapters.iceberg_stream.tables.merge.candidates import manifests_of, may_hold
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import (
    Candidate,
    FileMerge,
    NotByRewriting,
    Rewritten,
)
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan, sorted_by
from dbt.adapters.iceberg_stream.tables.merge.rows import Deletes, Source

MERGE_PREFIX = "spark.merge-into.num-target-rows-"
MERGE_ATTEMPTS = 5
WORKERS = max(1, min(4, os.cpu_count() or 1))


# Processes a merge's files, here or in Spark's tasks, and yields the results.
Runner = Callable[[FileMerge, list[Candidate]], Iterator[Rewritten]]


def in_threads(merge: FileMerge, candidates: list[Candidate]) -> Iterator[Rewritten]:
    """Process a merge's files in this process, in threads.

    Args:
        merge: the merge.
        candidates: the files.

    Yields:
        The files' results.
    """
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="merge") as pool:
        running = deque((file, pool.submit(merge.run, file)) for file in candidates)
        try:
            while running:
                yield running[0][1].result()
                running.popleft()
        finally:
            # After an error, remove the files of results that were not yielded.
            uncanceled = [(file, future) for file, future in running if not future.cancel()]
            for file, future in uncanceled:
                if future.exception() is None:
                    merge.remove(file, future.result())


@dataclass(frozen=True)
class Merged:
    """The result of a merge.

    Attributes:
        committed: the snapshot; None if nothing changed.
        updated: number of updated rows.
        inserted: number of inserted rows.
        deleted: number of deleted rows.
        probed: number of files whose keys were read.
        rewritten: number of files that were replaced.
    """

    committed: Committed | None
    updated: int
    inserted: int
    deleted: int
    probed: int
    rewritten: int


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
        read_check: whether the source's rows may be merged after commits of other writers; None
            if they are computed from no table.
        rewrites: number of rewritten files in all attempts.
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
    read_check: ReadCheck | None = None
    rewrites: int = 0
    _attempt: int = 0
    _results: dict[str, Rewritten] = field(default_factory=dict)
    _inserted: list[DataFile] = field(default_factory=list)

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
            if change is None:
                return merged
            # From here on the committer owns the files, except after ValidationFailed.
            try:
                check = self.read_check.check_attempt if self.read_check else None
                committed = Committer(self.catalog, self.name, change, base, check=check).commit()
                return replace(merged, committed=committed)
            except ValidationFailed:
                with self._remove_on_error(base):
                    current = self.catalog.load(self.name)
                    if current is None or self._attempt == MERGE_ATTEMPTS:
                        raise
                    if self.read_check is not None:
                        self.read_check.check_repetition()
                self._remove_inserted(base)
                base = current

    def _rewrite(self, base: LoadedTable) -> tuple[Merged, Change | None]:
        """Process the files; return the result, and the change to commit if there is one."""
        if reason := self.refuses(base.metadata):
            raise NotByRewriting(reason)
        if has_deletes(base.io, base.metadata, self.branch):
            raise NotByRewriting("the table has delete files")
        target = WriteTarget.of(base.metadata, base.io)
        may_change = self._file_test(target)
        may_list = self._manifest_test(base.metadata)
        candidates = live_files(
            base.io, base.metadata, self.branch, test=may_change, manifests=may_list
        )
        if unsupported := next(
            (f for f in candidates if f.file_format != FileFormat.PARQUET), None
        ):
            raise NotByRewriting(f"the table has files in {unsupported.file_format.value}")
        self._drop_stale_results(base, candidates)
        for result in self.runner(self._file_merge(target), self._unprocessed(target, candidates)):
            self._results[result.location] = result
            self.rewrites += len(result.new_files)
        self._inserted = self._insert(target, candidates)
        replaced = [file for file in candidates if self._results[file.file_path].replaced]
        merged = self._summarize(candidates, replaced)
        if not replaced and not self._inserted:
            return merged, None
        return merged, self._change(base, target, replaced, merged, may_change)

    def _summarize(self, candidates: list[DataFile], replaced: list[DataFile]) -> Merged:
        results = [self._results[file.file_path] for file in replaced]
        return Merged(
            committed=None,
            updated=sum(result.changed for result in results),
            inserted=sum(file.record_count for file in self._inserted),
            deleted=sum(result.deleted for result in results),
            probed=len(candidates),
            rewritten=len(replaced),
        )

    def _unprocessed(self, target: WriteTarget, candidates: list[DataFile]) -> list[Candidate]:
        """Return the candidates that no attempt has processed."""
        locations = [file.file_path for file in candidates if file.file_path not in self._results]
        return [Candidate(location, target.path_of(location)) for location in locations]

    def _file_merge(self, target: WriteTarget) -> FileMerge:
        return FileMerge(
            target.filesystem(),
            target.file_schema,
            target.options,
            self.source,
            self.plan.updates,
            self.plan.deletes,
            f"{self.write_id}-{self._attempt}",
        )

    @contextmanager
    def _remove_on_error(self, base: LoadedTable) -> Iterator[None]:
        with ExitStack() as undo:
            undo.callback(self._drop_stale_results, base, [])
            undo.callback(self._remove_inserted, base)
            yield
            undo.pop_all()

    def _file_test(self, target: WriteTarget) -> Callable[[DataFile], bool]:
        """Return a test of data files: whether the merge may change their rows."""
        if self.plan.deletes is Deletes.UNMATCHED:
            return lambda file: True
        return may_hold(self.source.rows, self.plan.keys, target.schema)

    def _manifest_test(self, metadata: Metadata) -> Callable[[ManifestFile], bool]:
        if self.plan.deletes is Deletes.UNMATCHED:
            return lambda manifest: True
        return manifests_of(self.source.rows, self.plan.keys, metadata)

    def _change(
        self,
        base: LoadedTable,
        target: WriteTarget,
        replaced: list[DataFile],
        merged: Merged,
        may_change: Callable[[DataFile], bool],
    ) -> Change:
        snapshot = parent_snapshot(base.metadata, self.branch)
        new_files = [
            new for file in replaced for new in self._describe(base.metadata, target, file)
        ]
        return Change(
            Operation.OVERWRITE if replaced else Operation.APPEND,
            (AddedFiles((*new_files, *self._inserted)),),
            removed=tuple(replaced),
            properties={
                **self.properties,
                f"{MERGE_PREFIX}updated": str(merged.updated),
                f"{MERGE_PREFIX}inserted": str(merged.inserted),
                f"{MERGE_PREFIX}deleted": str(merged.deleted),
            },
            validation=Validation(snapshot["snapshot-id"] if snapshot else None, may_change),
            branch=self.branch,
        )

    def _describe(self, metadata: Metadata, target: WriteTarget, file: DataFile) -> list[DataFile]:
        """Return the descriptors of the files that replace a file."""
        result = self._results[file.file_path]
        # Rows keep their positions, so only updates of sort columns can break the order.
        in_order = not result.changed or not sorted_by(metadata, file) & set(self.plan.updates)
        return [
            describe_in_place(target.schema, dict(target.properties), file, new, in_order)
            for new in result.new_files
        ]

    def _insert(self, target: WriteTarget, candidates: list[DataFile]) -> list[DataFile]:
        if not self.plan.inserts:
            return []
        positions = pa.arange(0, self.source.rows.num_rows)
        matched = [self._results[file.file_path].matched for file in candidates]
        if matched:
            is_matched = pc.is_in(positions, value_set=pa.concat_arrays(matched))
            positions = positions.filter(pc.invert(is_matched))
        if not len(positions):
            return []
        # The number keeps names unique while the files of the attempt before are removed.
        writer = DataFileWriter(target, "merge", f"{self.write_id}-new{self._attempt}")
        with writer:
            writer.write(self.source.rows.take(positions).to_batches())
            return writer.close()

    def _drop_stale_results(self, base: LoadedTable, candidates: list[DataFile]) -> None:
        """Remove the new files of replaced files that are no longer candidates."""
        live = {file.file_path for file in candidates}
        for location in [location for location in self._results if location not in live]:
            for file in self._results.pop(location).new_files:
                remove_quietly(base.io, file.location)

    def _remove_inserted(self, base: LoadedTable) -> None:
        for file in self._inserted:
            remove_quietly(base.io, file.file_path)
        self._inserted = []
