"""Decode messages whose schemas are in a registry without Spark, if the query only picks columns.

A reader of each format returns the records of messages as Spark reads them, or leaves the batch to
Spark, which decides what is a bad record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.debezium import (
    deletes,
    is_of_row,
    of_image,
    require_rows,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import widened
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_format import Writer
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Nullable,
    SchemaError,
    Struct,
    unwrap,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import (
    HEADER_BYTES,
    schema_header,
    schema_id,
)
from dbt.adapters.iceberg_stream.stream.sources.source import (
    MAJOR,
    MINOR,
    ROW_DELETED,
    OnSkip,
)

# Returns whether messages with the id of a schema are of another record type, and skipped.
IsOther = Callable[[int], bool]
# The operation of a change, until all schemas of a batch are decoded.
OPERATION = "__stream_operation"


def never(number: int) -> bool:
    """Return that messages with the id of a schema are not skipped."""
    return False


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
        others: what follows the header of messages of other record types, which are skipped.
    """

    reader: RecordReader
    record: Struct
    row: Struct
    others: tuple[bytes, ...] = ()

    def is_own(self, messages: pa.BinaryArray) -> np.ndarray | None:
        """Return which messages are not of other record types; None if all are.

        Args:
            messages: messages of the schemas.
        """
        if not self.others:
            return None
        bodies = pc.binary_slice(messages, HEADER_BYTES, HEADER_BYTES + max(map(len, self.others)))
        is_other = np.zeros(len(messages), np.bool_)
        for prefix in self.others:
            has_prefix = pc.starts_with(bodies, pattern=prefix)
            is_other |= has_prefix.to_numpy(zero_copy_only=False)
        return ~is_other if is_other.any() else None


@dataclass(frozen=True)
class RecordDecoder:
    """Decodes the messages of a batch.

    Attributes:
        columns: that their records become.
        writers: the schemas, by the headers of their messages.
        is_other: returns whether messages with the id of another schema are skipped.
        nulls: messages that are left out, as those without a value are.
        key: columns that identify a row.
    """

    columns: t.StructType
    writers: Mapping[bytes, ReadableWriter]
    is_other: IsOther = never
    nulls: tuple[bytes, ...] = ()
    key: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The columns in Arrow."""
        return to_arrow_schema(self.columns)

    def decode(
        self,
        messages: Iterable[pa.RecordBatch],
        columns: Mapping[str, str],
        on_skip: OnSkip = lambda count: None,
    ) -> Iterator[pa.RecordBatch]:
        """Decode messages to columns, with MAJOR and MINOR, and ROW_DELETED for Debezium's.

        Args:
            messages: batches with the columns `value` (binary) and `offset` (int64).
            columns: the row's column for each column to return.
            on_skip: counts the messages that are skipped, because they are of other record types.

        Raises:
            ArrowFallback: a message may be bad.
        """
        picked = [(name, self.columns[column]) for name, column in columns.items()]
        for batch in map(self._with_values, messages):
            if not batch.num_rows:
                continue
            try:
                places, parts = self._parts(batch["value"], picked)
            except (pa.ArrowException, ValueError) as error:
                raise ArrowFallback from error
            on_skip(batch.num_rows - len(places))
            if not len(places):
                continue
            rows, offsets = pa.concat_tables(parts), batch["offset"]
            if len(parts) > 1:
                order = np.argsort(places)
                rows, places = rows.take(pa.array(order)), places[order]
            if len(places) < batch.num_rows:
                offsets = offsets.take(pa.array(places))
            major = pa.repeat(pa.scalar(0, pa.int64()), len(places))
            rows = rows.append_column(MAJOR, major).append_column(MINOR, offsets)
            if OPERATION in rows.schema.names:
                rows = _changes_of_rows(rows)
            yield from rows.combine_chunks().to_batches()

    def _with_values(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the messages that are not null."""
        if not self.nulls:
            return batch
        # The first bytes of a longer message are no null.
        begins = pc.binary_slice(batch["value"], 0, max(map(len, self.nulls)) + 1)
        is_null = pc.is_in(begins, pa.array(self.nulls, pa.binary()))
        return batch.filter(pc.invert(is_null)) if pc.any(is_null).as_py() else batch

    def _parts(
        self, values: pa.BinaryArray, picked: Sequence[tuple[str, t.StructField]]
    ) -> tuple[np.ndarray, list[pa.Table]]:
        """Return the rows of the messages of each schema, and the places of all of them."""
        places, parts = [np.empty(0, np.int64)], []
        for writer, own in self._places(values):
            messages = values if len(own) == len(values) else values.take(pa.array(own))
            if (is_own := writer.is_own(messages)) is not None:
                own, messages = own[is_own], messages.filter(pa.array(is_own))
            if len(own):
                places.append(own)
                parts.append(_decoded(writer, messages, picked, self.key))
        return np.concatenate(places), parts

    def _places(self, values: pa.BinaryArray) -> Iterator[tuple[ReadableWriter, np.ndarray]]:
        """Yield the places of the messages of each schema that is read."""
        headers = pc.binary_slice(values, 0, HEADER_BYTES).dictionary_encode()
        present = [self._writer(header) for header in headers.dictionary.to_pylist()]
        distinct = [writer for writer in dict.fromkeys(present) if writer is not None]
        if present == distinct[:1]:
            yield distinct[0], np.arange(len(values))
            return
        numbers = np.array([-1 if w is None else distinct.index(w) for w in present], np.int64)
        of_writer = numbers[headers.indices.to_numpy()]
        for number, writer in enumerate(distinct):
            yield writer, np.flatnonzero(of_writer == number)

    def _writer(self, header: bytes) -> ReadableWriter | None:
        """Return the schema of a header; None if its messages are skipped."""
        if header in self.writers:
            return self.writers[header]
        number = schema_id(header)
        if number is None or not self.is_other(number):
            raise ArrowFallback
        return None


def _decoded(
    writer: ReadableWriter,
    values: pa.BinaryArray,
    picked: Sequence[tuple[str, t.StructField]],
    key: Sequence[str],
) -> pa.Table:
    """Return the columns of messages that have the same schema, and OPERATION for Debezium's."""
    record = writer.reader.read(values)
    if writer.record == writer.row:
        return pa.table({name: _column(record, writer.row, field) for name, field in picked})
    before, after, operations = (
        record.field(writer.record.members[name][0]) for name in ("before", "after", "op")
    )
    members = writer.row.members
    own = [members[name.lower()][0] for name in key if name.lower() in members]
    require_rows(operations, before, after, own)
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


def converted(
    array: pa.Array, node: Node, scalars: Callable[[pa.Array, Node], pa.Array]
) -> pa.Array:
    """Return values with Spark's types; the fields of structs are named by their positions.

    Args:
        array: the values.
        node: their type.
        scalars: converts values without parts.

    Raises:
        ArrowFallback, ArrowException, ValueError: a value may be bad.
    """
    if isinstance(node, Nullable):
        return converted(array, node.node, scalars)
    absent = array.is_null() if array.null_count else None
    if isinstance(node, Struct):
        names, nodes = zip(*node.members.values(), strict=True)
        parts = zip(array.flatten(), nodes, strict=True)
        children = [converted(part, kind, scalars) for part, kind in parts]
        return pa.StructArray.from_arrays(children, names, mask=absent)
    if isinstance(node, Items):
        if not node.is_map:
            items = converted(array.values, node.node, scalars)
            return pa.ListArray.from_arrays(array.offsets, items, mask=absent)
        array.keys.validate(full=True)
        require_distinct_keys(array)
        items = converted(array.items, node.node, scalars)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, mask=absent)
    return scalars(array, node)


def micros_of_nanos(nanos: pa.Int64Array) -> pa.Int64Array:
    """Return times in microseconds, rounded down.

    Args:
        nanos: the times in nanoseconds.
    """
    micros = nanos.fill_null(0).to_numpy() // 1000
    return pa.array(micros, mask=nanos.is_null().to_numpy(zero_copy_only=False))


def headers(writer: Writer) -> list[bytes]:
    """Return the headers of the messages of schemas.

    Args:
        writer: the schemas.
    """
    return list(map(schema_header, writer.ids))


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
