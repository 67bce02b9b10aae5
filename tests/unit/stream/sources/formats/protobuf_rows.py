"""Schemas of Protobuf, what becomes of their messages, and random ones."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timezone
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.fast_protobuf import fast_protobuf_reader
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import message_schemas
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_records import (
    MessageLayout,
    ProtobufReader,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import read_files
from dbt.adapters.iceberg_stream.stream.sources.formats.record_reader import (
    FastReader,
    SlowReader,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from tests.unit.stream.sources.formats.decoded_messages import require_sound

ID = 7
HEADER = b"\0" + ID.to_bytes(4, "big")
# The header and the index of the first message of a schema.
FIRST = HEADER + b"\0"
UTC = timezone.utc


class Schema:
    """A schema, and what decodes its messages.

    Attributes:
        decoder: of the messages.
        layout: which message is read.
        fast: reads most messages; None if nothing does.
        slow: reads all.
    """

    def __init__(
        self,
        text: str,
        message: str | None = None,
        syntax: str = "proto3",
        record: str | None = None,
        columns: pa.Schema | None = None,
        **options: Any,
    ) -> None:
        registered = RegisteredSchema(ID, f'syntax = "{syntax}"; {text}', "PROTOBUF")
        envelope = Envelope(
            **{"name": "protobuf", "columns": "", "encoding": "protobuf", **options},
            message=message,
            record=record,
        )
        schemas = message_schemas([registered], envelope, columns)
        self.decoder = MessageDecoder(envelope, schemas.columns, schemas=schemas)
        [writer] = schemas.writers
        assert isinstance(writer.layout, MessageLayout)
        self.layout = writer.layout
        self.fast: FastReader | None = fast_protobuf_reader(writer.record, writer.layout)
        self.slow: SlowReader = ProtobufReader(writer.record, writer.layout)
        self.pool = read_files(self.layout.files)[1]

    def message(self, name: str = "Row") -> type[Message]:
        return GetMessageClass(self.pool.FindMessageTypeByName(name))

    def decode(self, *values: bytes) -> tuple[list[Any], list[str | None]]:
        """Return the rows and problems of messages with their headers, none of them skipped."""
        rows, problems, others = self.decode_all(*values)
        assert not any(others)
        return rows, problems

    def decode_all(self, *values: bytes) -> tuple[list[Any], list[str | None], list[bool]]:
        """Return the rows and problems of messages, and which of them are skipped."""
        decoded = self.decoder.decode(values)
        require_sound(decoded, self.decoder, len(values))
        found = decoded.rows.to_pylist(maps_as_pydicts="strict")
        by_place = dict(zip(decoded.of.tolist(), found, strict=True))
        reasons = {own.place: own.reason for own in decoded.bad}
        places = range(len(values))
        others = [place not in by_place and place not in reasons for place in places]
        assert sum(others) == decoded.skipped
        return [*map(by_place.get, places)], [*map(reasons.get, places)], others

    def row(self, **fields: Any) -> Any:
        """Return what a message becomes, alone and among others."""
        body = FIRST + self.message()(**fields).SerializeToString()
        rows, problems = self.decode(*[body] * 6)
        assert problems == [None] * 6
        assert self.decode(body) == (rows[:1], [None])
        assert rows == rows[:1] * 6
        return rows[0]


SCALARS: Mapping[str, st.SearchStrategy[Any]] = {
    "sint32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "sfixed64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(max_size=3),
    "bytes": st.binary(max_size=3),
}
KEYS = ("sint32", "uint64", "bool", "string")


RULES = {
    "proto3": ["{}", "optional {}", "repeated {}", "map<{key}, {}>"],
    "proto2": ["optional {}", "required {}", "repeated {}", "map<{key}, {}>"],
}
DEFAULTS = {"string": "'x'", "bool": "true", "Kind": "B", "sint32": "-5", "double": "inf"}
NUMBERS = ("sint32", "uint32", "sfixed64", "uint64", "float", "double", "bool", "Kind")


@st.composite
def schemas(draw: st.DrawFn, syntax: str = "proto3", with_all: bool = True) -> str:
    """Draw a schema whose first message has messages within it.

    Args:
        syntax: proto2 or proto3.
        with_all: whether groups and numbers that are not packed may be in it.
    """
    fields = []
    kinds = [*SCALARS, "In", "Kind"]
    for number in range(1, draw(st.integers(2, 6))):
        kind = draw(st.sampled_from(kinds))
        rule = draw(st.sampled_from(RULES[syntax]))
        written = rule.format(kind, key=draw(st.sampled_from(KEYS)))
        option = ""
        if "repeated" in rule and kind in NUMBERS:
            default = st.just("") if syntax == "proto3" else st.just(" [packed = true]")
            option = draw(default | st.just(" [packed = false]") if with_all else default)
        elif syntax == "proto2" and "optional" in rule and kind in DEFAULTS:
            option = draw(st.sampled_from(["", f" [default = {DEFAULTS[kind]}]"]))
        fields.append(f"{written} f{number} = {number}{option};")
    if syntax == "proto2" and with_all and draw(st.booleans()):
        fields.append("repeated group G = 9 { optional sint32 x = 1; }")
    inner = draw(st.sampled_from([*SCALARS, "Kind"]))
    parts = f"enum Kind {{ A = 0; B = 1; }} message In {{ optional {inner} x = 1; }}"
    return f"message Row {{ {parts} {' '.join(fields)} }}"


def scalars(field: Any) -> st.SearchStrategy[Any]:
    names = {5: "sint32", 17: "sint32", 13: "uint32", 16: "sfixed64", 4: "uint64", 2: "float"}
    names |= {1: "double", 8: "bool", 9: "string", 12: "bytes"}
    return st.integers(0, 1) if field.enum_type is not None else SCALARS[names[field.type]]


@st.composite
def messages(draw: st.DrawFn, kind: type[Message]) -> Message:
    """Draw a message."""
    return _filled(draw, kind())


def _filled(draw: st.DrawFn, message: Any) -> Any:
    for field in message.DESCRIPTOR.fields:
        if not draw(st.booleans()) and not field.is_required:
            continue
        target = getattr(message, field.name)
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key = draw(scalars(entry.fields_by_name["key"]))
            if entry.fields_by_name["value"].message_type is not None:
                _filled(draw, target[key])
            else:
                target[key] = draw(scalars(entry.fields_by_name["value"]))
        elif field.is_repeated and entry is not None:
            _filled(draw, target.add())
        elif field.is_repeated:
            target.extend(draw(st.lists(scalars(field), max_size=3)))
        elif entry is not None:
            target.SetInParent()
            _filled(draw, target)
        else:
            setattr(message, field.name, draw(scalars(field)))
    return message
