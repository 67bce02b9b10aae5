"""Rewrite data files without some of their rows, for readers that refuse delete files.

Worker code: it imports the standard library, PyArrow and other worker code only. It runs in this
process, or is shipped to Spark's tasks by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.tables.files.parquet import (
    ParquetOptions,
    WrittenFile,
    writer_beside,
)
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import (
    raise_task_error,
    read_rows,
    require_ids,
    run_with_retries,
    sweep_beside,
)

# Columns that rows of format version 3 keep in a rewritten file (Iceberg spec, "Row Lineage").
ROW_ID, LAST_UPDATED = "_row_id", "_last_updated_sequence_number"


@dataclass(frozen=True)
class RowsToRemove:
    """A data file and the rows to remove from it.

    Attributes:
        location: the file's location in the table's metadata.
        path: the file's path on the filesystem.
        rows: positions, from 0, of the rows to remove.
        first_row_id: the file's first row id, for rows that do not store their id.
        sequence_number: the file's sequence number, for rows that do not store one.
    """

    location: str
    path: str
    rows: pa.Int64Array
    first_row_id: int | None = None
    sequence_number: int | None = None


@dataclass(frozen=True)
class RowRemoval:
    """Rewrites data files without some of their rows, row group by row group.

    Attributes:
        filesystem: the filesystem with the files.
        schema: current schema of the table's files, with field ids; in format version 3 with the
            columns of row lineage.
        options: Parquet options of new files.
        write_id: id of the write, in the names of new files.
    """

    filesystem: fs.FileSystem
    schema: pa.Schema
    options: ParquetOptions
    write_id: str

    def run(self, item: RowsToRemove) -> WrittenFile | None:
        """Write a copy of a file without the rows, in the same folder.

        Args:
            item: the file and the rows.

        Returns:
            The new file; None if no row is left.

        Raises:
            NotByRewriting: the file lacks field ids.
            ColumnError: a value of the file does not fit the table's type.
            OSError: the file is damaged, or the storage refuses; names the file.
        """
        try:
            opened = self.filesystem.open_input_file(item.path)
            with opened, pq.ParquetFile(opened) as parquet:
                require_ids(parquet, self.schema)
                return self._write(parquet, item)
        except (OSError, pa.ArrowException) as error:
            raise OSError(f"{item.location}: {error}") from error

    def sweep(self, items: Iterable[RowsToRemove], keep: Iterable[WrittenFile | None] = ()) -> None:
        """Remove all files that this write created beside the data files.

        Args:
            items: the data files.
            keep: new files that stay.
        """
        files = [file for file in keep if file is not None]
        sweep_beside(self.filesystem, [item.path for item in items], self._prefix, files)

    @property
    def _prefix(self) -> str:
        return f"stream-{self.write_id}-rest-"

    def _write(self, parquet: pq.ParquetFile, item: RowsToRemove) -> WrittenFile | None:
        writer = writer_beside(
            self.filesystem, self.schema, self.options, item.location, item.path, self._prefix
        )
        with writer:
            for rows in remaining_rows(parquet, self.schema, item):
                writer.write(rows, may_roll=False)
            return next(iter(writer.close()), None)


def remaining_rows(
    parquet: pq.ParquetFile, schema: pa.Schema, item: RowsToRemove
) -> Iterator[pa.Table]:
    """Read a data file without some of its rows, row group by row group.

    Args:
        parquet: the file.
        schema: of the new file; in format version 3 with the columns of row lineage.
        item: the file and the rows to leave out.

    Raises:
        ColumnError: a value of the file does not fit the table's type.
    """
    begin = 0
    for group in range(parquet.metadata.num_row_groups):
        count = parquet.metadata.row_group(group).num_rows
        positions = pa.arange(begin, begin + count)
        mask = pc.invert(pc.is_in(positions, value_set=item.rows))
        if pc.any(mask).as_py():
            rows = read_rows(parquet, schema, group)
            yield _with_lineage(rows, schema, positions, item).filter(mask)
        begin += count


def _with_lineage(
    rows: pa.Table, schema: pa.Schema, positions: pa.Int64Array, item: RowsToRemove
) -> pa.Table:
    """Return rows with the row ids and sequence numbers that they inherit from their file."""
    if ROW_ID not in schema.names or item.first_row_id is None:
        return rows
    inherited = {
        ROW_ID: pc.add(positions, item.first_row_id),
        LAST_UPDATED: pa.repeat(pa.scalar(item.sequence_number, pa.int64()), len(positions)),
    }
    for name, values in inherited.items():
        index = schema.get_field_index(name)
        rows = rows.set_column(index, schema.field(name), pc.coalesce(rows[name], values))
    return rows


ROWS_TO_REMOVE = pa.schema(
    [
        ("location", pa.string()),
        ("path", pa.string()),
        ("rows", pa.list_(pa.int64())),
        ("first_row_id", pa.int64()),
        ("sequence_number", pa.int64()),
    ]
)
# A row that a task returns for each file; it has no location if no row of the file is left.
TASK_RESULT = pa.schema(
    [
        ("replaced", pa.string()),
        ("location", pa.string()),
        ("size", pa.int64()),
        ("footer", pa.binary()),
        ("row_groups", pa.int32()),
        ("refused", pa.string()),
        ("failed", pa.string()),
        ("attempt", pa.int32()),
    ]
)


def run_task(
    removal: RowRemoval, batches: Iterable[pa.RecordBatch], attempt: int = 0
) -> Iterator[pa.RecordBatch]:
    """Rewrite files in a task of Spark.

    Args:
        removal: rewrites the files.
        batches: rows of ROWS_TO_REMOVE.
        attempt: the number of the task's attempt, from 0.

    Yields:
        Rows of TASK_RESULT.
    """
    for batch in batches:
        for item in read_rows_to_remove(batch):
            result = {"replaced": item.location, "attempt": attempt}
            result |= run_with_retries(partial(_file_fields, removal, item))
            yield pa.RecordBatch.from_pylist([result], TASK_RESULT)


def read_rows_to_remove(batch: pa.RecordBatch) -> Iterator[RowsToRemove]:
    """Yield the files in rows of `ROWS_TO_REMOVE`.

    Args:
        batch: the rows.
    """
    for number, row in enumerate(batch.drop_columns(["rows"]).to_pylist()):
        yield RowsToRemove(rows=batch["rows"][number].values, **row)


def _file_fields(removal: RowRemoval, item: RowsToRemove) -> dict[str, Any]:
    file = removal.run(item)
    return vars(file) if file is not None else {}


def read_task_result(row: Mapping[str, Any]) -> WrittenFile | None:
    """Return the new file that a task has written.

    Args:
        row: a row of TASK_RESULT.

    Returns:
        The file; None if no row of the old file is left.

    Raises:
        NotByRewriting, OSError: as for `raise_task_error`.
    """
    raise_task_error(row)
    if row["location"] is None:
        return None
    return WrittenFile(**{name: row[name] for name in ("location", "size", "footer", "row_groups")})
