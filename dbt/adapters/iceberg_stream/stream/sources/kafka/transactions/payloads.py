"""Read from Debezium's and Maxwell's messages what they say of their transactions.

A message in Avro or Protobuf has the id of its schema in a registry before it; others are JSON. The
changes of one source and its transaction topic may be encoded differently.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import HEADER_BYTES, MAGIC_BYTES

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
        RegisteredSchema,
        SchemaRegistry,
    )
    from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import (
        Parse,
        Payload,
    )

# Seconds after which the registry is asked again for a schema that it did not have.
MISSING_SECONDS = 10.0


@dataclass
class PayloadReader:
    """Reads payloads, which have only what the planning of batches needs.

    Attributes:
        registry: has the schemas of messages in Avro and Protobuf; None if all are JSON.
    """

    registry: SchemaRegistry | None = None
    _parsers: dict[bytes, Parse] = field(default_factory=dict, init=False, repr=False)
    # When the registry is asked again, by the headers of messages whose schemas it did not have.
    _missing: dict[bytes, float] = field(default_factory=dict, init=False, repr=False)

    def parse(self, values: Sequence[bytes]) -> Iterable[Payload | None]:
        """Return the payload of each message; None for a bad or an empty one.

        Args:
            values: the messages.

        Raises:
            StreamError: the registry refuses, or does not answer; or messages have a schema that
                cannot be read here.
        """
        if self.registry is None:
            return _parse_json(values)
        headers = [value[:HEADER_BYTES] if value[:1] == MAGIC_BYTES else b"" for value in values]
        distinct = set(headers)
        if len(distinct) == 1:
            return self._parser(headers[0])(values)
        payloads: list[Payload | None] = [None] * len(values)
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
            return _parse_json
        if header not in self._parsers:
            assert self.registry is not None
            if self._missing.get(header, 0.0) > time.monotonic():
                return _parse_json
            number = int.from_bytes(header[len(MAGIC_BYTES) :], "big")
            if (schema := self.registry.find(number)) is None:
                self._missing[header] = time.monotonic() + MISSING_SECONDS
                return _parse_json
            self._parsers[header] = _parser_of(schema)
        return self._parsers[header]


def _parse_json(values: Sequence[bytes]) -> Iterable[Payload | None]:
    from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.json_payloads import (
        parse_json,
    )

    return parse_json(values)


def _bad_records(values: Sequence[bytes]) -> list[Payload | None]:
    return [None] * len(values)


def _parser_of(schema: RegisteredSchema) -> Parse:
    from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError
    from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.avro_payloads import (
        avro_parser,
    )
    from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.protobuf_payloads import (
        protobuf_parser,
    )

    try:
        if schema.kind == "AVRO":
            return avro_parser(schema)
        return protobuf_parser(schema) if schema.kind == "PROTOBUF" else _parse_json
    except SchemaError:
        return _bad_records  # as the batch does
