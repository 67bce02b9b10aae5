"""Read messages of Protobuf by Protobuf's own classes, which are written in C.

They decode each message; then each field of all messages becomes a column at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from dbt.adapters.iceberg_stream.stream.sources.formats.arrays import spread
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    message_indexes,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.record_reader import (
    NotDecodable,
    Problem,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import Struct

# Stands for the id of the schema in a reason.
ID = "\0id"
NO_VALUE = f"has the schema {ID} and a value that no column can take"
# Seconds of the years 1 to 9999, which a Timestamp has.
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
NANOS = 10**9
# PyArrow crashes for decimals with extreme exponents.
MOST_SCALE, MOST_DECIMAL_BYTES = 100, 64
# The numbers below are integers that a double has exactly.
EXACT = 2**53
UNFIT = (ValueError, OverflowError)


@dataclass(frozen=True)
class MessageLayout:
    """Which message of a schema is read.

    Attributes:
        files: the serialized descriptors of the schema and of what it imports, itself last.
        index: position of the message in its file, preceded by those of what it is within.
        skips_others: whether other messages of the schema are skipped, and not refused.
    """

    files: bytes
    index: tuple[int, ...]
    skips_others: bool = False

    @property
    def message(self) -> Descriptor:
        """The descriptor of the message."""
        file, pool = read_files(self.files)
        names = {index: name for name, index in message_indexes(file).items()}
        return pool.FindMessageTypeByName(names[self.index])


class ProtobufReader:
    """Reads messages by Protobuf's classes; see SlowReader.

    Args:
        record: the type of the messages.
        layout: which message of the schema they are.
    """

    def __init__(self, record: Struct, layout: MessageLayout) -> None:
        self._kind = record.read_type
        self._descriptor = layout.message
        self._parse = GetMessageClass(self._descriptor).FromString

    def read(self, bodies: Sequence[bytes]) -> tuple[pa.StructArray, dict[int, Problem]]:
        problems: dict[int, Problem] = {}
        messages: list[Message | None] = []
        for place, body in enumerate(bodies):
            try:
                messages.append(self._message(body))
            except NotDecodable as error:
                messages.append(None)
                problems[place] = error.problem
        try:
            return _structs(self._descriptor, messages, self._kind), problems
        except UNFIT:
            for place, message in enumerate(messages):
                if why := self._why_unfit(message):
                    messages[place], problems[place] = None, Problem(why=why)
        return _structs(self._descriptor, messages, self._kind), problems

    def _message(self, body: bytes) -> Message:
        try:
            message: Message = self._parse(body)
        except DecodeError:
            raise NotDecodable from None
        # Methods of the class: a field may have a method's name. `FindInitializationErrors` would
        # name the fields, but crashes for those within maps.
        if not type(message).IsInitialized(message):
            raise NotDecodable(why=f"lacks a required field of its schema {ID}")
        return message

    def _why_unfit(self, message: Message | None) -> str | None:
        try:
            _structs(self._descriptor, [message], self._kind)
        except UNFIT as error:
            return f"{NO_VALUE}: {error}"
        return None


def _structs(
    message: Descriptor, messages: Sequence[Message | None], kind: pa.StructType
) -> pa.StructArray:
    """Return messages as structs, whose fields have names of their positions."""
    present = [each for each in messages if each is not None]
    _refuse_other_wire_types(message, present)
    arrays = [_field(message.fields[int(field.name[1:])], present, field.type) for field in kind]
    structs = pa.StructArray.from_arrays(arrays, fields=list(kind))
    return spread(structs, [each is not None for each in messages])


def _refuse_other_wire_types(kind: Descriptor, messages: Sequence[Message]) -> None:
    """Raise ValueError if Protobuf has put a field that the schema has among the unknown ones."""
    for message in messages:
        for unknown in UnknownFieldSet(message):
            if field := kind.fields_by_number.get(unknown.field_number):
                raise ValueError(
                    f"its field `{field.name}` has another wire type, or a number that its enum "
                    "does not have"
                )


def _field(field: FieldDescriptor, messages: Sequence[Message], kind: pa.DataType) -> pa.Array:
    """Return the values of a field in messages."""
    name = field.name
    if not isinstance(kind, pa.MapType | pa.ListType) or not field.is_repeated:
        if field.has_presence:
            values = [getattr(m, name) if type(m).HasField(m, name) else None for m in messages]
        else:
            values = [getattr(m, name) for m in messages]
        return _values(field, values, kind)
    groups = [getattr(m, name) for m in messages]
    offsets = pa.array(accumulate(map(len, groups), initial=0), pa.int32())
    if not isinstance(kind, pa.MapType):
        items = _values(field, [item for group in groups for item in group], kind.value_type)
        return pa.ListArray.from_arrays(offsets, items, type=kind)
    pairs = [pair for group in groups for pair in group.items()]
    fields = field.message_type.fields_by_name
    keys = _values(fields["key"], [key for key, _ in pairs], kind.key_type)
    items = _values(fields["value"], [item for _, item in pairs], kind.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind)


def _values(field: FieldDescriptor, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values of a field, None for null."""
    message = field.message_type
    if message is not None:
        return _message_values(message, values, kind)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # Numbers that a newer producer has added are text, too.
        values = [None if v is None else names.get(v) or str(v) for v in values]
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.uint64()).cast(kind)
    array = pa.array(values, kind)
    if pa.types.is_string(kind):
        # Texts of proto2 need not be UTF-8.
        array.validate(full=True)
    return array


def _message_values(
    message: Descriptor, values: Sequence[Message | None], kind: pa.DataType
) -> pa.Array:
    if pa.types.is_struct(kind):
        return _structs(message, values, kind)
    if message.full_name in CONVERTERS:
        convert = CONVERTERS[message.full_name]
        return pa.array([None if v is None else convert(v) for v in values], kind)
    inner: list[Any] = [None if v is None else v.value for v in values]
    return _values(message.fields_by_name["value"], inner, kind)


def _micros(timestamp: Any) -> int:
    seconds, nanos = timestamp.seconds, timestamp.nanos
    if not (FIRST_SECOND <= seconds <= LAST_SECOND and 0 <= nanos < NANOS):
        raise ValueError(f"a Timestamp of {seconds} seconds and {nanos} nanoseconds")
    return int(seconds * 10**6 + nanos // 1000)


def _decimal(value: Any) -> Decimal:
    if abs(value.scale) > MOST_SCALE or len(value.value) > MOST_DECIMAL_BYTES:
        raise ValueError(f"a Decimal of {len(value.value)} bytes and the scale {value.scale}")
    unscaled = int.from_bytes(value.value, "big", signed=True)
    return Decimal(f"{unscaled}E{-value.scale}")


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return Google's Struct, ListValue or Value as Python's own values."""
    name = value.DESCRIPTOR.name
    if name == "Struct":
        return {key: _plain(item) for key, item in value.fields.items()}
    if name == "ListValue":
        return [_plain(item) for item in value.values]
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    item = getattr(value, kind)
    if kind == "number_value" and item.is_integer() and abs(item) < EXACT:
        return int(item)
    return _plain(item) if kind in ("struct_value", "list_value") else item


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "google.protobuf.Timestamp": _micros,
    "google.protobuf.Struct": _json,
    "google.protobuf.ListValue": _json,
    "google.protobuf.Value": _json,
    "confluent.type.Decimal": _decimal,
}
