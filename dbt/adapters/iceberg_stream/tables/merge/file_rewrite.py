"""One data file against the source of a merge: probed, and rewritten if a row of it changes.

Worker code: the standard library, PyArrow and other worker code. It runs in this process, or is
shipped to Spark's tasks by value.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError, conform
from dbt.adapters.iceberg_stream.tables.files.parquet import (
    ParquetOptions,
    WrittenFile,
    writer_beside,
)
from dbt.adapters.iceberg_stream.tables.merge.rows import Deletes, Matches, Source, changed, updated


class NotByRewriting(Exception):
    """The table is not, or no longer, one whose files can be rewritten so; the message says why."""


@dataclass(frozen=True)
class Candidate:
    """A file that may hold rows of the source: its location, and its path on the filesystem."""

    location: str
    path: str


@dataclass(frozen=True)
class Rewritten:
    """What became of a candidate.

    Attributes:
        matched: places of the source's rows that it holds.
        changed: rows that were updated.
        deleted: rows that are in none of its new files.
        made: files in its place, at most one.
    """

    location: str
    matched: pa.Int64Array
    changed: int = 0
    deleted: int = 0
    made: tuple[WrittenFile, ...] = ()

    @property
    def replaced(self) -> bool:
        return bool(self.changed or self.deleted)


@dataclass(frozen=True)
class FileMerge:
    """What a merge does to each file.

    Attributes:
        filesystem: where the files are.
        schema: of the table's files as they are now, with field ids.
        options: of new files.
        source: rows with a key of their own.
        updates: columns of a matched row that take the source's values, if any differs.
        deletes: rows that are left out.
        write_id: of the write, in the names of new files.
    """

    filesystem: fs.FileSystem
    schema: pa.Schema
    options: ParquetOptions
    source: Source
    updates: Sequence[str]
    deletes: Deletes
    write_id: str

    def run(self, candidate: Candidate) -> Rewritten:
        """Look for the source's rows in a file, and rewrite it if one of them changes it.

        Raises:
            NotByRewriting: the file is not as it must be.
            ColumnError: it holds what the table cannot.
            OSError: the file is damaged, or the storage refuses; names the file.
        """
        try:
            return self._run(candidate)
        except (OSError, pa.ArrowException) as error:
            raise OSError(f"{candidate.location}: {error}") from error

    def _run(self, candidate: Candidate) -> Rewritten:
        opened = self.filesystem.open_input_file(candidate.path)
        with opened, pq.ParquetFile(opened) as parquet:
            require_ids(parquet, self.schema)
            matches = self.source.match(read_rows(parquet, self._only(self.source.keys)))
            count = parquet.metadata.num_rows
            gone = self._deleted(count, matches)
            unwritten = Rewritten(candidate.location, matches.in_source, deleted=gone)
            if gone == count or not (gone or self._changes_any(parquet, matches)):
                return unwritten
            made, count = self._write(parquet, candidate, matches)
        return Rewritten(candidate.location, matches.in_source, count, gone, made)

    def _deleted(self, count: int, matches: Matches) -> int:
        """How many of a file's rows go."""
        if self.deletes is Deletes.NONE:
            return 0
        return len(matches) if self.deletes is Deletes.MATCHED else count - len(matches)

    def remove(self, candidate: Candidate, done: Rewritten) -> None:
        """Remove what was made of a file, for it is of no use."""
        for file in done.made:
            folder, name = candidate.path.rsplit("/", 1)[0], file.location.rsplit("/", 1)[1]
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(f"{folder}/{name}")

    def sweep(self, candidates: Sequence[Candidate], kept: Collection[Rewritten] = ()) -> None:
        """Remove whatever was put beside the candidates, known or not, but for what is kept."""
        files = [file for done in kept for file in done.made]
        sweep_beside(self.filesystem, [each.path for each in candidates], self._prefix, files)

    def _only(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in names])

    @property
    def _prefix(self) -> str:
        return f"merge-{self.write_id}-"

    def _changes_any(self, parquet: pq.ParquetFile, matches: Matches) -> bool:
        """Look at row groups with a match, until one of them has a row that changes."""
        if not self.updates:
            return False
        for group, local in _by_group(parquet, matches):
            if len(local):
                rows = read_rows(parquet, self._only(self.updates), group)
                if len(changed(rows, self.source.rows, local, self.updates)):
                    return True
        return False

    def _write(
        self, parquet: pq.ParquetFile, candidate: Candidate, matches: Matches
    ) -> tuple[tuple[WrittenFile, ...], int]:
        """The file anew, row group by row group, and how many of its rows changed."""
        place = candidate.location, candidate.path
        writer = writer_beside(
            self.filesystem, self.schema, self.options, *place, prefix=self._prefix
        )
        count = 0
        with writer:
            for group, local in _by_group(parquet, matches):
                rows = read_rows(parquet, self.schema, group)
                if len(local) and self.updates:
                    changes = changed(rows, self.source.rows, local, self.updates)
                    rows = updated(rows, self.source.rows, changes, self.updates)
                    count += len(changes)
                if self.deletes is Deletes.UNMATCHED:
                    rows = rows.take(local.in_file)
                if self.deletes is Deletes.MATCHED:
                    places = pa.array(range(rows.num_rows), pa.int64())
                    rows = rows.filter(pc.invert(pc.is_in(places, value_set=local.in_file)))
                # It stays one file, though it may become somewhat larger than the target.
                writer.write(rows, may_roll=False)
            return tuple(writer.close()), count


def read_rows(parquet: pq.ParquetFile, schema: pa.Schema, group: int | None = None) -> pa.Table:
    """Columns as the table has them now, by field id: a file may have other names or fewer.

    Raises:
        ColumnError: it holds what the table cannot.
    """
    now = {_id(field): field.name for field in schema}
    stored = {f.name: now[_id(f)] for f in parquet.schema_arrow if _id(f) in now}
    groups = range(parquet.metadata.num_row_groups) if group is None else [group]
    if not stored:
        # All columns are younger than the file.
        count = sum(parquet.metadata.row_group(g).num_rows for g in groups)
        return pa.Table.from_arrays([pa.nulls(count, f.type) for f in schema], schema=schema)
    rows = parquet.read_row_groups(list(groups), columns=list(stored))
    rows = rows.rename_columns([stored[name] for name in rows.column_names])
    return pa.Table.from_batches([conform(b, schema) for b in rows.to_batches()], schema)


def require_ids(parquet: pq.ParquetFile, schema: pa.Schema) -> None:
    """Columns are known by their ids; nested ones must be those of the table.

    Raises:
        NotByRewriting: they are not.
    """
    now = {_id(wanted): _ids(wanted) for wanted in schema}
    for stored in parquet.schema_arrow:
        if _id(stored) is None:
            raise NotByRewriting("the table has files without field ids")
        if _ids(stored) != now.get(_id(stored), _ids(stored)):
            raise NotByRewriting(f"the nested column {stored.name} has changed")


# How often a task looks at a file that the storage does not give.
TRIES = 3
# What a task says of each file.
TASK_RESULT = pa.schema(
    [
        ("location", pa.string()),
        ("matched", pa.list_(pa.int64())),
        ("changed", pa.int64()),
        ("deleted", pa.int64()),
        (
            "made",
            pa.list_(
                pa.struct(
                    [
                        ("location", pa.string()),
                        ("size", pa.int64()),
                        ("footer", pa.binary()),
                        ("row_groups", pa.int32()),
                    ]
                )
            ),
        ),
        ("refused", pa.string()),
        ("failed", pa.string()),
        ("attempt", pa.int32()),
    ]
)


def run_task(
    merge: FileMerge, batches: Iterable[pa.RecordBatch], attempt: int = 0
) -> Iterator[pa.RecordBatch]:
    """A task of Spark: candidates come in, what became of them goes out."""
    for batch in batches:
        for place in batch.to_pylist():
            said = {"location": place["location"], "attempt": attempt}
            said |= told(partial(_done, merge, Candidate(**place)))
            yield pa.RecordBatch.from_pylist([said], TASK_RESULT)


def _done(merge: FileMerge, candidate: Candidate) -> dict[str, Any]:
    done = vars(merge.run(candidate))
    made = [vars(file) for file in done["made"]]
    return done | {"matched": done["matched"].to_pylist(), "made": made}


def told(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a task says of its work on a file. It does not fail, for then other tasks would go on to
    write files that nobody knows; so it tries again by itself.
    """
    for trial in range(1, TRIES + 1):
        try:
            return work()
        except (NotByRewriting, ColumnError) as error:
            return {"refused": str(error)}
        except OSError as error:
            if trial == TRIES:
                return {"failed": str(error)}
            time.sleep(trial)
    raise AssertionError


def read_task_result(row: Mapping[str, Any]) -> Rewritten:
    """What a task said of a file; raises as `require_done`."""
    require_done(row)
    made = tuple(WrittenFile(**file) for file in row["made"])
    matched = pa.array(row["matched"], pa.int64())
    return Rewritten(row["location"], matched, row["changed"], row["deleted"], made)


def require_done(row: Mapping[str, Any]) -> None:
    """Look at what a task said of a file.

    Raises:
        NotByRewriting: it was refused.
        OSError: the storage or the file has failed the task.
    """
    if row["failed"] is not None:
        raise OSError(row["failed"])
    if row["refused"] is not None:
        raise NotByRewriting(row["refused"])


def sweep_beside(
    filesystem: fs.FileSystem,
    paths: Iterable[str],
    prefix: str,
    kept: Iterable[WrittenFile] = (),
) -> None:
    """Remove whatever of such a name was put beside files, but for what is kept."""
    names = {file.location.rsplit("/", 1)[1] for file in kept}
    for folder in {path.rsplit("/", 1)[0] for path in paths}:
        with contextlib.suppress(OSError):
            for found in filesystem.get_file_info(fs.FileSelector(folder)):
                if found.base_name.startswith(prefix) and found.base_name not in names:
                    filesystem.delete_file(found.path)


def _by_group(parquet: pq.ParquetFile, matches: Matches) -> Iterator[tuple[int, Matches]]:
    """The matches in each row group, by their places in it."""
    begin = 0
    for group in range(parquet.metadata.num_row_groups):
        end = begin + parquet.metadata.row_group(group).num_rows
        inside = pc.and_(pc.greater_equal(matches.in_file, begin), pc.less(matches.in_file, end))
        here = matches.only(inside)
        yield group, Matches(pc.subtract(here.in_file, begin), here.in_source)
        begin = end


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
