"""Read rows of data and delete files as changes, in Spark's tasks.

Worker code: it imports the standard library, PyArrow and other worker code only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.tables.files.projection import (
    project,
    with_constants,
    without_defaults,
)
from dbt.adapters.iceberg_stream.tables.files.reader import (
    CONSTANTS,
    NotByRewriting,
    require_ids,
    row_numbers,
    stored_names,
)

ROWS = 10_000
# The input of a task: a row for each piece of a file.
PIECE = pa.schema(
    [
        ("location", pa.string()),
        ("path", pa.string()),
        ("deleted", pa.bool_()),
        ("major", pa.int64()),
        ("minor", pa.int64()),
        ("positions", pa.list_(pa.int64())),
        ("takes", pa.bool_()),
        ("only_keys", pa.bool_()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("snapshot", pa.int64()),
        ("constants", CONSTANTS),
    ]
)
CHANGE_TYPE = pa.struct(
    [
        ("major", pa.int64()),
        ("minor", pa.int64()),
        ("deleted", pa.bool_()),
        ("truncated", pa.bool_()),
    ]
)


class Unreadable(Exception):
    """A file of the source is missing, damaged, or has other columns than the table."""


@dataclass(frozen=True)
class FileRows:
    """Reads pieces of a table's files.

    Attributes:
        filesystem: where the files are.
        schema: current schema of the table's files, with field ids.
        output: the columns to return, with Spark's types, then the change and its snapshot.
    """

    filesystem: fs.FileSystem
    schema: pa.Schema
    output: pa.Schema

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read pieces in a task of Spark.

        Args:
            batches: rows of PIECE.

        Yields:
            The changes, with the columns of `output`.

        Raises:
            Unreadable: a file is missing or damaged, or has no field ids.
        """
        for batch in batches:
            for index in range(batch.num_rows):
                piece = {name: batch[name][index] for name in PIECE.names}
                location = piece["location"].as_py()
                try:
                    yield from self._rows(piece)
                except FileNotFoundError as error:
                    raise Unreadable(
                        f"The file {location} is gone: it was removed before this stream read it. "
                        "Rebuild the table with --full-refresh."
                    ) from error
                except (OSError, ValueError, pa.ArrowException, NotByRewriting) as error:
                    raise Unreadable(f"The file {location} cannot be read: {error}") from error

    def _rows(self, piece: dict[str, pa.Scalar]) -> Iterator[pa.RecordBatch]:
        path, takes = piece["path"].as_py(), piece["takes"].as_py()
        positions = piece["positions"].values
        opened = self.filesystem.open_input_file(path)
        with opened, pq.ParquetFile(opened) as parquet:
            require_ids(parquet)
            # Without a column, PyArrow does not return the number of rows.
            names = stored_names(parquet, self.schema) or parquet.schema_arrow.names[:1]
            first, end = piece["begin"].as_py() or 0, piece["end"].as_py()
            end = parquet.metadata.num_rows if end is None else end
            only = positions if takes else None
            for begin, rows in _batches(parquet, names, only, first, end):
                row_positions = pc.add(row_numbers(rows.num_rows), begin)
                in_piece = pc.is_in(row_positions, value_set=positions)
                mask = in_piece if takes else pc.invert(in_piece)
                yield self._changes(rows.filter(mask), row_positions.filter(mask), piece)

    def _changes(
        self, rows: pa.RecordBatch, row_positions: pa.Array, piece: dict[str, pa.Scalar]
    ) -> pa.RecordBatch:
        count = rows.num_rows
        # An equality delete has no other columns of the row than its key.
        only_keys = piece["only_keys"].as_py()
        schema = (
            without_defaults(self.schema)
            if only_keys
            else with_constants(self.schema, piece["constants"].as_py())
        )
        fitted = project(pa.Table.from_batches([rows]), schema)
        columns = [
            _to_spark_type(fitted[field.name].combine_chunks(), field.type)
            if field.name in schema.names
            else pa.nulls(count, field.type)
            for field in list(self.output)[:-2]
        ]
        deleted, first = piece["deleted"].as_py(), piece["minor"]
        minor = pa.repeat(first, count) if deleted else pc.add(row_positions, first)
        change = [
            pa.repeat(piece["major"], count),
            minor,
            pa.repeat(piece["deleted"], count),
            pa.repeat(pa.scalar(False), count),
        ]
        struct = pa.StructArray.from_arrays(change, fields=list(CHANGE_TYPE))
        columns += [struct, pa.repeat(piece["snapshot"], count)]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)


def _batches(
    parquet: pq.ParquetFile, columns: list[str], only: pa.Array | None, first: int, last: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the position of the first row, and rows from `first` to before `last`.

    Row groups without rows of that range, or without some positions, are skipped.
    """
    begin = 0
    for group in range(parquet.metadata.num_row_groups):
        end = begin + parquet.metadata.row_group(group).num_rows
        is_wanted = begin < last and end > first
        if is_wanted and (only is None or _any_within(only, begin, end)):
            for batch in parquet.iter_batches(ROWS, row_groups=[group], columns=columns):
                skipped = max(first - begin, 0)
                rows = batch.slice(skipped, max(last - begin - skipped, 0))
                if rows.num_rows:
                    yield begin + skipped, rows
                begin += batch.num_rows
        begin = end


def _any_within(positions: pa.Array, begin: int, end: int) -> bool:
    inside = pc.and_(pc.greater_equal(positions, begin), pc.less(positions, end))
    return bool(pc.any(inside).as_py())


def _to_spark_type(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type == pa.uuid():
        texts = [None if v is None else str(uuid.UUID(bytes=v)) for v in array.storage.to_pylist()]
        return pa.array(texts, target)
    return array if array.type == target else array.cast(target)
