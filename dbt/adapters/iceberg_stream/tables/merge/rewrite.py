"""MERGE by rewriting the files that hold a changed row (article on the write contract,
"Row-Level Writes: Copy-on-Write").

Each file that may hold a key of the source is probed by its key columns alone. It is rewritten
only if a matched row really changes; its rows keep their order. What has no match is appended. All
of it is one commit; when others commit meanwhile, only the files that they changed are done again.
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
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, Validation
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot, remove_quietly
from dbt.adapters.iceberg_stream.tables.commit.validation import ChangedMeanwhile
from dbt.adapters.iceberg_stream.tables.files.data_files import describe_in_place
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter
from dbt.adapters.iceberg_stream.tables.merge.candidates import (
    has_deletes,
    live_files,
    manifests_of,
    may_hold,
)
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import (
    Candidate,
    FileMerge,
    NotByRewriting,
    Rewritten,
)
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan, sorted_by
from dbt.adapters.iceberg_stream.tables.merge.rows import Deletes, Source

MERGE_PREFIX = "spark.merge-into.num-target-rows-"
ATTEMPTS = 5
WORKERS = max(1, min(4, os.cpu_count() or 1))


# Does a merge's work on each file, here or elsewhere, and gives the results as they come.
Runner = Callable[[FileMerge, list[Candidate]], Iterator[Rewritten]]


def in_threads(merge: FileMerge, candidates: list[Candidate]) -> Iterator[Rewritten]:
    """The work on files in this process."""
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="merge") as pool:
        running = deque((each, pool.submit(merge.run, each)) for each in candidates)
        try:
            while running:
                yield running[0][1].result()
                running.popleft()
        finally:
            # Something went wrong: what nobody takes any more goes.
            left = [(each, future) for each, future in running if not future.cancel()]
            for each, future in left:
                if future.exception() is None:
                    merge.remove(each, future.result())


@dataclass(frozen=True)
class Merged:
    """What a merge did; no snapshot where nothing changed."""

    committed: Committed | None
    updated: int
    inserted: int
    deleted: int
    probed: int
    rewritten: int


@dataclass
class RewriteMerge:
    """One merge.

    Attributes:
        refuses: looks at the table on each attempt and says why it cannot be done, if it cannot.
        runner: does the work on files.
        rewrites: files that were rewritten, over all attempts.
    """

    catalog: IcebergCatalog
    name: Name
    source: Source
    plan: MergePlan
    refuses: Callable[[Metadata], str | None]
    write_id: str
    stamps: dict[str, str]
    runner: Runner = in_threads
    rewrites: int = 0
    _attempt: int = 0
    _done: dict[str, Rewritten] = field(default_factory=dict)
    _inserted: list[DataFile] = field(default_factory=list)

    def run(self, base: LoadedTable) -> Merged:
        """Merge, again for files that others change meanwhile.

        Raises:
            NotByRewriting: the table has changed so that it cannot be done; nothing was written.
            ChangedMeanwhile: they did so each time; nothing was written.
            CatalogError: the catalog refuses; nothing was written.
        """
        while True:
            self._attempt += 1
            with self._undone_on_error(base):
                merged, change = self._rewrite(base)
            if change is None:
                return merged
            # From here on the files are the committer's, unless it gives them back.
            try:
                done = Committer(self.catalog, self.name, change, base).commit()
                return replace(merged, committed=done)
            except ChangedMeanwhile:
                with self._undone_on_error(base):
                    fresh = self.catalog.load(self.name)
                    if fresh is None or self._attempt == ATTEMPTS:
                        raise
                self._remove_inserted(base)
                base = fresh

    def _rewrite(self, base: LoadedTable) -> tuple[Merged, Change | None]:
        """What the merge comes to, and the change that makes it so; None if there is none."""
        if because := self.refuses(base.metadata):
            raise NotByRewriting(because)
        if has_deletes(base.io, base.metadata):
            raise NotByRewriting("the table has delete files")
        target = WriteTarget.of(base.metadata, base.io)
        tests = self._test_of_files(target)
        possible = self._test_of_manifests(base.metadata)
        candidates = live_files(base.io, base.metadata, test=tests, manifests=possible)
        if other := next((f for f in candidates if f.file_format != FileFormat.PARQUET), None):
            raise NotByRewriting(f"the table has files in {other.file_format.value}")
        self._forget_others(base, candidates)
        for done in self.runner(self._file_merge(target), self._new(target, candidates)):
            self._done[done.location] = done
            self.rewrites += len(done.made)
        self._inserted = self._insert(target, candidates)
        replaced = [file for file in candidates if self._done[file.file_path].replaced]
        merged = self._merged(candidates, replaced)
        if not replaced and not self._inserted:
            return merged, None
        return merged, self._change(base, target, replaced, merged, tests)

    def _merged(self, candidates: list[DataFile], replaced: list[DataFile]) -> Merged:
        results = [self._done[file.file_path] for file in replaced]
        return Merged(
            committed=None,
            updated=sum(result.changed for result in results),
            inserted=sum(file.record_count for file in self._inserted),
            deleted=sum(result.deleted for result in results),
            probed=len(candidates),
            rewritten=len(replaced),
        )

    def _new(self, target: WriteTarget, candidates: list[DataFile]) -> list[Candidate]:
        """Candidates that no attempt has looked at yet."""
        locations = [file.file_path for file in candidates if file.file_path not in self._done]
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
    def _undone_on_error(self, base: LoadedTable) -> Iterator[None]:
        with ExitStack() as undo:
            undo.callback(self._forget_others, base, [])
            undo.callback(self._remove_inserted, base)
            yield
            undo.pop_all()

    def _test_of_files(self, target: WriteTarget) -> Callable[[DataFile], bool]:
        """Tells files whose rows the merge may change."""
        if self.plan.deletes is Deletes.UNMATCHED:
            return lambda file: True
        return may_hold(self.source.rows, self.plan.keys, target.schema)

    def _test_of_manifests(self, metadata: Metadata) -> Callable[[ManifestFile], bool]:
        if self.plan.deletes is Deletes.UNMATCHED:
            return lambda manifest: True
        return manifests_of(self.source.rows, self.plan.keys, metadata)

    def _change(
        self,
        base: LoadedTable,
        target: WriteTarget,
        replaced: list[DataFile],
        merged: Merged,
        tests: Callable[[DataFile], bool],
    ) -> Change:
        snapshot = parent_snapshot(base.metadata, "main")
        made = [new for file in replaced for new in self._described(base.metadata, target, file)]
        return Change(
            Operation.OVERWRITE if replaced else Operation.APPEND,
            (AddedFiles((*made, *self._inserted)),),
            removed=tuple(replaced),
            properties={
                **self.stamps,
                f"{MERGE_PREFIX}updated": str(merged.updated),
                f"{MERGE_PREFIX}inserted": str(merged.inserted),
                f"{MERGE_PREFIX}deleted": str(merged.deleted),
            },
            validation=Validation(snapshot["snapshot-id"] if snapshot else None, tests),
        )

    def _described(self, metadata: Metadata, target: WriteTarget, file: DataFile) -> list[DataFile]:
        """What is in the place of a file, in its partition and its order."""
        done = self._done[file.file_path]
        # Rows keep their places: only new values can put them out of order.
        same = not done.changed or not sorted_by(metadata, file) & set(self.plan.updates)
        return [
            describe_in_place(target.schema, dict(target.properties), file, made, same)
            for made in done.made
        ]

    def _insert(self, target: WriteTarget, candidates: list[DataFile]) -> list[DataFile]:
        if not self.plan.inserts:
            return []
        places = pa.array(range(self.source.rows.num_rows), pa.int64())
        matched = [self._done[file.file_path].matched for file in candidates]
        if matched:
            there = pc.is_in(places, value_set=pa.concat_arrays(matched))
            places = places.filter(pc.invert(there))
        if not len(places):
            return []
        # A name of its own for each attempt: the one before may still be being removed.
        writer = DataFileWriter(target, "merge", f"{self.write_id}-new{self._attempt}")
        with writer:
            writer.write(self.source.rows.take(places).to_batches())
            return writer.close()

    def _forget_others(self, base: LoadedTable, candidates: list[DataFile]) -> None:
        """What was made of files that are gone is of no use any more."""
        live = {file.file_path for file in candidates}
        for location in [location for location in self._done if location not in live]:
            for file in self._done.pop(location).made:
                remove_quietly(base.io, file.location)

    def _remove_inserted(self, base: LoadedTable) -> None:
        for file in self._inserted:
            remove_quietly(base.io, file.file_path)
        self._inserted = []
