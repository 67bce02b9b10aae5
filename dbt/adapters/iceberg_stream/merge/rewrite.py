"""MERGE by rewriting the files that hold a changed row (article on the write contract,
"Row-Level Writes: Copy-on-Write").

Each file that may hold a key of the source is probed by its key columns alone. It is written anew
only if a matched row really changes; its rows keep their order. What has no match is appended. All
of it is one commit; when others commit meanwhile, only the files that they changed are done again.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, FileFormat
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from dbt.adapters.iceberg_stream.catalog.lake import Lake, Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.commit.change import AddedFiles, Change, Validation
from dbt.adapters.iceberg_stream.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.commit.producer import parent_snapshot, remove_quietly
from dbt.adapters.iceberg_stream.commit.validation import ChangedMeanwhile
from dbt.adapters.iceberg_stream.files.casting import conform
from dbt.adapters.iceberg_stream.files.data_files import Describer
from dbt.adapters.iceberg_stream.files.parquet import RollingWriter
from dbt.adapters.iceberg_stream.files.target import WriteTarget
from dbt.adapters.iceberg_stream.files.writer import DataFileWriter
from dbt.adapters.iceberg_stream.merge.candidates import has_deletes, live_files, may_hold
from dbt.adapters.iceberg_stream.merge.plan import MergePlan
from dbt.adapters.iceberg_stream.merge.rows import Matches, Source, changed, updated

MERGE_PREFIX = "spark.merge-into.num-target-rows-"
ATTEMPTS = 5
WORKERS = max(1, min(4, os.cpu_count() or 1))


@dataclass(frozen=True)
class Rewritten:
    """What became of a candidate.

    Attributes:
        matched: places of the source's rows that it holds.
        changed: rows that were updated.
        made: files in its place; none where none of its rows is left.
        deleted: rows that are in none of them.
    """

    file: DataFile
    matched: pa.Array
    changed: int
    made: tuple[DataFile, ...]
    deleted: int = 0


@dataclass(frozen=True)
class Merged:
    """What a merge did; no snapshot where nothing changed."""

    committed: Committed | None
    updated: int
    inserted: int
    deleted: int
    probed: int
    rewritten: int


class NotByRewriting(Exception):
    """The table is no longer one whose files can be rewritten so; the message says why."""


@dataclass
class RewriteMerge:
    """One merge.

    Attributes:
        refuses: looks at the table on each attempt and says why it cannot be done, if it cannot.
        rewrites: files that were written anew, over all attempts.
    """

    lake: Lake
    name: Name
    source: Source
    plan: MergePlan
    refuses: Callable[[Metadata], str | None]
    write_id: str
    stamps: dict[str, str]
    rewrites: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _done: dict[str, Rewritten] = field(default_factory=dict)
    _made: list[DataFile] = field(default_factory=list)
    _target: WriteTarget | None = None
    _tries: Iterator[int] = field(default_factory=itertools.count)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, base: LoadedTable) -> Merged:
        """Merge, again for files that others change meanwhile.

        Raises:
            NotByRewriting: the table has changed so that it cannot be done; nothing was written.
            ChangedMeanwhile: they did so each time; nothing was written.
            CatalogError: the catalog refuses; nothing was written.
        """
        for attempt in range(1, ATTEMPTS + 1):
            with self._undone_on_error():
                results, inserted, tests = self._rewrite(base)
            # From here on the files are the committer's, unless it gives them back.
            try:
                return self._commit(base, results, inserted, tests)
            except ChangedMeanwhile:
                for file in inserted:
                    remove_quietly(base.io, file.file_path)
                with self._undone_on_error():
                    fresh = self.lake.load(self.name)
                    if fresh is None or attempt == ATTEMPTS:
                        raise
                base = fresh
        raise AssertionError

    def _rewrite(
        self, base: LoadedTable
    ) -> tuple[list[Rewritten], list[DataFile], Callable[[DataFile], bool]]:
        """What becomes of each candidate, files of new rows, and the test of candidates."""
        if because := self.refuses(base.metadata):
            raise NotByRewriting(because)
        if has_deletes(base.io, base.metadata):
            raise NotByRewriting("the table has delete files")
        self._target = target = WriteTarget.of(base.metadata, base.io)
        tests = self._test_of_files(target)
        candidates = [file for file in live_files(base.io, base.metadata) if tests(file)]
        if other := next((f for f in candidates if f.file_format != FileFormat.PARQUET), None):
            raise NotByRewriting(f"the table has files in {other.file_format.value}")
        self._forget_others(candidates)
        new = [file for file in candidates if file.file_path not in self._done]
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="merge") as pool:
            for found in pool.map(self._probe, new):
                self._done[found.file.file_path] = found
        results = [self._done[file.file_path] for file in candidates]
        return results, self._insert(target, results), tests

    def _commit(
        self,
        base: LoadedTable,
        results: list[Rewritten],
        inserted: list[DataFile],
        tests: Callable[[DataFile], bool],
    ) -> Merged:
        replaced = [result for result in results if result.changed or result.deleted]
        if not replaced and not inserted:
            return Merged(None, 0, 0, 0, len(results), 0)
        counts = (
            sum(result.changed for result in replaced),
            sum(file.record_count for file in inserted),
            sum(result.deleted for result in replaced),
        )
        change = self._change(base, replaced, inserted, counts, tests)
        done = Committer(self.lake, self.name, change, base).commit()
        return Merged(done, *counts, len(results), len(replaced))

    def _test_of_files(self, target: WriteTarget) -> Callable[[DataFile], bool]:
        """Tells files whose rows the merge may change."""
        if self.plan.deletes:
            return lambda file: True
        return may_hold(self.source.rows, self.plan.keys, target.schema)

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        with ExitStack() as undo:
            undo.callback(self._remove, self._made)
            yield
            undo.pop_all()

    def _change(
        self,
        base: LoadedTable,
        replaced: list[Rewritten],
        inserted: list[DataFile],
        counts: tuple[int, int, int],
        tests: Callable[[DataFile], bool],
    ) -> Change:
        snapshot = parent_snapshot(base.metadata, "main")
        made = [file for result in replaced for file in result.made]
        return Change(
            Operation.OVERWRITE if replaced else Operation.APPEND,
            (AddedFiles((*made, *inserted)),),
            removed=tuple(result.file for result in replaced),
            properties={
                **self.stamps,
                f"{MERGE_PREFIX}updated": str(counts[0]),
                f"{MERGE_PREFIX}inserted": str(counts[1]),
                f"{MERGE_PREFIX}deleted": str(counts[2]),
            },
            validation=Validation(snapshot["snapshot-id"] if snapshot else None, tests),
        )

    def _probe(self, file: DataFile) -> Rewritten:
        """Look for the source's rows in a file, and write it anew if one of them changes it."""
        target = self._target
        assert target is not None
        opened = target.filesystem().open_input_file(target.path_of(file.file_path))
        with pq.ParquetFile(opened) as parquet:
            _require_ids(parquet, target)
            matches = self.source.match(_read(parquet, list(self.plan.keys), target))
            gone = parquet.metadata.num_rows - len(matches) if self.plan.deletes else 0
            if not len(matches) or not (gone or self._changes_any(parquet, target, matches)):
                return Rewritten(file, matches.in_source, 0, (), gone)
            made, count = self._write(parquet, target, file, matches)
        return Rewritten(file, matches.in_source, count, made, gone)

    def _changes_any(self, parquet: pq.ParquetFile, target: WriteTarget, matches: Matches) -> bool:
        """Look at row groups with a match, until one of them has a row that changes."""
        if not self.plan.updates:
            return False
        for group, local in _by_group(parquet, matches):
            if len(local):
                rows = _read(parquet, list(self.plan.updates), target, group)
                if len(changed(rows, self.source.rows, local, self.plan.updates)):
                    return True
        return False

    def _write(
        self, parquet: pq.ParquetFile, target: WriteTarget, file: DataFile, matches: Matches
    ) -> tuple[tuple[DataFile, ...], int]:
        """The file anew, row group by row group, and how many of its rows changed."""
        folder, number = file.file_path.rsplit("/", 1)[0], next(self._numbers)
        writer = RollingWriter(
            target.filesystem(),
            target.file_schema,
            target.options,
            lambda: f"{folder}/merge-{self.write_id}-{number:05}.parquet",
            target.path_of,
        )
        count = 0
        with writer:
            for group, local in _by_group(parquet, matches):
                rows = _read(parquet, target.file_schema.names, target, group)
                if len(local) and self.plan.updates:
                    changes = changed(rows, self.source.rows, local, self.plan.updates)
                    rows = updated(rows, self.source.rows, changes, self.plan.updates)
                    count += len(changes)
                if self.plan.deletes:
                    rows = rows.take(local.in_file)
                # It stays one file, though it may become somewhat larger than the target.
                writer.write(rows, may_roll=False)
            written = writer.close()
        describer = Describer(target.schema, dict(target.properties), file.spec_id)
        made = [describer.describe(one, None, file.sort_order_id) for one in written]
        for one in made:
            one[PARTITION] = file.partition if len(file.partition) else Record()
        with self._guard:
            self.rewrites += 1
            self._made += made
        return tuple(made), count

    def _insert(self, target: WriteTarget, results: list[Rewritten]) -> list[DataFile]:
        if not self.plan.inserts:
            return []
        places = pa.array(range(self.source.rows.num_rows), pa.int64())
        matched = [result.matched for result in results if len(result.matched)]
        if matched:
            there = pc.is_in(places, value_set=pa.concat_arrays(matched))
            places = places.filter(pc.invert(there))
        if not len(places):
            return []
        # A name of its own for each attempt: the one before may still be being removed.
        writer = DataFileWriter(target, "merge", f"{self.write_id}-new{next(self._tries)}")
        with writer:
            writer.write(self.source.rows.take(places).to_batches())
            return writer.close()

    def _forget_others(self, candidates: list[DataFile]) -> None:
        """What was made of files that are gone is of no use any more."""
        live = {file.file_path for file in candidates}
        gone = [path for path in self._done if path not in live]
        for path in gone:
            self._remove(self._done.pop(path).made)

    def _remove(self, files: Iterable[DataFile]) -> None:
        for file in files:
            if self._target is not None:
                remove_quietly(self._target.io, file.file_path)


PARTITION = [f.name for f in DATA_FILE_TYPE[3].fields].index("partition")


def _by_group(parquet: pq.ParquetFile, matches: Matches) -> Iterator[tuple[int, Matches]]:
    """The matches in each row group, by their places in it."""
    begin = 0
    for group in range(parquet.metadata.num_row_groups):
        end = begin + parquet.metadata.row_group(group).num_rows
        inside = pc.and_(pc.greater_equal(matches.in_file, begin), pc.less(matches.in_file, end))
        here = matches.only(inside)
        yield group, Matches(pc.subtract(here.in_file, begin), here.in_source)
        begin = end


def _read(
    parquet: pq.ParquetFile, names: list[str], target: WriteTarget, group: int | None = None
) -> pa.Table:
    """Columns as the table has them now, by field id: a file may have other names or fewer."""
    wanted = [target.file_schema.field(name) for name in names]
    now = {_id(field): field.name for field in wanted}
    stored = {field.name: now[_id(field)] for field in parquet.schema_arrow if _id(field) in now}
    groups = range(parquet.metadata.num_row_groups) if group is None else [group]
    schema = pa.schema(wanted)
    if not stored:
        # All columns are younger than the file.
        count = sum(parquet.metadata.row_group(g).num_rows for g in groups)
        return pa.Table.from_arrays([pa.nulls(count, f.type) for f in wanted], schema=schema)
    rows = parquet.read_row_groups(list(groups), columns=list(stored))
    rows = rows.rename_columns([stored[name] for name in rows.column_names])
    return pa.Table.from_batches([conform(batch, schema) for batch in rows.to_batches()], schema)


def _require_ids(parquet: pq.ParquetFile, target: WriteTarget) -> None:
    """Columns are known by their ids; nested ones must be those of the table."""
    now = {_id(wanted): _ids(wanted) for wanted in target.file_schema}
    for stored in parquet.schema_arrow:
        if _id(stored) is None:
            raise NotByRewriting("the table has files without field ids")
        if _ids(stored) != now.get(_id(stored), _ids(stored)):
            raise NotByRewriting(f"the nested column {stored.name} has changed")


def _ids(field: pa.Field) -> list[tuple[str, bytes | None]]:
    """Names and ids of what is nested in a column."""
    kind = field.type
    children = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    found = []
    for child in children:
        found += [(child.name, _id(child)), *_ids(child)]
    return found


def _id(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(b"PARQUET:field_id")
