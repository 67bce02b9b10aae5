"""The header that serializers of schema registries put before a message.

It is a byte 0 and the four bytes of the schema's id. JSON never begins with a byte 0, so messages
of the serializer of JSON Schema need no format of their own.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

MAGIC = "00"
MAGIC_BYTES = bytes.fromhex(MAGIC)
HEADER_BYTES = 5
# More bytes than a message has.
MAX_BYTES = 2**31 - 1


def body_sql(column: str, prefix: bytes = b"") -> str:
    """Return SQL of a message without its header.

    Args:
        column: the message.
        prefix: what follows the header, and is left out, too.
    """
    return f"substring({column}, {HEADER_BYTES + len(prefix) + 1})"


def schema_id_sql(column: str) -> str:
    """Return SQL of the id of a message's schema; null if it has no header.

    Args:
        column: the message.
    """
    number = f"cast(conv(hex(substring({column}, 2, 4)), 16, 10) as bigint)"
    has_header = f"length({column}) >= {HEADER_BYTES} and startswith({column}, X'{MAGIC}')"
    return f"if({has_header}, {number}, null)"


def schema_header(number: int) -> bytes:
    """Return the header of the messages of a schema.

    Args:
        number: id of the schema.
    """
    return MAGIC_BYTES + number.to_bytes(HEADER_BYTES - len(MAGIC_BYTES), "big")


def schema_ids(messages: pa.BinaryArray) -> set[int]:
    """Return the ids of the schemas of messages, as far as they have headers.

    Args:
        messages: the messages.
    """
    headers = pc.unique(pc.binary_slice(messages, 0, HEADER_BYTES)).to_pylist()
    return {number for header in headers if (number := schema_id(header)) is not None}


def schema_id(header: bytes) -> int | None:
    """Return the id of the schema in a header; None if it is none.

    Args:
        header: the first HEADER_BYTES of a message.
    """
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC_BYTES):
        return None
    return int.from_bytes(header[len(MAGIC_BYTES) :], "big")


def zigzag_bytes(number: int) -> bytes:
    """Return a number that is not negative as Avro and Confluent's serializers write it.

    Args:
        number: the number.
    """
    written, number = bytearray(), number << 1
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def json_sql(column: str) -> str:
    """Return SQL of JSON without the header of JSON Schema, if it has one.

    Args:
        column: the message.
    """
    return f"if(startswith({column}, X'{MAGIC}'), {body_sql(column)}, {column})"


def json_text(message: bytes) -> bytes:
    """Return JSON without the header of JSON Schema, if it has one.

    Args:
        message: the message.
    """
    return message[HEADER_BYTES:] if message.startswith(MAGIC_BYTES) else message


def json_values(messages: pa.BinaryArray) -> pa.BinaryArray:
    """Return JSON without the header of JSON Schema, where messages have one.

    Args:
        messages: the messages.
    """
    has_header = pc.starts_with(messages, pattern=MAGIC_BYTES)
    if not pc.any(has_header).as_py():
        return messages
    # Without an end, PyArrow multiplies the largest int64 by the number of messages.
    bodies = pc.binary_slice(messages, HEADER_BYTES, MAX_BYTES)
    return pc.if_else(has_header, bodies, messages)
