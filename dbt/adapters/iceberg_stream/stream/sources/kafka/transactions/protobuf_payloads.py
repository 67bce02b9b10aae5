"""Read payloads of messages in Protobuf by Protobuf's own classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    FIRST,
    compiled_files,
    index_bytes,
    message_indexes,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import HEADER_BYTES
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import (
    CHANGE,
    COLLECTIONS,
    COUNTS,
    TRANSACTION,
    ChangePayloads,
    Parse,
    Payload,
)

# Types of nullable fields, if Confluent's converter has `wrapper.for.nullables`.
WRAPPERS = {f"google.protobuf.{name}Value" for name in ("String", "Int32", "Int64")}
# Returns the value of a field in a message.
Get = Callable[[Message], Any]


def protobuf_parser(schema: RegisteredSchema) -> Parse:
    """Return what parses the messages of a schema: of all its types, which each message names.

    Args:
        schema: the schema.

    Raises:
        SchemaError: it cannot be compiled.
        StreamError: Protobuf's compiler is not installed.
    """
    file, pool = read_files(compiled_files(schema.text, schema.references))
    parsers: dict[bytes, _MessageParser] = {}
    for name, index in message_indexes(file).items():
        parser = _MessageParser(pool.FindMessageTypeByName(name))
        if index == (0,):
            parsers[FIRST] = parser
        parsers[index_bytes(index)] = parser
    return _ProtobufParser(parsers).parse


@dataclass(frozen=True)
class _ProtobufParser:
    """Parses the messages of a schema.

    Attributes:
        parsers: of its types, by the index before their messages.
    """

    parsers: dict[bytes, _MessageParser]

    def parse(self, values: Sequence[bytes]) -> list[Payload | None]:
        """Return the payload of each message; None for one that is not of the schema."""
        first = self.parsers.get(FIRST)
        payloads: list[Payload | None] = []
        for value in values:
            if first is not None and value.startswith(FIRST, HEADER_BYTES):
                payloads.append(first.parse(value[HEADER_BYTES + len(FIRST) :]))
            else:
                payloads.append(self._parse_by_index(value))
        return payloads

    def _parse_by_index(self, value: bytes) -> Payload | None:
        for index, parser in self.parsers.items():
            if value.startswith(index, HEADER_BYTES):
                return parser.parse(value[HEADER_BYTES + len(index) :])
        return None


class _MessageParser:
    """Parses the messages of one type."""

    def __init__(self, descriptor: Descriptor) -> None:
        self._from_bytes = GetMessageClass(descriptor).FromString
        collections = descriptor.fields_by_name.get(COLLECTIONS)
        counted = collections is not None and collections.message_type
        self._counts = _getter(counted, [(name,) for name in COUNTS]) if counted else None
        self._get = _getter(descriptor, TRANSACTION if counted else CHANGE)
        self._changes = ChangePayloads()

    def parse(self, body: bytes) -> Payload | None:
        try:
            message = self._from_bytes(body)
        except DecodeError:
            return None
        if self._counts is None:
            return self._changes.make([self._get(message)])[0]
        status, transaction = self._get(message)
        items = getattr(message, COLLECTIONS)
        counts = [dict(zip(COUNTS, self._counts(item), strict=True)) for item in items]
        return Payload(status=status, id=transaction or None, data_collections=counts)


def _getter(descriptor: Descriptor, paths: Sequence[tuple[str, ...]]) -> Get:
    """Return what gets the values of fields; None for one that the type does not have."""
    getters = [_path_getter(descriptor, path) for path in paths]
    return lambda message: tuple([get(message) for get in getters])


def _path_getter(descriptor: Descriptor, path: Sequence[str]) -> Get:
    """Return what gets the value of a field, which has the default of its type if it is absent."""
    kind: Descriptor | None = descriptor
    for name in path:
        field = kind.fields_by_name.get(name) if kind is not None else None
        if field is None or field.is_repeated:
            return _absent
        kind = field.message_type
    if kind is not None and kind.full_name in WRAPPERS:
        path, kind = (*path, "value"), None
    return attrgetter(".".join(path)) if kind is None else _absent


def _absent(_: Message) -> None:
    return None
