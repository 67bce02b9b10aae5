"""Decode messages of Protobuf by ptars, if the query only picks their columns.

ptars reads messages into Arrow's arrays, without an object for each message or value. If a message
is not what its record is encoded to, Spark reads the whole batch: ptars ignores fields that the
schema does not have, or that have another encoding than that of their type.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow_records import (
    IsOther,
    ReadableWriter,
    RecordDecoder,
    has_text_operation,
    headers,
    is_wider,
    never,
)
from dbt.adapters.iceberg_stream.stream.sources.protobuf_decoder import (
    FIRST_MESSAGE,
    FIRST_SECOND,
    LAST_SECOND,
    MessageLayout,
)
from dbt.adapters.iceberg_stream.stream.sources.protobuf_schemas import (
    FIRST,
    index_bytes,
    message_indexes,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.protobuf_types import read_type
from dbt.adapters.iceberg_stream.stream.sources.schema_messages import MessageSchemas
from dbt.adapters.iceberg_stream.stream.sources.schema_types import Items, Node, Struct
from dbt.adapters.iceberg_stream.stream.sources.wire_format import HEADER_BYTES, MAX_BYTES

if TYPE_CHECKING:
    from ptars.internal import MessageHandler

TIMESTAMP = "google.protobuf.Timestamp"
# Packages whose other messages ptars, or Spark's path, reads as something else than their fields.
OWN_TYPES = ("google.", "confluent.")
MICROS = 10**6
PANIC = "PanicException"


class _ProtobufReader:
    """Reads messages of one schema; see RecordReader.

    Args:
        message: their descriptor.
        handler: of ptars, for it.
        prefix: the message index that follows the header.
        record: the type of the messages.
    """

    def __init__(
        self, message: Descriptor, handler: MessageHandler, prefix: bytes, record: Struct
    ) -> None:
        self._message, self._handler = message, handler
        self._prefix, self._kind = prefix, to_arrow_type(read_type(record))

    def read(self, messages: pa.BinaryArray) -> pa.StructArray:
        begin = HEADER_BYTES + len(self._prefix)
        indexes = pc.binary_slice(messages, HEADER_BYTES, begin)
        if not pc.all(pc.equal(indexes, pa.scalar(self._prefix, pa.binary()))).as_py():
            raise ArrowFallback
        bodies = pc.binary_slice(messages, begin, MAX_BYTES)
        try:
            decoded = self._handler.array_to_record_batch(bodies)
            encoded = self._handler.record_batch_to_array(decoded)
        except BaseException as error:
            # ptars panics at some messages that are damaged. Its exception has no public class, and
            # is no Exception.
            if type(error).__name__ != PANIC:
                raise
            raise ArrowFallback from error
        if not encoded.equals(bodies):
            raise ArrowFallback
        return _structs(decoded.to_struct_array(), self._message, self._kind)


def _structs(array: pa.StructArray, message: Descriptor, kind: pa.StructType) -> pa.StructArray:
    """Return structs whose fields have names of their positions."""
    fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    for group in message.oneofs:
        members = [fields[member.name].is_valid().cast(pa.int8()) for member in group.fields]
        total = members[0]
        for member in members[1:]:
            total = pc.add(total, member)
        if pc.any(pc.greater(total, 1)).as_py():
            raise ArrowFallback  # the last one counts
    children = []
    for field in kind:
        descriptor = message.fields[int(field.name[1:])]
        children.append(_values(fields[descriptor.name], descriptor, field.type))
    absent = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)


def _values(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> pa.Array:
    """Return the values of a field, as Spark's workers return them."""
    if field.is_repeated:
        items = _single(array.values, field, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind)
    return _single(array, field, kind)


def _single(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.StructType):
        return _structs(array, field.message_type, kind)
    if field.enum_type is not None:
        encoded = array.dictionary_encode()
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # Numbers that a newer producer has added are text, too.
        texts = [names.get(number) or str(number) for number in encoded.dictionary.to_pylist()]
        dictionary = pa.array(texts, pa.string())
        return pa.DictionaryArray.from_arrays(encoded.indices, dictionary).cast(kind)
    array.validate(full=True)
    if field.message_type is not None:
        bounds = pc.min_max(array.cast(pa.int64()))
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if low is not None and (low < FIRST_SECOND * MICROS or high >= (LAST_SECOND + 1) * MICROS):
            raise ArrowFallback
    return array.cast(kind)


def protobuf_decoder(schemas: MessageSchemas, is_other: IsOther = never) -> RecordDecoder | None:
    """Return what decodes the messages of a batch.

    Args:
        schemas: the schemas of the messages.
        is_other: returns whether messages with the id of another schema are skipped.

    Returns:
        The decoder; None if ptars is not installed, or a type cannot be decoded as Spark does.
    """
    try:
        from ptars import HandlerPool, PtarsConfig
    except ImportError:
        return None
    writers: dict[bytes, ReadableWriter] = {}
    for writer in schemas.writers:
        assert isinstance(writer.layout, MessageLayout)
        file, pool = read_files(writer.layout.files)
        names = {index: name for name, index in message_indexes(file).items()}
        message = pool.FindMessageTypeByName(names[writer.layout.index])
        if not _is_read(message, _newer_files(writer.layout)) or not has_text_operation(writer):
            return None
        if not _fits(writer.record, writer.record.column) or not _fits(writer.row, schemas.columns):
            return None
        handlers = HandlerPool([message.file], PtarsConfig(timestamp_unit="us"))
        handler = handlers.get_for_message(message)
        index = writer.layout.index
        reader = _ProtobufReader(message, handler, _prefix(index), writer.record)
        others = _other_prefixes(names, index) if writer.layout.skips_others else ()
        readable = ReadableWriter(reader, writer.record, writer.row, others)
        writers |= dict.fromkeys(headers(writer), readable)
    return RecordDecoder(schemas.columns, writers, is_other) if writers else None


def _prefix(index: tuple[int, ...]) -> bytes:
    """Return the message index that serializers write before a message."""
    return FIRST if index == FIRST_MESSAGE else index_bytes(index)


def _other_prefixes(
    indexes: Collection[tuple[int, ...]], own: tuple[int, ...]
) -> tuple[bytes, ...]:
    """Return what is before the other messages of a file; no such prefix begins with another."""
    return tuple(_prefix(index) for index in indexes if index != own)


def _newer_files(layout: MessageLayout) -> set[str]:
    """Return the names of the files in proto3: others may require fields, and close enums."""
    files = FileDescriptorSet.FromString(layout.files).file
    return {file.name for file in files if file.syntax == "proto3"}


def _is_read(message: Descriptor, files: set[str]) -> bool:
    """Return whether ptars reads a message as Spark's workers do."""
    return message.file.name in files and all(_is_field_read(f, files) for f in message.fields)


def _is_field_read(field: FieldDescriptor, files: set[str]) -> bool:
    if field.enum_type is not None:
        return field.enum_type.file.name in files
    message = field.message_type
    if message is None or message.full_name == TIMESTAMP:
        return True
    # ptars writes no key or value of a map that is the default, unlike all others.
    is_other = message.GetOptions().map_entry or message.full_name.startswith(OWN_TYPES)
    return not is_other and _is_read(message, files)


def _fits(node: Node | None, target: t.DataType) -> bool:
    """Return whether a column takes all values of a type as they are."""
    if isinstance(node, Struct):
        if not isinstance(target, t.StructType):
            return False
        types = {field.name.lower(): field.dataType for field in target.fields}
        # Fields that become no column are decoded all the same.
        return all(
            part is not None and _fits(part, types.get(name.lower(), part.column))
            for name, part in node.fields
        )
    if isinstance(node, Items):
        return isinstance(target, t.ArrayType) and _fits(node.node, target.elementType)
    return node is not None and is_wider(node.column, target)
