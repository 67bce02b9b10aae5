"""A data file without some of its rows, for readers that refuse deletes.

Worker code: the standard library, PyArrow and other worker code. It runs in this process, or is
shipped to Spark's tasks by value.
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

# What rows of format version 3 take along to another file (spec, "Row Lineage").
ROW_ID, LAST_UPDATED = "_row_id", "_last_updated_sequence_number"


@dataclass(frozen=True)
class Loss:
    """A data file that loses rows.

    Attributes:
        location: of the file, as the table names it; `path` is the same on the filesystem.
        rows: positions (from 0) of the rows that go.
        first_row_id, sequence_number: the file's, for rows that do not tell their own.
    """

    location: str
    path: str
    rows: pa.Int64Array
    first_row_id: int | None = None
    sequence_number: int | None = None


@dataclass(frozen=True)
class RowRemoval:
    """Writes files without rows, row group by row group.

    Attributes:
        filesystem: where the files are.
        schema: of the table's files as they are now, with field ids; rows of format version 3 have
            their lineage in it.
        options: of new files.
        write_id: of the write, in the names of new files.
    """

    filesystem: fs.FileSystem
    schema: pa.Schema
    options: ParquetOptions
    write_id: str

    def run(self, loss: Loss) -> WrittenFile | None:
        """The file anew, beside the one that is there; None if no row is left.

        Raises:
            NotByRewriting: the file is not as it must be.
            ColumnError: it holds what the table cannot.
            OSError: the file is damaged, or the storage refuses; names the file.
        """
        try:
            opened = self.filesystem.open_input_file(loss.path)
            with opened, pq.ParquetFile(opened) as parquet:
                require_ids(parquet, self.schema)
                return self._write(parquet, loss)
        except (OSError, pa.ArrowException) as error:
            raise OSError(f"{loss.location}: {error}") from error

    def sweep(self, losses: Iterable[Loss], kept: Iterable[WrittenFile | None] = ()) -> None:
        """Remove whatever was put beside the files, known or not, but for what is kept."""
        files = [file for file in kept if file is not None]
        sweep_beside(self.filesystem, [loss.path for loss in losses], self._prefix, files)

    @property
    def _prefix(self) -> str:
        return f"stream-{self.write_id}-rest-"

    def _write(self, parquet: pq.ParquetFile, loss: Loss) -> WrittenFile | None:
        writer = writer_beside(
            self.filesystem, self.schema, self.options, loss.location, loss.path, self._prefix
        )
        begin = 0
        with writer:
            for group in range(parquet.metadata.num_row_groups):
                count = parquet.metadata.row_group(group).num_rows
                places = pa.array(range(begin, begin + count), pa.int64())
                kept = pc.invert(pc.is_in(places, value_set=loss.rows))
                if pc.any(kept).as_py():
                    rows = self._with_lineage(read_rows(parquet, self.schema, group), places, loss)
                    writer.write(rows.filter(kept), may_roll=False)
                begin += count
            return next(iter(writer.close()), None)

    def _with_lineage(self, rows: pa.Table, places: pa.Int64Array, loss: Loss) -> pa.Table:
        """Rows with what they have inherited from their file until now."""
        if ROW_ID not in self.schema.names or loss.first_row_id is None:
            return rows
        inherited = {
            ROW_ID: pc.add(places, loss.first_row_id),
            LAST_UPDATED: pa.repeat(pa.scalar(loss.sequence_number, pa.int64()), len(places)),
        }
        for name, values in inherited.items():
            at = self.schema.get_field_index(name)
            told = pc.coalesce(rows[name], values)
            rows = rows.set_column(at, self.schema.field(name), told)
        return rows


LOSSES = pa.schema(
    [
        ("location", pa.string()),
        ("path", pa.string()),
        ("rows", pa.list_(pa.int64())),
        ("first_row_id", pa.int64()),
        ("sequence_number", pa.int64()),
    ]
)
# What a task says of each file; without a location, no row is left.
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
    """A task of Spark: losses come in, the files that take their place go out."""
    for batch in batches:
        for loss in losses_of(batch):
            said = {"replaced": loss.location, "attempt": attempt}
            said |= run_with_retries(partial(_done, removal, loss))
            yield pa.RecordBatch.from_pylist([said], TASK_RESULT)


def losses_of(batch: pa.RecordBatch) -> Iterator[Loss]:
    """The losses that a table of them holds."""
    for number, row in enumerate(batch.drop_columns(["rows"]).to_pylist()):
        yield Loss(rows=batch["rows"][number].values, **row)


def _done(removal: RowRemoval, loss: Loss) -> dict[str, Any]:
    made = removal.run(loss)
    return vars(made) if made is not None else {}


def read_task_result(row: Mapping[str, Any]) -> WrittenFile | None:
    """What a task said of a file; raises as `raise_task_error`."""
    raise_task_error(row)
    if row["location"] is None:
        return None
    return WrittenFile(**{name: row[name] for name in ("location", "size", "footer", "row_groups")})
