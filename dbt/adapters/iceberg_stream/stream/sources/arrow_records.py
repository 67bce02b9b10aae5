"""Decode messages whose schemas are in a registry without Spark, if the query only picks columns.

A reader of each format returns the records of messages as Spark reads them, or leaves the batch to
Spark, which decides what is a bad record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow_debezium import (
    deletes,
    is_of_row,
    of_image,
)
from dbt.adapters.iceberg_stream.stream.sources.schema_columns import widened
from dbt.adapters.iceberg_stream.stream.sources.schema_format import Writer
from dbt.adapters.iceberg_stream.stream.sources.schema_types import (
    Items,
    Node,
    Nullable,
    SchemaError,
    Struct,
    unwrap,
)
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR, ROW_DELETED
from dbt.adapters.iceberg_stream.stream.sources.wire_format import HEADER_BYTES, MAGIC_BYTES

# The operation of a change, until all schemas of a batch are decoded.
OPERATION = "__operation"


class RecordReader(Protocol):
    """Reads messages that have the same schema."""

    def read(self, messages: pa.BinaryArray) -> pa.StructArray:
        """Return their records, whose fields have names of their positions.

        Args:
            messages: the messages, with their headers.

        Raises:
            ArrowFallback, ArrowException, ValueError: a message may be bad.
        """


@dataclass(frozen=True)
class ReadableWriter:
    """Schemas that are read in the same way; see `schema_format.Writer`.

    Attributes:
        reader: reads the messages.
        record: the type of the messages.
        row: the type of the rows in them.
    """

    reader: RecordReader
    record: Struct
    row: Struct


@dataclass(frozen=True)
class RecordDecoder:
    """Decodes the messages of a batch.

    Attributes:
        columns: that their records become.
        writers: the schemas, by the headers of their messages.
    """

    columns: t.StructType
    writers: Mapping[bytes, ReadableWriter]

    @property
    def schema(self) -> pa.Schema:
        """The columns in Arrow."""
        return to_arrow_schema(self.columns)

    def decode(
        self, messages: Iterable[pa.RecordBatch], columns: Mapping[str, str]
    ) -> Iterator[pa.RecordBatch]:
        """Decode messages to columns, with MAJOR and MINOR, and ROW_DELETED for Debezium's.

        Args:
            messages: batches with the columns `value` (binary) and `offset` (int64).
            columns: the row's column for each column to return.

        Raises:
            ArrowFallback: a message may be bad.
        """
        picked = [(name, self.columns[column]) for name, column in columns.items()]
        for batch in messages:
            if not batch.num_rows:
                continue
            try:
                rows = self._rows(batch["value"], picked)
            except (pa.ArrowException, ValueError) as error:
                raise ArrowFallback from error
            major = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
            rows = rows.append_column(MAJOR, major).append_column(MINOR, batch["offset"])
            if OPERATION in rows.schema.names:
                rows = _changes_of_rows(rows)
            yield from rows.combine_chunks().to_batches()

    def _rows(
        self, values: pa.BinaryArray, picked: Sequence[tuple[str, t.StructField]]
    ) -> pa.Table:
        headers = pc.binary_slice(values, 0, HEADER_BYTES).dictionary_encode()
        present = headers.dictionary.to_pylist()
        if not self.writers.keys() >= set(present):
            raise ArrowFallback
        writers = [self.writers[header] for header in present]
        distinct = list(dict.fromkeys(writers))
        if len(distinct) == 1:
            return _decoded(distinct[0], values, picked)
        numbers = np.array([distinct.index(writer) for writer in writers])
        of_writer = numbers[headers.indices.to_numpy()]
        places = [np.flatnonzero(of_writer == number) for number in range(len(distinct))]
        parts = [
            _decoded(writer, values.take(pa.array(place)), picked)
            for writer, place in zip(distinct, places, strict=True)
        ]
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(places))))


def _decoded(
    writer: ReadableWriter, values: pa.BinaryArray, picked: Sequence[tuple[str, t.StructField]]
) -> pa.Table:
    """Return the columns of messages that have the same schema, and OPERATION for Debezium's."""
    record = writer.reader.read(values)
    if writer.record == writer.row:
        return pa.table({name: _column(record, writer.row, field) for name, field in picked})
    before, after, operations = (
        record.field(writer.record.members[name][0]) for name in ("before", "after", "op")
    )
    deleted = deletes(operations)
    columns = {}
    for name, field in picked:
        old, new = (_column(image, writer.row, field) for image in (before, after))
        columns[name] = of_image(deleted, old, new)
    return pa.table({**columns, OPERATION: operations})


def _changes_of_rows(rows: pa.Table) -> pa.Table:
    """Return rows with ROW_DELETED in place of OPERATION."""
    operations = rows[OPERATION]
    deleted = rows.drop_columns([OPERATION]).append_column(ROW_DELETED, deletes(operations))
    return deleted.filter(is_of_row(operations))


def _column(record: pa.StructArray, node: Struct, column: t.StructField) -> pa.Array:
    """Return a column of records; it is null if they lack it, or are null."""
    member = node.members.get(column.name.lower())
    if member is None:
        return pa.nulls(len(record), to_arrow_type(column.dataType))
    name, kind = member
    return _widened(pc.struct_field(record, name), kind, column.dataType)


def _widened(array: pa.Array, node: Node, target: t.DataType) -> pa.Array:
    """Return values with the type of a column."""
    if isinstance(node, Nullable):
        return _widened(array, node.node, target)
    kind, absent = to_arrow_type(target), array.is_null() if array.null_count else None
    if isinstance(node, Struct):
        assert isinstance(target, t.StructType)
        children = [_column(array, node, field) for field in target.fields]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)
    if isinstance(node, Items):
        if isinstance(target, t.MapType):
            items = _widened(array.items, node.node, target.valueType)
            arrays = array.offsets, array.keys, items
            return pa.MapArray.from_arrays(*arrays, type=kind, mask=absent)
        assert isinstance(target, t.ArrayType)
        items = _widened(array.values, node.node, target.elementType)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=absent)
    return array.cast(kind)


def headers(writer: Writer) -> list[bytes]:
    """Return the headers of the messages of schemas.

    Args:
        writer: the schemas.
    """
    return [MAGIC_BYTES + number.to_bytes(HEADER_BYTES - 1, "big") for number in writer.ids]


def has_text_operation(writer: Writer) -> bool:
    """Return whether messages are rows, or Debezium's with a text as their operation.

    Args:
        writer: the schemas.
    """
    if writer.record == writer.row:
        return True
    operation = unwrap(writer.record.members["op"][1])
    return operation is not None and operation.column == t.StringType()


def is_wider(kind: t.DataType, target: t.DataType) -> bool:
    """Return whether a column takes all values of a type as they are.

    Args:
        kind: the type.
        target: the column's type.
    """
    try:
        return widened(kind, target) == target
    except SchemaError:
        return False


def require_distinct_keys(maps: pa.MapArray) -> None:
    """Check that no map has a key twice: Spark takes the last one.

    Args:
        maps: the maps.

    Raises:
        ArrowFallback: one has.
    """
    keys = maps.keys.dictionary_encode()
    numbers = keys.indices.to_numpy().astype(np.int64)
    lengths = np.diff(maps.offsets.to_numpy(zero_copy_only=False))
    numbers += np.repeat(np.arange(len(maps)), lengths) * len(keys.dictionary)
    if len(np.unique(numbers)) < len(numbers):
        raise ArrowFallback
