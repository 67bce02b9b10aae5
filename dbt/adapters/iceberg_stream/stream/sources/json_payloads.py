"""Read from messages in JSON what they say of their transactions, and the rows of changes.

Half of a JSON parser's time is to make objects of members that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypedDict

import orjson
from msgspec import DecodeError, Meta, Raw
from msgspec.json import Decoder

from dbt.adapters.iceberg_stream.stream.sources.payloads import Payload
from dbt.adapters.iceberg_stream.stream.sources.wire_format import MAGIC_BYTES, json_text

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# The beginning of a message with nothing but a row, by the operation.
ROW_BEGINS = {op: f'{{"op":"{op}","before":'.encode() for op in "crudm"}


class Transaction(TypedDict, total=False):
    """The `transaction` of a change."""

    id: Any


class Origin(TypedDict, total=False):
    """The `source` of a change; in `arrow_debezium`, `SOURCE` has the same types."""

    name: Any
    db: Any
    schema: Any
    table: str | None
    lsn: Int64 | None
    pos: Int64 | None


class Message(TypedDict, total=False):
    """What is read of Debezium's and Maxwell's messages, and of a transaction topic's."""

    op: str | None
    before: Raw
    after: Raw
    ts_ms: Int64 | None
    transaction: Transaction | None
    source: Origin | None
    status: Any
    id: Any
    data_collections: Any
    commit: Any
    xid: Any
    payload: Message | None


_decode = Decoder(Message).decode


def parse_json(values: Sequence[bytes], rows: list[bytes] | None = None) -> Iterator[Payload]:
    """Yield the payloads of messages in JSON, as `PayloadReader.parse` does.

    Args:
        values: the messages.
        rows: takes each message without what `decode_debezium` reads no more, once it is parsed;
            None if the messages are not needed.
    """
    message: Any
    for value in values:
        if value[:1] == MAGIC_BYTES:
            value = json_text(value)
        try:
            # The decoder does not check the encoding of members that it skips.
            message = _decode(value if value.isascii() else str(value, "utf-8"))
        except (DecodeError, UnicodeDecodeError, RecursionError):
            message, payload = None, _parse_all(value)
        else:
            # Whether an object is empty depends on the other members, too.
            payload = message.get("payload", message) or _parse_all(value)
        if rows is not None:
            rows.append(value if message is None else _row_of(message) or value)
        yield payload


def _row_of(message: Message) -> bytes | None:
    """Return a change with its row and operation only; None if the message is no such change."""
    begin = ROW_BEGINS.get(message.get("op") or "")
    if begin is None or "payload" in message:
        return None
    before, after = message.get("before", b"null"), message.get("after", b"null")
    return b"".join((begin, before, b',"after":', after, b"}"))


def _parse_all(value: bytes) -> Payload:
    """Parse all members of a message: a bad record, or one of an unusual shape."""
    try:
        payload = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    payload = payload.get("payload") or payload if isinstance(payload, dict) else {}
    return payload if isinstance(payload, dict) else {}
