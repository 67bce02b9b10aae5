"""Schemas of Protobuf, what Spark's workers decode of their messages, and random ones."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timezone
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_decoder import (
    OTHER,
    PROBLEM,
    MessageDecoder,
    MessageLayout,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_messages import ProtobufFormat
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import read_files
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Struct,
    read_type,
)

ID = 7
HEADER = b"\0" + ID.to_bytes(4, "big")
UTC = timezone.utc


class Schema:
    """A schema, and what decodes its messages."""

    def __init__(
        self,
        text: str,
        message: str | None = None,
        syntax: str = "proto3",
        record: str | None = None,
    ) -> None:
        registered = RegisteredSchema(ID, f'syntax = "{syntax}"; {text}', "PROTOBUF")
        self.record, self.layout = ProtobufFormat(message, record).parse(registered, False)
        assert isinstance(self.layout, MessageLayout)
        self.pool = read_files(self.layout.files)[1]

    def message(self, name: str = "Row") -> type[Message]:
        return GetMessageClass(self.pool.FindMessageTypeByName(name))

    def decode(self, *values: bytes) -> tuple[list[Any], list[str | None]]:
        """Return the records and problems of messages with their headers, none of them skipped."""
        rows, problems, others = self.decode_all(*values)
        assert not any(others)
        return rows, problems

    def decode_all(self, *values: bytes) -> tuple[list[Any], list[str | None], list[bool]]:
        """Return the records and problems of messages, and which of them are skipped."""
        kind = to_arrow_type(read_type(self.record))
        columns = {"value": pa.binary(), "id": pa.int64(), PROBLEM: pa.string()}
        columns |= {OTHER: pa.bool_(), "m0": kind}
        decoder = MessageDecoder({"m0": ((ID,), self.layout)}, pa.schema(columns))  # type: ignore[arg-type]
        ids = [int.from_bytes(value[1:5], "big") for value in values]
        batch = pa.record_batch({"value": pa.array(values, pa.binary()), "id": ids})
        (decoded,) = decoder.run(iter([batch]))
        decoded.validate(full=True)
        rows = [named(self.record, value) for value in decoded["m0"].to_pylist()]
        return rows, decoded[PROBLEM].to_pylist(), decoded[OTHER].to_pylist()

    def row(self, **fields: Any) -> Any:
        """Return what a message becomes."""
        body = self.message()(**fields).SerializeToString()
        rows, problems = self.decode(HEADER + b"\0" + body)
        assert problems == [None]
        return rows[0]


def named(node: Node, value: Any) -> Any:
    """Return a value with the names of fields instead of their positions."""
    if value is None:
        return None
    if isinstance(node, Struct):
        return {
            node.fields[int(k[1:])][0]: named(node.fields[int(k[1:])][1], v)
            for k, v in value.items()
        }  # type: ignore[arg-type]
    if isinstance(node, Items):
        if node.is_map:
            return {key: named(node.node, item) for key, item in value}
        return [named(node.node, item) for item in value]
    return value


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
