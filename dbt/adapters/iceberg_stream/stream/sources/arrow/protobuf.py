"""Decode messages of Protobuf without Spark, if the query only picks their columns.

ptars reads messages into Arrow's arrays, without an object for each message or value, in a sixth of
the time of Protobuf's own classes. Those read the rest, as they do in Spark's workers: types that
ptars does not have, and all messages of a batch if ptars does not write one of them as it came. It
ignores fields that the schema does not have, or that have another encoding than that of their type.
A batch with a message that may be bad is Spark's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.records import (
    IsOther,
    ReadableWriter,
    RecordDecoder,
    has_text_operation,
    headers,
    is_wider,
    never,
    require_distinct_keys,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_decoder import (
    FIRST_MESSAGE,
    FIRST_SECOND,
    LAST_SECOND,
    OTHER,
    PROBLEM,
    MessageDecoder,
    MessageLayout,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    FIRST,
    index_bytes,
    message_indexes,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_format import Writer
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import MessageSchemas
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Struct,
    read_type,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import HEADER_BYTES, MAX_BYTES

if TYPE_CHECKING:
    from ptars.internal import MessageHandler

TIMESTAMP = "google.protobuf.Timestamp"
# Packages whose other messages ptars, or Spark's path, reads as something else than their fields.
OWN_TYPES = ("google.", "confluent.")
MICROS = 10**6
PANIC = "PanicException"
# Types of repeated fields that are never packed.
UNPACKED = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
# Syntaxes of files that ptars reads; no syntax means proto2.
SYNTAXES = {"", "proto2", "proto3"}
# The column of the records that Protobuf's own classes decode.
RECORD = "record"


class _ClassReader:
    """Reads messages of one schema by Protobuf's own classes; see RecordReader.

    Args:
        writer: the schema.
    """

    def __init__(self, writer: Writer) -> None:
        assert isinstance(writer.layout, MessageLayout)
        columns = {"value": pa.binary(), "id": pa.int64(), PROBLEM: pa.string(), OTHER: pa.bool_()}
        schema = pa.schema({**columns, RECORD: to_arrow_type(read_type(writer.record))})
        self._id = pa.scalar(writer.ids[0], pa.int64())
        self._decoder = MessageDecoder({RECORD: (writer.ids, writer.layout)}, schema)

    def read(self, messages: pa.BinaryArray) -> pa.StructArray:
        ids = pa.repeat(self._id, len(messages))
        batch = pa.record_batch({"value": messages, "id": ids})
        [decoded] = self._decoder.run(iter([batch]))
        if decoded[PROBLEM].null_count < len(messages) or pc.any(decoded[OTHER]).as_py():
            raise ArrowFallback
        return decoded[RECORD]


class _PtarsReader:
    """Reads messages of one schema by ptars, or by Protobuf's own classes; see RecordReader.

    Args:
        message: their descriptor.
        handler: of ptars, for it.
        writer: the schema.
        prefix: the message index that follows the header.
    """

    def __init__(
        self, message: Descriptor, handler: MessageHandler, writer: Writer, prefix: bytes
    ) -> None:
        self._message, self._handler, self._prefix = message, handler, prefix
        self._kind, self._by_classes = to_arrow_type(read_type(writer.record)), _ClassReader(writer)

    def read(self, messages: pa.BinaryArray) -> pa.StructArray:
        try:
            return self._read(messages)
        except (ArrowFallback, pa.ArrowException, ValueError):
            return self._by_classes.read(messages)

    def _read(self, messages: pa.BinaryArray) -> pa.StructArray:
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
    for field in message.fields:
        if field.is_required and fields[field.name].null_count > array.null_count:
            raise ArrowFallback
    children = []
    for field in kind:
        descriptor = message.fields[int(field.name[1:])]
        children.append(_values(fields[descriptor.name], descriptor, field.type))
    absent = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)


def _values(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> pa.Array:
    """Return the values of a field, as Spark's workers return them."""
    if isinstance(kind, pa.MapType):
        return _maps(array, field.message_type, kind)
    if field.is_repeated:
        items = _single(array.values, field, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind)
    return _single(array, field, kind)


def _maps(array: pa.ListArray, entry: Descriptor, kind: pa.MapType) -> pa.MapArray:
    """Return lists of keys and values as maps."""
    keys, values = array.values.flatten()
    if keys.null_count or values.null_count:
        raise ArrowFallback  # they have defaults, and encoders write these, too
    fields = entry.fields_by_name
    keys = _single(keys, fields["key"], kind.key_type)
    items = _single(values, fields["value"], kind.item_type)
    maps = pa.MapArray.from_arrays(array.offsets, keys, items, type=kind)
    require_distinct_keys(maps)
    return maps


def _single(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.StructType):
        return _structs(array, field.message_type, kind)
    if field.enum_type is not None:
        encoded = array.dictionary_encode()
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        if field.enum_type.is_closed and not names.keys() >= set(encoded.dictionary.to_pylist()):
            raise ArrowFallback
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
        The decoder; None if columns are cast, or the operation of a change is no text.
    """
    writers: dict[bytes, ReadableWriter] = {}
    for writer in schemas.writers:
        assert isinstance(writer.layout, MessageLayout)
        if not has_text_operation(writer) or not _fits(writer.row, schemas.columns):
            return None
        reader = _ptars_reader(writer, writer.layout) or _ClassReader(writer)
        others = _other_prefixes(writer.layout) if writer.layout.skips_others else ()
        readable = ReadableWriter(reader, writer.record, writer.row, others)
        writers |= dict.fromkeys(headers(writer), readable)
    return RecordDecoder(schemas.columns, writers, is_other, key=schemas.key) if writers else None


def _ptars_reader(writer: Writer, layout: MessageLayout) -> _PtarsReader | None:
    """Return what reads messages by ptars; None if it is not installed, or does not read them."""
    try:
        from ptars import HandlerPool, PtarsConfig
    except ImportError:
        return None
    file, pool = read_files(layout.files)
    names = {index: name for name, index in message_indexes(file).items()}
    message = pool.FindMessageTypeByName(names[layout.index])
    if not _is_read(message, _read_files(layout)):
        return None
    read = _with_entries(layout.files).FindMessageTypeByName(message.full_name)
    handlers = HandlerPool([read.file], PtarsConfig(timestamp_unit="us"))
    handler = handlers.get_for_message(read)
    return _PtarsReader(message, handler, writer, _prefix(layout.index))


def _with_entries(files: bytes) -> DescriptorPool:
    """Return a pool in which maps are repeated messages, whose keys and values have presence.

    ptars writes no key or value of a map that is the default, unlike all others.
    """
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(files).file:
        for message in file.message_type:
            _show_entries(message, file.syntax)
        pool.Add(file)
    return pool


def _show_entries(message: DescriptorProto, syntax: str) -> None:
    for nested in message.nested_type:
        _show_entries(nested, syntax)
    if not message.options.map_entry:
        return
    message.options.ClearField("map_entry")
    for field in message.field if syntax == "proto3" else ():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            # Presence in proto3 is that of a member of a oneof.
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def _prefix(index: tuple[int, ...]) -> bytes:
    """Return the message index that serializers write before a message."""
    return FIRST if index == FIRST_MESSAGE else index_bytes(index)


def _other_prefixes(layout: MessageLayout) -> tuple[bytes, ...]:
    """Return what is before the other messages of a file; no such prefix begins with another."""
    file, _ = read_files(layout.files)
    indexes = message_indexes(file).values()
    return tuple(_prefix(index) for index in indexes if index != layout.index)


def _read_files(layout: MessageLayout) -> set[str]:
    """Return the names of the files in a syntax that ptars reads."""
    files = FileDescriptorSet.FromString(layout.files).file
    return {file.name for file in files if file.syntax in SYNTAXES}


def _is_read(message: Descriptor, files: set[str]) -> bool:
    """Return whether ptars reads a message as Spark's workers do, and writes it as it came."""
    fields = message.fields
    is_known = message.file.name in files and bool(fields)
    return is_known and all(_is_field_read(field, files) for field in fields)


def _is_field_read(field: FieldDescriptor, files: set[str]) -> bool:
    if field.type == FieldDescriptor.TYPE_GROUP:
        return False
    message = field.message_type
    if message is None:
        # ptars packs all numbers.
        return not field.is_repeated or field.is_packed or field.type in UNPACKED
    is_own = not message.full_name.startswith(OWN_TYPES)
    return message.full_name == TIMESTAMP or (is_own and _is_read(message, files))


def _fits(node: Node | None, target: t.DataType) -> bool:
    """Return whether a column takes all values of a type as they are."""
    if isinstance(node, Struct):
        if not isinstance(target, t.StructType):
            return False
        types = {field.name.lower(): field.dataType for field in target.fields}
        return all(
            _fits(part, types[name]) for name, (_, part) in node.members.items() if name in types
        )
    if isinstance(node, Items):
        if isinstance(target, t.MapType):
            return node.key == target.keyType and _fits(node.node, target.valueType)
        is_array = isinstance(target, t.ArrayType) and not node.is_map
        return is_array and _fits(node.node, target.elementType)
    return node is not None and is_wider(node.column, target)
