"""What is before a record in a message, besides the id of its schema: which type it is of.

In Avro that is the number of its type in a union; in Protobuf, the position of its message in the
schema, preceded by those of the messages that it is within.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from dbt.adapters.iceberg_stream.stream.sources.formats.avro_unions import UnionMember
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_records import ID, MessageLayout
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    FIRST,
    index_bytes,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.record_reader import NotDecodable, Problem
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import zigzag_bytes

NO_INDEX = (
    f"has the schema {ID}, whose union has no record with the index of the message. Check that its "
    "producer sends the id of the schema that it encodes messages with"
)
# Bytes of a number, and parts of a message index, at most.
MOST_BYTES, MOST_PARTS = 5, 100
FIRST_MESSAGE: tuple[int, ...] = (0,)


@dataclass
class Split:
    """Messages, by what is before their records.

    Attributes:
        bodies: the records of the messages that are read.
        places: of these messages; None if all are read.
        skipped: how many messages are of other types.
        problems: why others are bad, by their places.
    """

    bodies: Sequence[bytes]
    places: list[int] | None = None
    skipped: int = 0
    problems: dict[int, Problem] = field(default_factory=dict)


def split(layout: Hashable, bodies: Sequence[bytes]) -> Split:
    """Return the records of messages without their indexes.

    Args:
        layout: of the messages, as `message_schemas.Writer` has it.
        bodies: the messages without their headers.
    """
    if not isinstance(layout, UnionMember | MessageLayout):
        return Split(bodies)
    prefix = prefix_of(layout)
    if all(body.startswith(prefix) for body in bodies):
        return Split([body[len(prefix) :] for body in bodies])
    places, records = list[int](), list[bytes]()
    found = Split(records, places)
    for place, body in enumerate(bodies):
        try:
            begin = (
                _union(layout, body) if isinstance(layout, UnionMember) else _index(layout, body)
            )
        except NotDecodable as error:
            found.problems[place] = error.problem
            continue
        if begin is None:
            found.skipped += 1
        else:
            places.append(place)
            records.append(body[begin:])
    return found


def prefix_of(layout: UnionMember | MessageLayout) -> bytes:
    """Return what serializers write before a record."""
    if isinstance(layout, UnionMember):
        return zigzag_bytes(layout.index)
    return FIRST if layout.index == FIRST_MESSAGE else index_bytes(layout.index)


def _union(member: UnionMember, body: bytes) -> int | None:
    """Return where the record begins; None if the message is skipped."""
    for index in (member.index, *member.other_indexes):
        prefix = zigzag_bytes(index)
        if body.startswith(prefix):
            return len(prefix) if index == member.index else None
    raise NotDecodable(why=NO_INDEX)


def _index(layout: MessageLayout, body: bytes) -> int | None:
    """Return where the record begins; None if the message is skipped."""
    index, begin = FIRST_MESSAGE, len(FIRST)
    # One byte 0 is short for the first message of a schema.
    if not body.startswith(FIRST):
        length, begin = _number(body, 0)
        if not 0 <= length <= MOST_PARTS:
            raise NotDecodable
        parts = []
        for _ in range(length):
            part, begin = _number(body, begin)
            parts.append(part)
        index = tuple(parts) or FIRST_MESSAGE
    if index != layout.index:
        _require_other(layout, index)
        return None
    return begin


def _require_other(layout: MessageLayout, index: tuple[int, ...]) -> None:
    """Raise NotDecodable unless other messages are skipped."""
    file, _ = read_files(layout.files)
    name = _name_at(file, index)
    if name is None:
        raise NotDecodable(
            why=f"has the message index {list(index)}, which its schema {ID} does not have"
        )
    if not layout.skips_others:
        raise NotDecodable(
            why=f"is a message `{name}` of its schema {ID} and not `{layout.message.full_name}`. "
            "Set the source's `record` to the one to read, and others are skipped"
        )


def _number(body: bytes, at: int) -> tuple[int, int]:
    """Return a number in zigzag encoding, and where it ends."""
    number = 0
    for shift, byte in enumerate(body[at : at + MOST_BYTES]):
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + shift + 1
    raise NotDecodable


def _name_at(file: FileDescriptorProto, index: Sequence[int]) -> str | None:
    """Return the full name of the message with an index; None if there is none."""
    messages, names = file.message_type, [file.package] if file.package else []
    for part in index:
        if not 0 <= part < len(messages):
            return None
        names.append(messages[part].name)
        messages = messages[part].nested_type
    return ".".join(names)
