"""Decode Avro messages by pyruhvro, if the query only picks their columns.

pyruhvro reads messages into Arrow's arrays, without an object for each value, in a fraction of the
time of Spark's `from_avro`. It reads physical types only, bytes as text, and `fixed`, which it does
not have, as a record of numbers with as many bytes, which are all encoded alike: PyArrow makes the
columns' types of them, and checks what pyruhvro does not, such as UTF-8. A `fixed` whose size is
not that of numbers is cut out of the messages, between what pyruhvro reads before and after it.
If a message may be bad, Spark reads the whole batch: it decides what is a bad record. So does it if
a message is not what its record is encoded to: pyruhvro accepts integers that are padded or too
large, arrays of a negative length and bytes after the record.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.decimals import WIDTH, decimals
from dbt.adapters.iceberg_stream.stream.sources.arrow.fixed import fixed_bytes, numbers_of, uuids
from dbt.adapters.iceberg_stream.stream.sources.arrow.records import (
    IsOther,
    ReadableWriter,
    RecordDecoder,
    RecordReader,
    converted,
    has_text_operation,
    headers,
    is_wider,
    micros_of_nanos,
    never,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import (
    CONVERTED,
    AvroScalar,
    NullUnion,
    Union,
    emit,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_unions import (
    UnionMember,
    null_messages,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import MessageSchemas
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Nullable,
    Scalar,
    Struct,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import (
    HEADER_BYTES,
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
UUID = CONVERTED["fixed", "uuid"][1]
# How Debezium writes a ZonedTimestamp. Spark reads other texts, too.
ZONED_TEXT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z$"


@dataclass(frozen=True)
class _AvroReader:
    """Reads messages of one schema; see RecordReader.

    Attributes:
        schema: the schema that they are read with.
        record: the type of the messages.
        prefix: what is between the header of each message and its record.
    """

    schema: str
    record: Struct
    prefix: bytes = b""

    def read(self, messages: pa.BinaryArray) -> pa.StructArray:
        bodies = _bodies(messages, self.prefix)
        record, encoded = _decoded(bodies.to_pylist(), self.record, self.schema)
        if not encoded.equals(bodies):
            raise ArrowFallback
        return record


@dataclass(frozen=True)
class _PartReader:
    """Reads messages with a `fixed` that has not the size of numbers; see RecordReader.

    Attributes:
        record: the type of the messages.
        prefix: what is between the header of each message and its record.
    """

    record: Struct
    prefix: bytes = b""

    def read(self, messages: pa.BinaryArray) -> pa.StructArray:
        record, rests = _first(_bodies(messages, self.prefix).to_pylist(), self.record)
        if any(rests):
            raise ArrowFallback
        return record


def _bodies(messages: pa.BinaryArray, prefix: bytes) -> pa.BinaryArray:
    """Return the records in messages."""
    begin = HEADER_BYTES + len(prefix)
    prefixes = pc.binary_slice(messages, HEADER_BYTES, begin)
    if prefix and pc.unique(prefixes).to_pylist() != [prefix]:
        raise ArrowFallback
    return pc.binary_slice(messages, begin, MAX_BYTES)


def _decoded(
    bodies: Sequence[bytes], record: Struct, schema: str
) -> tuple[pa.StructArray, pa.BinaryArray]:
    """Return the records that bodies begin with, and what they are encoded to."""
    from pyruhvro import deserialize_array, serialize_record_batch

    decoded = deserialize_array(bodies, schema)
    [encoded] = serialize_record_batch(decoded, schema, 1)
    # All fields are converted: Spark refuses a message for any of them.
    return converted(decoded.to_struct_array(), record, _scalars), encoded


def _first(bodies: Sequence[bytes], node: Node) -> tuple[pa.Array, list[bytes]]:
    """Return the first value of each body, converted, and the bytes that follow it."""
    if isinstance(node, NullUnion):
        return _first_nullable(bodies, node)
    if isinstance(node, Struct):
        return _first_struct(bodies, node)
    assert isinstance(node, AvroScalar)
    size = node.size
    octets = [body[:size] for body in bodies]
    if any(len(own) < size for own in octets):
        raise ArrowFallback
    return _octets(pa.array(octets, pa.binary()), node), [body[size:] for body in bodies]


def _first_struct(bodies: Sequence[bytes], node: Struct) -> tuple[pa.Array, list[bytes]]:
    rests, arrays = list(bodies), list[pa.Array]()
    for is_cut, group in itertools.groupby(node.fields, lambda field: _is_cut(field[1])):
        fields = list(group)
        if is_cut:
            for _, part in fields:
                assert part is not None
                array, rests = _first(rests, part)
                arrays.append(array)
            continue
        record = Struct(tuple(fields))
        decoded, encoded = _decoded(rests, record, _schema(record))
        begins = encoded.to_pylist()
        if not all(map(bytes.startswith, rests, begins)):
            raise ArrowFallback
        rests = [rest[len(begin) :] for rest, begin in zip(rests, begins, strict=True)]
        arrays += decoded.flatten()
    return pa.StructArray.from_arrays(arrays, [name for name, _ in node.members.values()]), rests


def _first_nullable(bodies: Sequence[bytes], node: NullUnion) -> tuple[pa.Array, list[bytes]]:
    null, value = (b"\2", b"\0") if node.null_at else (b"\0", b"\2")
    indexes = [body[:1] for body in bodies]
    if not {null, value}.issuperset(indexes):
        raise ArrowFallback
    present = [index == value for index in indexes]
    bodies = [body[1:] for body in bodies]
    values, rests = _first(list(itertools.compress(bodies, present)), node.node)
    places, following = itertools.count(), iter(rests)
    array = values.take(pa.array([next(places) if own else None for own in present], pa.int64()))
    pairs = zip(bodies, present, strict=True)
    return array, [next(following) if own else body for body, own in pairs]


def _scalars(array: pa.Array, node: Node) -> pa.Array:
    assert isinstance(node, AvroScalar)
    kind = to_arrow_type(node.column)
    if node.primitive in ("bytes", "fixed"):
        is_bytes = node.primitive == "bytes"
        return _octets(array.view(pa.binary()) if is_bytes else fixed_bytes(array), node)
    array.validate(full=True)
    if node.sql == ZONED:
        is_read = pc.match_substring_regex(array, ZONED_TEXT)
        if not pc.all(is_read, min_count=0).as_py():
            raise ArrowFallback
    elif node.sql in NANOS:
        array = micros_of_nanos(array)
    elif node.avro in MILLIS:
        array = array.cast(pa.timestamp("ms", kind.tz))
    return array.cast(kind)


def _octets(octets: pa.BinaryArray, node: AvroScalar) -> pa.Array:
    kind = to_arrow_type(node.column)
    if pa.types.is_decimal(kind):
        return decimals(octets, kind)
    return uuids(octets) if node.sql == UUID else octets


def avro_decoder(schemas: MessageSchemas, is_other: IsOther = never) -> RecordDecoder | None:
    """Return what decodes the messages of a batch.

    Args:
        schemas: the schemas of the messages.
        is_other: returns whether messages with the id of another schema are skipped.

    Returns:
        The decoder; None if pyruhvro is not installed, or a type cannot be decoded as Spark does.
    """
    try:
        from pyruhvro import avro_to_arrow_schema
    except ImportError:
        return None
    writers: dict[bytes, ReadableWriter] = {}
    for writer in schemas.writers:
        if not has_text_operation(writer) or not _is_exact(writer.row, schemas.columns):
            return None
        if not _is_exact(writer.record, writer.record.column):
            return None
        member = writer.layout if isinstance(writer.layout, UnionMember) else None
        prefix = b"" if member is None else member.prefix
        others = () if member is None else member.other_prefixes
        schema = _schema(writer.record)
        try:
            avro_to_arrow_schema(schema)
        except ValueError:
            return None  # such as an enum whose symbols Spark accepts only
        reader: RecordReader = _AvroReader(schema, writer.record, prefix)
        if _is_cut(writer.record):
            reader = _PartReader(writer.record, prefix)
        readable = ReadableWriter(reader, writer.record, writer.row, others)
        writers |= dict.fromkeys(headers(writer), readable)
    if not writers:
        return None
    nulls = tuple(null_messages(schemas.writers))
    return RecordDecoder(schemas.columns, writers, is_other, nulls, schemas.key)


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
        is_whole = not _grows(node.node) and not _is_cut(node.node)
        return is_alike and is_whole and _is_exact(node.node, part)
    if not isinstance(node, AvroScalar) or node.sql not in {Scalar.sql, ZONED, UUID, *NANOS}:
        return False
    if node.primitive == "fixed" and not _is_fixed_read(node):
        return False
    if node.primitive not in {*PHYSICAL, "enum", "fixed"}:
        return False
    return is_wider(node.column, target)


def _is_fixed_read(node: AvroScalar) -> bool:
    is_long = isinstance(node.column, t.DecimalType) and node.size > WIDTH
    return node.size > 0 and not is_long


def _is_cut(node: Node | None) -> bool:
    """Return whether a type has a `fixed` that has not the size of numbers."""
    if isinstance(node, Struct):
        return any(_is_cut(part) for _, part in node.fields)
    if isinstance(node, Nullable | Items):
        return _is_cut(node.node)
    if not isinstance(node, AvroScalar) or node.primitive != "fixed":
        return False
    return numbers_of(node.size) is None


def _grows(node: Node | None) -> bool:
    """Return whether a byte of a message may take any memory: as an enum, or as a null record."""
    if isinstance(node, Struct):
        return any(_grows(part) for _, part in node.fields)
    if isinstance(node, Nullable):
        is_fixed = isinstance(node.node, AvroScalar) and node.node.primitive == "fixed"
        return is_fixed or isinstance(node.node, Struct) or _grows(node.node)
    if isinstance(node, Items):
        return _grows(node.node)
    return isinstance(node, AvroScalar) and node.primitive == "enum"


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
    kind = node.primitive
    if kind == "fixed":
        parts = numbers_of(node.size) or ["float"]  # no message is read with the latter
        numbers = [{"name": f"p{number}", "type": part} for number, part in enumerate(parts)]
        return {"type": "record", "name": f"n{next(names)}", "fields": numbers}
    return emit(node, names) if kind == "enum" else PHYSICAL[kind]
