"""Decode messages of Protobuf in Spark's tasks.

Protobuf's own classes, which are written in C, decode each message; then each field of all
messages becomes a column at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

# The column with the reason why a message cannot be decoded.
PROBLEM = "problem"
# The column that says whether a message is of another record type, and therefore skipped.
OTHER = "other"
HEADER_BYTES = 5
FIRST_MESSAGE: tuple[int, ...] = (0,)
# Parts of a message index: messages are not nested deeper than this.
MOST_PARTS = 100
# Seconds of the years 1 to 9999, which a Timestamp has.
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
NANOS = 10**9
# PyArrow crashes for decimals with extreme exponents.
MOST_SCALE, MOST_DECIMAL_BYTES = 100, 64
# The numbers below are integers that a double has exactly.
EXACT = 2**53


class NotDecodable(ValueError):
    """A message cannot be decoded; the message follows `the message `."""


class OtherMessage(Exception):
    """A message is of another record type, which is skipped."""


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


@dataclass(frozen=True)
class MessageDecoder:
    """Decodes the messages of batches.

    Attributes:
        layouts: ids of the schemas and their layout, by the column that takes the record.
        schema: of the decoded batches.
    """

    layouts: Mapping[str, tuple[Sequence[int], MessageLayout]]
    schema: pa.Schema

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add PROBLEM, OTHER and a column for each layout to batches of messages.

        Args:
            batches: with the columns `value`, the message with its header, and `id` of its schema.
        """
        readers = {
            number: _Reader(layout, number, self.schema.field(name).type, name)
            for name, (ids, layout) in self.layouts.items()
            for number in ids
        }
        for batch in batches:
            yield self._decode(batch, readers)

    def _decode(self, batch: pa.RecordBatch, readers: Mapping[int, _Reader]) -> pa.RecordBatch:
        problems: list[str | None] = [None] * batch.num_rows
        others = [False] * batch.num_rows
        rows: dict[str, list[tuple[int, Message]]] = {name: [] for name in self.layouts}
        values, ids = batch["value"].to_pylist(), batch["id"].to_pylist()
        for row, (number, value) in enumerate(zip(ids, values, strict=True)):
            if reader := readers.get(number):
                try:
                    rows[reader.column].append((row, reader.parse(value)))
                except OtherMessage:
                    others[row] = True
                except NotDecodable as error:
                    problems[row] = str(error)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        by_column = {reader.column: reader for reader in readers.values()}
        for name, parsed in rows.items():
            columns[name] = _column(by_column[name], parsed, ids, problems)
        columns[PROBLEM] = pa.array(problems, pa.string())
        columns[OTHER] = pa.array(others, pa.bool_())
        arrays = [columns[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _column(
    reader: _Reader,
    parsed: Sequence[tuple[int, Message]],
    ids: Sequence[int],
    problems: list[str | None],
) -> pa.Array:
    """Return the records of a layout; null for other messages, and for those with a problem."""
    try:
        records = reader.records([message for _, message in parsed])
    except (ValueError, OverflowError):
        fitting = []
        for row, message in parsed:
            try:
                reader.records([message])
                fitting.append((row, message))
            except (ValueError, OverflowError) as error:
                reason = f"has the schema {ids[row]} and a value that no column can take"
                problems[row] = f"{reason}: {error}"
        if len(fitting) == len(parsed):
            raise  # it is not one message that does not fit
        return _column(reader, fitting, ids, problems)
    places: list[int | None] = [None] * len(problems)
    for place, (row, _) in enumerate(parsed):
        places[row] = place
    return records.take(pa.array(places, pa.int64()))


class _Reader:
    """Decodes the messages of one schema."""

    def __init__(
        self, layout: MessageLayout, number: int, kind: pa.StructType, column: str
    ) -> None:
        self.column = column
        self._layout, self._number, self._kind = layout, number, kind
        files = FileDescriptorSet.FromString(layout.files)
        self._file = files.file[-1]
        pool = DescriptorPool()
        for file in files.file:
            pool.Add(file)
        name = _name_at(self._file, layout.index)
        assert name is not None
        self._name = name
        self._descriptor = pool.FindMessageTypeByName(name)
        self._parse = GetMessageClass(self._descriptor).FromString

    def parse(self, value: bytes) -> Message:
        """Return a message.

        Args:
            value: the message with its header.

        Raises:
            NotDecodable: it is none of the schema.
            OtherMessage: it is another one of the schema, which is skipped.
        """
        # One byte 0 is short for the first message of a schema.
        if value[HEADER_BYTES : HEADER_BYTES + 1] == b"\0":
            index, begin = FIRST_MESSAGE, HEADER_BYTES + 1
        else:
            index, begin = self._index(value)
        if index != self._layout.index:
            self._refuse(index)
        try:
            message: Message = self._parse(value[begin:])
        except DecodeError:
            raise self._not_protobuf() from None
        # Methods of the class: a field may have a method's name. `FindInitializationErrors` would
        # name the fields, but crashes for those within maps.
        if not type(message).IsInitialized(message):
            raise NotDecodable(f"lacks a required field of its schema {self._number}")
        return message

    def records(self, messages: Sequence[Message]) -> pa.StructArray:
        """Return the records of messages.

        Raises:
            ValueError, OverflowError: a value fits into no column.
        """
        return _structs(self._descriptor, messages, self._kind)

    def _index(self, value: bytes) -> tuple[tuple[int, ...], int]:
        """Return the message index, and where the message begins."""
        length, at = self._varint(value, HEADER_BYTES)
        if not 0 <= length <= MOST_PARTS:
            raise self._not_protobuf()
        index = []
        for _ in range(length):
            part, at = self._varint(value, at)
            index.append(part)
        return tuple(index) or FIRST_MESSAGE, at

    def _varint(self, value: bytes, at: int) -> tuple[int, int]:
        """Return a number in zigzag encoding, and where it ends."""
        number = 0
        for shift, byte in enumerate(value[at : at + 5]):
            number |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1), at + shift + 1
        raise self._not_protobuf()

    def _refuse(self, index: tuple[int, ...]) -> None:
        name = _name_at(self._file, index)
        if name is None:
            raise NotDecodable(
                f"has the message index {list(index)}, which its schema {self._number} does not "
                "have"
            )
        if self._layout.skips_others:
            raise OtherMessage
        raise NotDecodable(
            f"is a message `{name}` of its schema {self._number} and not `{self._name}`. Set the "
            "source's `record` to the one to read, and others are skipped"
        )

    def _not_protobuf(self) -> NotDecodable:
        return NotDecodable(f"is not Protobuf of its schema {self._number}")


def _name_at(file: FileDescriptorProto, index: Sequence[int]) -> str | None:
    """Return the full name of the message with an index; None if there is none."""
    messages, names = file.message_type, [file.package] if file.package else []
    for part in index:
        if not 0 <= part < len(messages):
            return None
        names.append(messages[part].name)
        messages = messages[part].nested_type
    return ".".join(names)


def _structs(
    message: Descriptor, messages: Sequence[Message | None], kind: pa.StructType
) -> pa.StructArray:
    """Return messages as structs, whose fields have names of their positions."""
    present = [each for each in messages if each is not None]
    _refuse_other_wire_types(message, present)
    arrays = [_field(message.fields[int(field.name[1:])], present, field.type) for field in kind]
    structs = pa.StructArray.from_arrays(arrays, fields=list(kind))
    if len(present) == len(messages):
        return structs
    ends = accumulate(each is not None for each in messages)
    pairs = zip(messages, ends, strict=True)
    places = [None if each is None else end - 1 for each, end in pairs]
    return structs.take(pa.array(places, pa.int64()))


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
