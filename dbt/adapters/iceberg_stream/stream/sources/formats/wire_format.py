"""The header that serializers of schema registries put before a message.

It is a byte 0 and the four bytes of the schema's id. JSON never begins with a byte 0, so messages
of the serializer of JSON Schema need no format of their own.
"""

from __future__ import annotations

MAGIC_BYTES = b"\0"
HEADER_BYTES = 5


def schema_header(number: int) -> bytes:
    """Return the header of the messages of a schema.

    Args:
        number: id of the schema.
    """
    return MAGIC_BYTES + number.to_bytes(HEADER_BYTES - len(MAGIC_BYTES), "big")


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


def has_header(message: bytes) -> bool:
    """Return whether a message in JSON has the header of JSON Schema."""
    return message[:1] == MAGIC_BYTES


def json_text(message: bytes) -> bytes:
    """Return JSON without the header of JSON Schema, if it has one.

    Args:
        message: the message.
    """
    return message[HEADER_BYTES:] if message[:1] == MAGIC_BYTES else message
