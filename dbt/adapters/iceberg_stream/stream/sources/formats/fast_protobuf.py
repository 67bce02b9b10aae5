"""Read messages of Protobuf by ptars into Arrow's arrays.

It needs a sixth of the time of Protobuf's own classes. It ignores fields that the schema does not
have, or that have another encoding than that of their type: a message that ptars does not write as
it came is read again by Protobuf's classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from dbt.adapters.iceberg_stream.stream.sources.formats.arrays import (
    Bad,
    any_of,
    as_mask,
    convert_each,
    list_bounds,
    of_items,
    repeated_keys,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_records import (
    FIRST_SECOND,
    LAST_SECOND,
    MessageLayout,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.record_reader import Doubt, FastReader
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import Struct

if TYPE_CHECKING:
    from ptars.internal import MessageHandler

TIMESTAMP = "google.protobuf.Timestamp"
# Packages whose other messages ptars reads as something else than their fields.
OWN_TYPES = ("google.", "confluent.")
MICROS = 10**6
PANIC = "PanicException"
# Types of repeated fields that are never packed.
UNPACKED = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
# Syntaxes of files that ptars reads; no syntax means proto2.
SYNTAXES = {"", "proto2", "proto3"}


def fast_protobuf_reader(record: Struct, layout: MessageLayout) -> FastReader | None:
    """Return what reads most messages of a schema.

    Args:
        record: their type.
        layout: which message of the schema they are.

    Returns:
        The reader; None if ptars is not installed, or does not read them.
    """
    try:
        from ptars import HandlerPool, PtarsConfig
    except ImportError:
        return None
    message = layout.message
    if not _is_read(message, _read_files(layout)):
        return None
    read = _with_entries(layout.files).FindMessageTypeByName(message.full_name)
    handlers = HandlerPool([read.file], PtarsConfig(timestamp_unit="us"))
    return FastProtobufReader(message, handlers.get_for_message(read), record.read_type)


class FastProtobufReader:
    """Reads messages by ptars; see FastReader.

    Args:
        message: their descriptor.
        handler: of ptars, for it.
        kind: of the records.
    """

    def __init__(self, message: Descriptor, handler: MessageHandler, kind: pa.StructType) -> None:
        self._message, self._handler, self._kind = message, handler, kind

    def accepts(self, bodies: Sequence[bytes]) -> bool:
        try:
            with _doubting():
                self._handler.array_to_record_batch(pa.array(bodies, pa.binary()))
        except Doubt:
            return False
        return True

    def read(self, bodies: Sequence[bytes]) -> tuple[pa.StructArray, Bad]:
        values = pa.array(bodies, pa.binary())
        with _doubting():
            decoded = self._handler.array_to_record_batch(values)
            encoded = self._handler.record_batch_to_array(decoded)
        differs = as_mask(pc.not_equal(encoded, values))
        with _doubting():
            records, doubtful = _structs(decoded.to_struct_array(), self._message, self._kind)
        return records, any_of(differs, doubtful)


@contextmanager
def _doubting() -> Iterator[None]:
    """Raise Doubt if ptars refuses a message.

    It panics at some that are damaged. Its exception has no public class, and is no Exception.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, pa.ArrowException | ValueError) or type(error).__name__ == PANIC:
            raise Doubt from error
        raise


def _structs(
    array: pa.StructArray, message: Descriptor, kind: pa.StructType
) -> tuple[pa.StructArray, Bad]:
    """Return structs whose fields have names of their positions, and which may be wrong."""
    fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    doubts: list[Bad] = []
    for group in message.oneofs:
        members = [fields[member.name].is_valid().cast(pa.int8()) for member in group.fields]
        total = members[0]
        for member in members[1:]:
            total = pc.add(total, member)
        doubts.append(as_mask(pc.greater(total, 1)))  # the last one counts
    for field in message.fields:
        if field.is_required:
            missing = pc.and_(array.is_valid(), fields[field.name].is_null())
            doubts.append(as_mask(missing))
    children = []
    for own in kind:
        descriptor = message.fields[int(own.name[1:])]
        child, doubtful = _values(fields[descriptor.name], descriptor, own.type)
        children.append(child)
        doubts.append(doubtful)
    absent = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent), any_of(*doubts)


def _values(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> tuple[pa.Array, Bad]:
    """Return the values of a field, as Protobuf's classes return them."""
    if isinstance(kind, pa.MapType):
        return _maps(array, field.message_type, kind)
    if field.is_repeated:
        lengths, offsets = list_bounds(array)
        items, doubtful = _single(array.flatten(), field, kind.value_type)
        lists = pa.ListArray.from_arrays(offsets, items, type=kind)
        return lists, of_items(doubtful, lengths)
    return _single(array, field, kind)


def _maps(array: pa.ListArray, entry: Descriptor, kind: pa.MapType) -> tuple[pa.MapArray, Bad]:
    """Return lists of keys and values as maps."""
    lengths, offsets = list_bounds(array)
    keys, values = array.flatten().flatten()
    # They have defaults, and encoders write these, too.
    absent = as_mask(pc.or_(keys.is_null(), values.is_null()))
    fields = entry.fields_by_name
    keys, doubtful_keys = _single(keys, fields["key"], kind.key_type)
    if keys.null_count:
        raise Doubt
    items, doubtful = _single(values, fields["value"], kind.item_type)
    maps = pa.MapArray.from_arrays(offsets, keys, items, type=kind)
    inner = of_items(any_of(absent, doubtful_keys, doubtful), lengths)
    return maps, any_of(inner, repeated_keys(maps))


def _single(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> tuple[pa.Array, Bad]:
    if isinstance(kind, pa.StructType):
        return _structs(array, field.message_type, kind)
    if field.enum_type is not None:
        return _enums(array, field, kind)
    if field.message_type is not None:
        micros = array.cast(pa.int64())
        low, high = FIRST_SECOND * MICROS, (LAST_SECOND + 1) * MICROS
        outside = pc.or_(pc.less(micros, low), pc.greater_equal(micros, high))
        return array.cast(kind), as_mask(outside)
    if pa.types.is_string(kind):
        return convert_each(array, kind, lambda part: part.view(pa.binary()).cast(kind))
    return array.cast(kind), None


def _enums(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> tuple[pa.Array, Bad]:
    encoded = array.dictionary_encode()
    names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
    numbers = encoded.dictionary.to_pylist()
    # Numbers that a newer producer has added are text, too.
    texts = pa.array([names.get(number) or str(number) for number in numbers], pa.string())
    values = pa.DictionaryArray.from_arrays(encoded.indices, texts).cast(kind)
    if not field.enum_type.is_closed or names.keys() >= set(numbers):
        return values, None
    return values, as_mask(pc.invert(pc.is_in(array, pa.array(list(names), array.type))))


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
