"""Read rows of data and delete files as changes, in Spark's tasks.

Worker code: it imports the standard library, PyArrow and other worker code only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.tables.files.casting import conform
from dbt.adapters.iceberg_stream.tables.files.field_ids import (
    field_id,
    nested_ids,
    with_names_of,
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
        defaults: initial defaults of columns that older files lack, as values of Spark's types.
    """

    filesystem: fs.FileSystem
    schema: pa.Schema
    output: pa.Schema
    defaults: Mapping[str, Any] = field(default_factory=dict)

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
                except (OSError, ValueError, pa.ArrowException) as error:
                    raise Unreadable(f"The file {location} cannot be read: {error}") from error

    def _rows(self, piece: dict[str, pa.Scalar]) -> Iterator[pa.RecordBatch]:
        path, takes = piece["path"].as_py(), piece["takes"].as_py()
        positions = piece["positions"].values
        opened = self.filesystem.open_input_file(path)
        with opened, pq.ParquetFile(opened) as parquet:
            fields = self._fields(parquet)
            first, end = piece["begin"].as_py() or 0, piece["end"].as_py()
            end = parquet.metadata.num_rows if end is None else end
            only = positions if takes else None
            for begin, rows in _batches(parquet, list(fields), only, first, end):
                row_positions = pa.array(range(begin, begin + rows.num_rows), pa.int64())
                in_piece = pc.is_in(row_positions, value_set=positions)
                mask = in_piece if takes else pc.invert(in_piece)
                renamed = _renamed(rows, [fields[name] for name in rows.schema.names])
                yield self._changes(renamed.filter(mask), row_positions.filter(mask), piece)

    def _fields(self, parquet: pq.ParquetFile) -> dict[str, pa.Field]:
        """Return a file's columns by their names, with the current names of the same field ids."""
        by_id = {field_id(field): field for field in self.schema}
        fields = {}
        for stored in parquet.schema_arrow:
            if field_id(stored) is None:
                raise ValueError("it has no field ids, like files that were imported")
            field = by_id.get(field_id(stored))
            if field is None:
                continue
            if not _has_same_fields(stored, field):
                raise ValueError(f"the nested column `{field.name}` has changed since")
            fields[stored.name] = with_names_of(stored, field)
        return fields

    def _changes(
        self, rows: pa.RecordBatch, row_positions: pa.Array, piece: dict[str, pa.Scalar]
    ) -> pa.RecordBatch:
        count = rows.num_rows
        fitted = conform(rows, self.schema)
        # An equality delete has no other columns of the row than its key.
        defaults = {} if piece["only_keys"].as_py() else self.defaults
        columns = [
            _to_spark_type(fitted[field.name], field.type)
            if field.name in rows.schema.names
            else _repeated(defaults.get(field.name), field.type, count)
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


def _has_same_fields(stored: pa.Field, current: pa.Field) -> bool:
    before, now = ([number for _, number in nested_ids(field)] for field in (stored, current))
    return before == now


def _renamed(rows: pa.RecordBatch, fields: list[pa.Field]) -> pa.RecordBatch:
    """Return rows with other names of columns and of nested fields, without a copy."""
    _, data = rows.__arrow_c_array__()
    return pa.RecordBatch._import_from_c_capsule(pa.schema(fields).__arrow_c_schema__(), data)


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


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _to_spark_type(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type == pa.uuid():
        texts = [None if v is None else str(uuid.UUID(bytes=v)) for v in array.storage.to_pylist()]
        return pa.array(texts, target)
    return array if array.type == target else array.cast(target)
