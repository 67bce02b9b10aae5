"""Read from messages in JSON what they say of their transactions, and the rows of changes.

Half of a JSON parser's time is to make objects of members that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import orjson
from msgspec import UNSET, DecodeError, Meta, Raw, UnsetType
from msgspec.json import Decoder

from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import MAGIC_BYTES, json_text
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import (
    TABLE,
    Origin,
    Payload,
    Transaction,
)

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# The beginning of a message with nothing but a row, by the operation.
ROW_BEGINS = {op: f'{{"op":"{op}","before":'.encode() for op in "crudm"}
NULL = Raw(b"null")
# Members of messages in the order of Payload.
OTHERS = ("status", "id", "data_collections", "commit", "xid")


class JsonOrigin(Origin, gc=False):
    """The `source` of a change; in `arrow_debezium`, `SOURCE` has the same types."""

    lsn: Int64 | None = None
    pos: Int64 | None = None


class Message(Payload, gc=False):
    """What is read of Debezium's and Maxwell's messages, and of a transaction topic's."""

    source: JsonOrigin | None = None
    before: Raw = NULL
    after: Raw = NULL
    ts_ms: Int64 | None = None
    payload: Message | UnsetType | None = UNSET


_decode = Decoder(Message).decode


def parse_json(
    values: Sequence[bytes], rows: list[bytes] | None = None
) -> Iterator[Payload | None]:
    """Yield the payloads of messages in JSON, as `PayloadReader.parse` does.

    Args:
        values: the messages.
        rows: takes each message without what `decode_debezium` reads no more, once it is parsed;
            None if the messages are not needed.
    """
    message: Message | None
    payload: Payload | None
    for value in values:
        if value[:1] == MAGIC_BYTES:
            value = json_text(value)
        try:
            # The decoder does not check the encoding of members that it skips.
            message = _decode(value if value.isascii() else str(value, "utf-8"))
        except (DecodeError, UnicodeDecodeError, RecursionError):
            message, payload = None, _parse_all(value)
        else:
            payload = message.payload or message
            if payload.op is None and payload.status is None and payload.xid is None:
                # Whether an object is empty depends on the other members, too.
                payload = _parse_all(value)
        if rows is not None:
            rows.append(value if message is None else _row_of(message) or value)
        yield payload


def _row_of(message: Message) -> bytes | None:
    """Return a change with its row and operation only; None if the message is no such change."""
    begin = ROW_BEGINS.get(message.op or "")
    if begin is None or message.payload is not UNSET:
        return None
    return b"".join((begin, message.before, b',"after":', message.after, b"}"))


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
