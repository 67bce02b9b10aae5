"""Merges a source into one data file: rewrites the file if one of its rows changes.

Worker code: the standard library, PyArrow and other worker code. It runs in this process, or is
sent to Spark's tasks by value.
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
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id, nested_ids
from dbt.adapters.iceberg_stream.tables.files.parquet import (
    ParquetOptions,
    WrittenFile,
    writer_beside,
)
from dbt.adapters.iceberg_stream.tables.merge.rows import (
    Deletes,
    Matches,
    Source,
    changed,
    row_numbers,
    updated,
)


class NotByRewriting(Exception):
    """The merge cannot be done by rewriting files; the message says why."""


@dataclass(frozen=True)
class Candidate:
    """A data file that may have rows of the source.

    Attributes:
        location: as the table's metadata have it.
        path: on the filesystem.
    """

    location: str
    path: str


@dataclass(frozen=True)
class Rewritten:
    """The result of a candidate.

    Attributes:
        location: of the candidate.
        matched: positions of the source's rows that match one of its rows.
        changed: number of updated rows.
        deleted: number of deleted rows.
        new_files: files that replace it, at most one.
    """

    location: str
    matched: pa.Int64Array
    changed: int = 0
    deleted: int = 0
    new_files: tuple[WrittenFile, ...] = ()

    @property
    def replaced(self) -> bool:
        """Return whether some of its rows changed."""
        return bool(self.changed or self.deleted)


@dataclass(frozen=True)
class FileMerge:
    """The part of a merge that each file needs.

    Attributes:
        filesystem: of the files.
        schema: current Arrow schema of the table's files, with field ids.
        options: how new files are written.
        source: the source's rows, with unique keys.
        updates: columns of a matched row that get the source's values, if one differs.
        deletes: which rows are deleted.
        write_id: id of the write, in the names of new files.
    """

    filesystem: fs.FileSystem
    schema: pa.Schema
    options: ParquetOptions
    source: Source
    updates: Sequence[str]
    deletes: Deletes
    write_id: str

    def run(self, candidate: Candidate) -> Rewritten:
        """Match a file's rows with the source, and rewrite the file if one of them changes.

        Args:
            candidate: the file.

        Raises:
            NotByRewriting: the file cannot be rewritten.
            ColumnError: the file has a value that the table's type does not include.
            OSError: the file is damaged, or the storage refuses it; the message names the file.
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
            deleted = self._deleted(count, matches)
            unchanged = Rewritten(candidate.location, matches.in_source, deleted=deleted)
            if deleted == count or not (deleted or self._changes_any(parquet, matches)):
                return unchanged
            new_files, count = self._write(parquet, candidate, matches)
        return Rewritten(candidate.location, matches.in_source, count, deleted, new_files)

    def _deleted(self, count: int, matches: Matches) -> int:
        """Return how many of a file's rows are deleted."""
        if self.deletes is Deletes.NONE:
            return 0
        return len(matches) if self.deletes is Deletes.MATCHED else count - len(matches)

    def remove(self, candidate: Candidate, result: Rewritten) -> None:
        """Remove the files that replace a candidate.

        Args:
            candidate: the file.
            result: its result.
        """
        for file in result.new_files:
            folder, name = candidate.path.rsplit("/", 1)[0], file.location.rsplit("/", 1)[1]
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(f"{folder}/{name}")

    def sweep(self, candidates: Sequence[Candidate], keep: Collection[Rewritten] = ()) -> None:
        """Remove the write's files in the folders of the candidates.

        Args:
            candidates: the files.
            keep: results whose files stay.
        """
        files = [file for result in keep for file in result.new_files]
        sweep_beside(self.filesystem, [c.path for c in candidates], self._prefix, files)

    def _only(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in names])

    @property
    def _prefix(self) -> str:
        return f"merge-{self.write_id}-"

    def _changes_any(self, parquet: pq.ParquetFile, matches: Matches) -> bool:
        """Return whether a matched row changes; reads row groups until one does."""
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
        """Rewrite the file by row groups; return the new files and the number of changed rows."""
        writer = writer_beside(
            self.filesystem,
            self.schema,
            self.options,
            candidate.location,
            candidate.path,
            prefix=self._prefix,
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
                    positions = row_numbers(rows.num_rows)
                    rows = rows.filter(pc.invert(pc.is_in(positions, value_set=local.in_file)))
                # It stays one file, even if that becomes somewhat larger than the target size.
                writer.write(rows, may_roll=False)
            return tuple(writer.close()), count


def read_rows(parquet: pq.ParquetFile, schema: pa.Schema, group: int | None = None) -> pa.Table:
    """Read columns with the table's current names and types, matched by field id.

    Args:
        parquet: the file.
        schema: the columns, with field ids.
        group: the row group; None for all.

    Raises:
        ColumnError: the file has a value that the table's type does not include.
    """
    names = {field_id(field): field.name for field in schema}
    stored = {field.name: field_id(field) for field in parquet.schema_arrow}
    current_names = {name: names[number] for name, number in stored.items() if number in names}
    groups = range(parquet.metadata.num_row_groups) if group is None else [group]
    if not current_names:
        # All columns were added after the file was written.
        count = sum(parquet.metadata.row_group(g).num_rows for g in groups)
        return pa.Table.from_arrays([pa.nulls(count, f.type) for f in schema], schema=schema)
    rows = parquet.read_row_groups(list(groups), columns=list(current_names))
    rows = rows.rename_columns([current_names[name] for name in rows.column_names])
    return pa.Table.from_batches([conform(b, schema) for b in rows.to_batches()], schema)


def require_ids(parquet: pq.ParquetFile, schema: pa.Schema) -> None:
    """Check that a file has field ids, and that its nested fields are fields of the table.

    They are read by name, and fields that were added since are null.

    Args:
        parquet: the file.
        schema: of the table's files, with field ids.

    Raises:
        NotByRewriting: they are not.
    """
    ids = {field_id(field): nested_ids(field) for field in schema}
    for field in parquet.schema_arrow:
        if field_id(field) is None:
            raise NotByRewriting("a file of the table has no field ids")
        if not set(nested_ids(field)) <= set(ids.get(field_id(field), nested_ids(field))):
            raise NotByRewriting(
                f"the fields of the nested column `{field.name}` have changed since a file was "
                "written"
            )


# How often a task tries to process a file that the storage refuses.
TRIES = 3
# A task's result of each file.
TASK_RESULT = pa.schema(
    [
        ("location", pa.string()),
        ("matched", pa.list_(pa.int64())),
        ("changed", pa.int64()),
        ("deleted", pa.int64()),
        (
            "new_files",
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
    """Run a task of Spark.

    Args:
        merge: the merge.
        batches: candidates.
        attempt: Spark's number of the attempt, from 0.

    Yields:
        The candidates' results, as TASK_RESULT.
    """
    for batch in batches:
        for candidate in batch.to_pylist():
            result = {"location": candidate["location"], "attempt": attempt}
            result |= run_with_retries(partial(_result, merge, Candidate(**candidate)))
            yield pa.RecordBatch.from_pylist([result], TASK_RESULT)


def _result(merge: FileMerge, candidate: Candidate) -> dict[str, Any]:
    result = vars(merge.run(candidate))
    new_files = [vars(file) for file in result["new_files"]]
    return result | {"matched": result["matched"].to_pylist(), "new_files": new_files}


def run_with_retries(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Process a file in a task, and return errors as a result.

    A failed task would leave files of other tasks behind, so the task itself retries.

    Args:
        work: processes the file and returns its result.

    Returns:
        The result, or the error's message as `refused` or `failed`.
    """
    for trial in range(1, TRIES + 1):
        try:
            return work()
        except NotByRewriting as error:
            return {"refused": str(error)}
        except ColumnError as error:
            return {"refused": error.clause}
        except OSError as error:
            if trial == TRIES:
                return {"failed": str(error)}
            time.sleep(trial)
    raise AssertionError


def read_task_result(row: Mapping[str, Any]) -> Rewritten:
    """Parse a task's result of a file.

    Args:
        row: a row of TASK_RESULT.

    Raises:
        NotByRewriting: the file cannot be rewritten.
        OSError: the file is damaged, or the storage refuses it.
    """
    raise_task_error(row)
    new_files = tuple(WrittenFile(**file) for file in row["new_files"])
    matched = pa.array(row["matched"], pa.int64())
    return Rewritten(row["location"], matched, row["changed"], row["deleted"], new_files)


def raise_task_error(row: Mapping[str, Any]) -> None:
    """Raise the error in a task's result, if there is one.

    Args:
        row: the result, with `failed` and `refused`.

    Raises:
        NotByRewriting: the file cannot be rewritten.
        OSError: the file is damaged, or the storage refuses it.
    """
    if row["failed"] is not None:
        raise OSError(row["failed"])
    if row["refused"] is not None:
        raise NotByRewriting(row["refused"])


def sweep_beside(
    filesystem: fs.FileSystem,
    paths: Iterable[str],
    prefix: str,
    keep: Iterable[WrittenFile] = (),
) -> None:
    """Remove files whose names have a prefix, in the folders of other files.

    Args:
        filesystem: of the files.
        paths: paths of the other files.
        prefix: of the names.
        keep: files that stay.
    """
    names = {file.location.rsplit("/", 1)[1] for file in keep}
    for folder in {path.rsplit("/", 1)[0] for path in paths}:
        with contextlib.suppress(OSError):
            for info in filesystem.get_file_info(fs.FileSelector(folder)):
                if info.base_name.startswith(prefix) and info.base_name not in names:
                    filesystem.delete_file(info.path)


def _by_group(parquet: pq.ParquetFile, matches: Matches) -> Iterator[tuple[int, Matches]]:
    """Iterate over row groups and their matches, with positions in the row group."""
    begin = 0
    for group in range(parquet.metadata.num_row_groups):
        end = begin + parquet.metadata.row_group(group).num_rows
        inside = pc.and_(pc.greater_equal(matches.in_file, begin), pc.less(matches.in_file, end))
        in_group = matches.only(inside)
        yield group, Matches(pc.subtract(in_group.in_file, begin), in_group.in_source)
        begin = end
