"""Decode Avro messages by pyruhvro, if the query only picks their columns.

pyruhvro reads messages into Arrow's arrays, without an object for each value, in a fraction of the
time of Spark's `from_avro`. It reads physical types only, and all integers as `long`: PyArrow makes
the columns' types of them, and checks what pyruhvro does not, such as the range of integers and
UTF-8. If a message may be bad, Spark reads the whole batch: it decides what is a bad record. So
does it if a message is not what its record is encoded to: pyruhvro accepts padded integers, arrays
of a negative length and bytes after the record.
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
from dbt.adapters.iceberg_stream.stream.sources.avro_types import (
    AvroScalar,
    NullUnion,
    Union,
    emit,
)
from dbt.adapters.iceberg_stream.stream.sources.schema_columns import WIDER
from dbt.adapters.iceberg_stream.stream.sources.schema_messages import MessageSchemas
from dbt.adapters.iceberg_stream.stream.sources.schema_types import (
    Items,
    Node,
    Nullable,
    Scalar,
    Struct,
)
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR
from dbt.adapters.iceberg_stream.stream.sources.wire_format import (
    HEADER_BYTES,
    MAGIC_BYTES,
    MAX_BYTES,
)

# The types that messages are read with, by their own types. Enums are read as they are.
PHYSICAL = {
    "boolean": "boolean",
    "int": "long",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
}
# Types whose numbers are milliseconds, as avro_types writes them.
MILLIS = {
    json.dumps({"type": "long", "logicalType": name})
    for name in ("timestamp-millis", "local-timestamp-millis")
}


@dataclass(frozen=True)
class _Writer:
    """Schemas that are read in the same way; see `schema_format.Writer`.

    Attributes:
        schema: the schema that a message is read with.
        row: the type of the records.
    """

    schema: str
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
        """Decode messages to columns, with MAJOR and MINOR.

        Args:
            messages: batches with the columns `value` (binary) and `offset` (int64).
            columns: the record's column for each column to return.

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
    """Return the columns of messages that have the same schema."""
    from pyruhvro import deserialize_array, serialize_record_batch

    bodies = pc.binary_slice(values, HEADER_BYTES, MAX_BYTES)
    decoded = deserialize_array(bodies.to_pylist(), writer.schema)
    decoded.validate(full=True)
    [encoded] = serialize_record_batch(decoded, writer.schema, 1)
    if not encoded.equals(bodies):
        raise ArrowFallback
    record = decoded.to_struct_array()
    columns = {name: _field(record, writer.row, column) for name, column in picked}
    return pa.table(columns)


def _field(record: pa.StructArray, node: Struct, column: t.StructField) -> pa.Array:
    member = node.members.get(column.name.lower())
    if member is None:
        return pa.nulls(len(record), to_arrow_type(column.dataType))
    name, kind = member
    return _converted(record.field(name), kind, column.dataType)


def _converted(array: pa.Array, node: Node, target: t.DataType) -> pa.Array:
    """Return the values of a column, as Spark returns them."""
    if isinstance(node, Nullable):
        return _converted(array, node.node, target)
    kind, absent = to_arrow_type(target), array.is_null() if array.null_count else None
    if isinstance(node, Struct):
        assert isinstance(target, t.StructType)
        children = [_field(array, node, field) for field in target.fields]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)
    if isinstance(node, Items):
        assert isinstance(target, t.ArrayType)
        elements = _converted(array.values, node.node, target.elementType)
        return pa.ListArray.from_arrays(array.offsets, elements, type=kind, mask=absent)
    if isinstance(node.column, t.IntegerType | t.DateType):
        array = array.cast(pa.int32())
    elif isinstance(node, AvroScalar) and node.avro in MILLIS:
        array = array.cast(pa.timestamp("ms", kind.tz))
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
        decoded = _Writer(_schema(writer.row), writer.row)
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
        is_array = not node.is_map and isinstance(target, t.ArrayType)
        return is_array and not _grows(node.node) and _is_exact(node.node, target.elementType)
    if not isinstance(node, AvroScalar) or node.sql != Scalar.sql:
        return False
    if _primitive(node) not in {*PHYSICAL, "enum"}:
        return False
    return node.column == target or WIDER.get((node.column, target)) == target


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
        return {"type": "array", "items": _physical(node.node, names)}
    assert isinstance(node, AvroScalar)
    kind = _primitive(node)
    return emit(node, names) if kind == "enum" else PHYSICAL[kind]
