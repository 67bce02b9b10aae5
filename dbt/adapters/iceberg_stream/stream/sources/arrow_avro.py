"""Decode Avro messages by pyruhvro, if the query only picks their columns.

pyruhvro reads messages into Arrow's arrays, without an object for each value, in a fraction of the
time of Spark's `from_avro`. It reads physical types only, and bytes as text, which is encoded
alike: PyArrow makes the columns' types of them, and checks what pyruhvro does not, such as UTF-8.
If a message may be bad, Spark reads the whole batch: it decides what is a bad record. So does it if
a message is not what its record is encoded to: pyruhvro accepts integers that are padded or too
large, arrays of a negative length and bytes after the record.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from dbt.adapters.iceberg_stream.stream.sources.arrow_decimals import decimals
from dbt.adapters.iceberg_stream.stream.sources.avro_types import (
    CONVERTED,
    AvroScalar,
    NullUnion,
    Union,
    emit,
)
from dbt.adapters.iceberg_stream.stream.sources.schema_columns import widened
from dbt.adapters.iceberg_stream.stream.sources.schema_messages import MessageSchemas
from dbt.adapters.iceberg_stream.stream.sources.schema_types import (
    Items,
    Node,
    Nullable,
    Scalar,
    SchemaError,
    Struct,
    unwrap,
)
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR, ROW_DELETED
from dbt.adapters.iceberg_stream.stream.sources.wire_format import (
    HEADER_BYTES,
    MAGIC_BYTES,
    MAX_BYTES,
)

# The types that messages are read with, by their own types. Enums are read as they are.
PHYSICAL = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "string",
}
# Types whose numbers are milliseconds, as avro_types writes them.
MILLIS = {
    json.dumps({"type": "long", "logicalType": name})
    for name in ("timestamp-millis", "local-timestamp-millis")
}
# What avro_types writes for values that it converts in SQL, and PyArrow here.
NANOS = {CONVERTED["long", f"{prefix}timestamp-nanos"][1] for prefix in ("", "local-")}
ZONED = CONVERTED["string", "zoned-timestamp"][1]
# How Debezium writes a ZonedTimestamp. Spark reads other texts, too.
ZONED_TEXT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z$"
# The operation of a change, until all schemas of a batch are decoded.
OPERATION = "__operation"


@dataclass(frozen=True)
class _Writer:
    """Schemas that are read in the same way; see `schema_format.Writer`.

    Attributes:
        schema: the schema that a message is read with.
        record: the type of the messages.
        row: the type of the rows in them.
    """

    schema: str
    record: Struct
    row: Struct


@dataclass(frozen=True)
class AvroDecoder:
    """Decodes the messages of a batch.

    Attributes:
        columns: that their records become.
        writers: the schemas, by the headers of their messages.
    """

    columns: t.StructType
    writers: Mapping[bytes, _Writer]

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
    writer: _Writer, values: pa.BinaryArray, picked: Sequence[tuple[str, t.StructField]]
) -> pa.Table:
    """Return the columns of messages that have the same schema, and OPERATION for Debezium's."""
    from pyruhvro import deserialize_array, serialize_record_batch

    bodies = pc.binary_slice(values, HEADER_BYTES, MAX_BYTES)
    decoded = deserialize_array(bodies.to_pylist(), writer.schema)
    # All fields are converted: Spark refuses a message for any of them.
    record = _converted(decoded.to_struct_array(), writer.record)
    [encoded] = serialize_record_batch(decoded, writer.schema, 1)
    if not encoded.equals(bodies):
        raise ArrowFallback
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


def _converted(array: pa.Array, node: Node) -> pa.Array:
    """Return values as Spark's `from_avro` returns them; ValueError if it refuses one."""
    if isinstance(node, Nullable):
        return _converted(array, node.node)
    absent = array.is_null() if array.null_count else None
    if isinstance(node, Struct):
        names, nodes = zip(*node.members.values(), strict=True)
        children = [_converted(*child) for child in zip(array.flatten(), nodes, strict=True)]
        return pa.StructArray.from_arrays(children, names, mask=absent)
    if isinstance(node, Items):
        if not node.is_map:
            items = _converted(array.values, node.node)
            return pa.ListArray.from_arrays(array.offsets, items, mask=absent)
        array.keys.validate(full=True)
        _require_distinct_keys(array)
        items = _converted(array.items, node.node)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, mask=absent)
    assert isinstance(node, AvroScalar)
    return _scalars(array, node)


def _require_distinct_keys(maps: pa.MapArray) -> None:
    """Raise ArrowFallback if a map has a key twice: Spark takes the last one."""
    keys = maps.keys.dictionary_encode()
    numbers = keys.indices.to_numpy().astype(np.int64)
    lengths = np.diff(maps.offsets.to_numpy(zero_copy_only=False))
    numbers += np.repeat(np.arange(len(maps)), lengths) * len(keys.dictionary)
    if len(np.unique(numbers)) < len(numbers):
        raise ArrowFallback


def _scalars(array: pa.Array, node: AvroScalar) -> pa.Array:
    kind = to_arrow_type(node.column)
    if _primitive(node) == "bytes":
        array = array.view(pa.binary())
        return decimals(array, kind) if pa.types.is_decimal(kind) else array
    array.validate(full=True)
    if node.sql == ZONED:
        is_read = pc.match_substring_regex(array, ZONED_TEXT)
        if not pc.all(is_read, min_count=0).as_py():
            raise ArrowFallback
    elif node.sql in NANOS:
        micros = array.fill_null(0).to_numpy() // 1000
        array = pa.array(micros, mask=array.is_null().to_numpy(zero_copy_only=False))
    elif node.avro in MILLIS:
        array = array.cast(pa.timestamp("ms", kind.tz))
    return array.cast(kind)


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


def avro_decoder(schemas: MessageSchemas) -> AvroDecoder | None:
    """Return what decodes the messages of a batch.

    Args:
        schemas: the schemas of the messages.

    Returns:
        The decoder; None if pyruhvro is not installed, or a type cannot be decoded as Spark does.
    """
    try:
        from pyruhvro import avro_to_arrow_schema
    except ImportError:
        return None
    writers: dict[bytes, _Writer] = {}
    for writer in schemas.writers:
        if not _is_exact(writer.row, schemas.columns):
            return None
        if writer.record != writer.row and not _is_exact_envelope(writer.record):
            return None
        decoded = _Writer(_schema(writer.record), writer.record, writer.row)
        try:
            avro_to_arrow_schema(decoded.schema)
        except ValueError:
            return None  # such as an enum whose symbols Spark accepts only
        headers = [MAGIC_BYTES + number.to_bytes(HEADER_BYTES - 1, "big") for number in writer.ids]
        writers |= dict.fromkeys(headers, decoded)
    return AvroDecoder(schemas.columns, writers) if writers else None


def _is_exact(node: Node | None, target: t.DataType) -> bool:
    """Return whether values are decoded as Spark decodes and casts them."""
    if isinstance(node, NullUnion):
        return not node.union and node.null_at is not None and _is_exact(node.node, target)
    if isinstance(node, Struct):
        if isinstance(node, Union) or not node.fields or not isinstance(target, t.StructType):
            return False
        types = {field.name.lower(): field.dataType for field in target.fields}
        # Fields that become no column are decoded all the same.
        return all(
            part is not None and _is_exact(part, types.get(name.lower(), part.column))
            for name, part in node.fields
        )
    if isinstance(node, Items):
        part = target.valueType if isinstance(target, t.MapType) else target
        part = target.elementType if isinstance(target, t.ArrayType) else part
        is_alike = isinstance(target, t.MapType if node.is_map else t.ArrayType)
        return is_alike and not _grows(node.node) and _is_exact(node.node, part)
    if not isinstance(node, AvroScalar) or node.sql not in {Scalar.sql, ZONED, *NANOS}:
        return False
    if _primitive(node) not in {*PHYSICAL, "enum"}:
        return False
    return _is_wider(node.column, target)


def _is_exact_envelope(record: Struct) -> bool:
    """Return whether Debezium's messages are decoded as Spark decodes them."""
    operation = unwrap(record.members["op"][1])
    is_text = operation is not None and operation.column == t.StringType()
    return is_text and _is_exact(record, record.column)


def _is_wider(kind: t.DataType, target: t.DataType) -> bool:
    try:
        return widened(kind, target) == target
    except SchemaError:
        return False


def _grows(node: Node | None) -> bool:
    """Return whether a byte of a message may take any memory: as an enum, or as a null record."""
    if isinstance(node, Struct):
        return any(_grows(part) for _, part in node.fields)
    if isinstance(node, Nullable):
        return isinstance(node.node, Struct) or _grows(node.node)
    if isinstance(node, Items):
        return _grows(node.node)
    return isinstance(node, AvroScalar) and _primitive(node) == "enum"


def _primitive(node: AvroScalar) -> str:
    avro = json.loads(node.avro)
    return str(avro["type"] if isinstance(avro, dict) else avro)


def _schema(record: Struct) -> str:
    """Return the schema that a message is read with."""
    return json.dumps(_physical(record, itertools.count()))


def _physical(node: Node | None, names: Iterator[int]) -> Any:
    if isinstance(node, NullUnion):
        part = _physical(node.node, names)
        return [part, "null"] if node.null_at else ["null", part]
    if isinstance(node, Struct):
        fields = [
            {"name": name, "type": _physical(part, names)} for name, part in node.members.values()
        ]
        return {"type": "record", "name": f"n{next(names)}", "fields": fields}
    if isinstance(node, Items):
        form, part = ("map", "values") if node.is_map else ("array", "items")
        return {"type": form, part: _physical(node.node, names)}
    assert isinstance(node, AvroScalar)
    kind = _primitive(node)
    return emit(node, names) if kind == "enum" else PHYSICAL[kind]
