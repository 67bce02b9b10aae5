"""Read from Debezium's and Maxwell's messages what they say of their transactions.

A message in Avro or Protobuf has the id of its schema in a registry before it; others are JSON. The
changes of one source and its transaction topic may be encoded differently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from dbt.adapters.iceberg_stream.stream.sources.payload_fields import JsonPayload
from dbt.adapters.iceberg_stream.stream.sources.wire_format import (
    HEADER_BYTES,
    MAGIC_BYTES,
    json_text,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.stream.sources.schema_registry import (
        RegisteredSchema,
        SchemaRegistry,
    )

# What a message says of its change, or of its transaction; None for a bad record.
Payload = dict[str, Any] | None
Parse = Callable[[Sequence[bytes]], Iterable[Payload]]
# Seconds after which the registry is asked again for a schema that it did not have.
MISSING_SECONDS = 10.0


@dataclass
class PayloadReader:
    """Reads payloads; those in Avro and Protobuf have only what the planning of batches needs.

    Attributes:
        registry: has the schemas of messages in Avro and Protobuf; None if all are JSON.
    """

    registry: SchemaRegistry | None = None
    _parsers: dict[bytes, Parse] = field(default_factory=dict, init=False, repr=False)
    # When the registry is asked again, by the headers of messages whose schemas it did not have.
    _missing: dict[bytes, float] = field(default_factory=dict, init=False, repr=False)

    def parse(self, values: Sequence[bytes]) -> Iterable[Payload]:
        """Return the payload of each message; None for a bad record, which is in no transaction.

        Take them one by one: many dictionaries at once keep Python's garbage collector busy.

        Args:
            values: the messages.

        Raises:
            StreamError: the registry refuses, or does not answer; or messages have a schema that
                cannot be read here.
        """
        if self.registry is None:
            return parse_json(values)
        headers = [value[:HEADER_BYTES] if value[:1] == MAGIC_BYTES else b"" for value in values]
        distinct = set(headers)
        if len(distinct) == 1:
            return self._parser(headers[0])(values)
        payloads: list[Payload] = [None] * len(values)
        for header in distinct:
            places = [place for place, own in enumerate(headers) if own == header]
            parsed = self._parser(header)([values[place] for place in places])
            for place, payload in zip(places, parsed, strict=True):
                payloads[place] = payload
        return payloads

    def _parser(self, header: bytes) -> Parse:
        """Return what parses the messages with a header.

        Without a header they are JSON. Sources in JSON do not need the schema of a header.
        """
        if len(header) < HEADER_BYTES:
            return parse_json
        if header not in self._parsers:
            assert self.registry is not None
            if self._missing.get(header, 0.0) > time.monotonic():
                return parse_json
            number = int.from_bytes(header[len(MAGIC_BYTES) :], "big")
            if (schema := self.registry.find(number)) is None:
                self._missing[header] = time.monotonic() + MISSING_SECONDS
                return parse_json
            self._parsers[header] = _parser_of(schema)
        return self._parsers[header]


def parse_json(values: Sequence[bytes]) -> Iterator[Payload]:
    """Yield the payloads of messages in JSON, without rows and most other members.

    Args:
        values: the messages.
    """
    from msgspec import DecodeError

    decode = _json_decoder()
    for value in values:
        if value[:1] == MAGIC_BYTES:
            value = json_text(value)
        try:
            # The decoder does not check the encoding of members that it skips.
            message = decode(value if value.isascii() else str(value, "utf-8"))
        except (DecodeError, UnicodeDecodeError, RecursionError):
            yield _parse_all(value)
        else:
            payload = message.get("payload", message)
            # Whether an object is empty depends on the other members, too.
            yield payload or _parse_all(value)


@cache
def _json_decoder() -> Callable[[bytes | str], dict[str, Any]]:
    """Return what decodes the members of JsonPayload: others take half of a parser's time."""
    from msgspec.json import Decoder

    return Decoder(JsonPayload).decode


def _parse_all(value: bytes) -> Payload:
    """Parse all members of a message: a bad record, or one of an unusual shape."""
    try:
        payload = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    payload = payload.get("payload") or payload if isinstance(payload, dict) else {}
    return payload if isinstance(payload, dict) else {}


def _bad_records(values: Sequence[bytes]) -> list[Payload]:
    return [None] * len(values)


def _parser_of(schema: RegisteredSchema) -> Parse:
    from dbt.adapters.iceberg_stream.stream.sources.avro_payloads import avro_parser
    from dbt.adapters.iceberg_stream.stream.sources.protobuf_payloads import protobuf_parser
    from dbt.adapters.iceberg_stream.stream.sources.schema_types import SchemaError

    try:
        if schema.kind == "AVRO":
            return avro_parser(schema)
        return protobuf_parser(schema) if schema.kind == "PROTOBUF" else parse_json
    except SchemaError:
        return _bad_records  # as the batch does
