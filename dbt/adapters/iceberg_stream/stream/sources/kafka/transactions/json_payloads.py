"""Read from messages in JSON what they say of their transactions, and the rows of changes.

Half of a JSON parser's time is to make objects of members that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from msgspec import UNSET, DecodeError, UnsetType
from msgspec.json import Decoder

from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import MAGIC_BYTES, json_text
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import (
    TABLE,
    Origin,
    Payload,
    Transaction,
)

# Members of messages in the order of Payload.
OTHERS = ("status", "id", "data_collections", "commit", "xid")


class Message(Payload, gc=False):
    """What is read of Debezium's and Maxwell's messages, and of a transaction topic's."""

    payload: Message | UnsetType | None = UNSET


_decode = Decoder(Message).decode


def parse_json(values: Sequence[bytes]) -> Iterator[Payload | None]:
    """Yield the payloads of messages in JSON, as `PayloadReader.parse` does.

    Args:
        values: the messages.
    """
    payload: Payload | None
    for value in values:
        if value[:1] == MAGIC_BYTES:
            value = json_text(value)
        try:
            # The decoder does not check the encoding of members that it skips.
            message = _decode(value if value.isascii() else str(value, "utf-8"))
        except (DecodeError, UnicodeDecodeError, RecursionError):
            payload = _parse_all(value)
        else:
            payload = message.payload or message
            if payload.op is None and payload.status is None and payload.xid is None:
                # Whether an object is empty depends on the other members, too.
                payload = _parse_all(value)
        yield payload


def _parse_all(value: bytes) -> Payload | None:
    """Parse all members of a message: a bad record, or one of an unusual shape."""
    try:
        message = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    payload = message.get("payload") or message if isinstance(message, dict) else None
    if not payload or not isinstance(payload, dict):
        return None
    block, source = payload.get("transaction"), payload.get("source")
    return Payload(
        _text(payload.get("op")),
        Transaction(block.get("id")) if isinstance(block, dict) else None,
        Origin(*(_text(source.get(name)) for name in TABLE)) if isinstance(source, dict) else None,
        *map(payload.get, OTHERS),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
