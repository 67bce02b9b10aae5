"""Protobuf's messages, and the columns that they become."""

from __future__ import annotations

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    compiled_files,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Scalar,
    SchemaError,
    Struct,
    require_distinct,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.values import INSTANT

INTEGER, BIGINT = pa.int32(), pa.int64()
SCALARS: dict[int, pa.DataType] = {
    FieldDescriptor.TYPE_INT32: INTEGER,
    FieldDescriptor.TYPE_SINT32: INTEGER,
    FieldDescriptor.TYPE_SFIXED32: INTEGER,
    FieldDescriptor.TYPE_UINT32: BIGINT,
    FieldDescriptor.TYPE_FIXED32: BIGINT,
    FieldDescriptor.TYPE_INT64: BIGINT,
    FieldDescriptor.TYPE_SINT64: BIGINT,
    FieldDescriptor.TYPE_SFIXED64: BIGINT,
    # No wider integer takes all of them.
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_ENUM: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
}
# Messages that become something else than a struct of their fields. Google's Struct contains
# itself, so it becomes JSON.
MESSAGES: dict[str, pa.DataType] = {
    "google.protobuf.Timestamp": INSTANT,
    "google.protobuf.Struct": pa.string(),
    "google.protobuf.Value": pa.string(),
    "google.protobuf.ListValue": pa.string(),
}
WRAPPERS = {
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double")
    + ("String", "Bytes")
}
DECIMAL = "confluent.type.Decimal"
MOST_DIGITS = 38
# The number and the type of `confluent.field_meta`, which has a decimal's precision and scale.
OPTIONS = """
syntax = "proto3";
message Meta { map<string, string> params = 2; }
message Options { Meta meta = 1088; }
"""


def record_type(message: Descriptor) -> Struct:
    """Return the type of a message.

    Args:
        message: its descriptor.

    Raises:
        SchemaError: a field of it becomes no column, or it has none.
    """
    record = _struct(message, ())
    if record is None:
        raise SchemaError(f"has the message `{message.full_name}` without fields, so no columns")
    return record


def _struct(message: Descriptor, path: tuple[str, ...]) -> Struct | None:
    """Return the type of a message; None if it has no fields with values."""
    name = message.full_name
    if name in path:
        raise SchemaError(f"has the message `{name}` within itself, which no column can have")
    fields = tuple((field.name, _field(field, (*path, name))) for field in message.fields)
    require_distinct([field for field, node in fields if node is not None])
    return Struct(fields) if any(node is not None for _, node in fields) else None


def _field(field: FieldDescriptor, path: tuple[str, ...]) -> Node | None:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        values = _value(entry.fields_by_name["value"], path)
        return None if values is None else Items(values, SCALARS[entry.fields_by_name["key"].type])
    node = _value(field, path)
    return Items(node) if node is not None and field.is_repeated else node


def _value(field: FieldDescriptor, path: tuple[str, ...]) -> Node | None:
    """Return the type of one value of a field."""
    message = field.message_type
    if message is None:
        return Scalar(SCALARS[field.type])
    name = message.full_name
    if name in MESSAGES:
        return Scalar(MESSAGES[name])
    if name in WRAPPERS:
        return Scalar(SCALARS[message.fields_by_name["value"].type])
    if name == DECIMAL and (decimal := _decimal(field)):
        return Scalar(decimal)
    return _struct(message, path)


def _decimal(field: FieldDescriptor) -> pa.Decimal128Type | None:
    """Return the type that a field's options name; None if they name none."""
    options = _options()
    options.ParseFromString(field.GetOptions().SerializeToString())
    params = options.meta.params
    precision, scale = params.get("precision", ""), params.get("scale", "")
    if not (precision.isdecimal() and scale.isdecimal()):
        return None
    fits = 0 < int(precision) <= MOST_DIGITS and int(scale) <= int(precision)
    return pa.decimal128(int(precision), int(scale)) if fits else None


def _options() -> Message:
    _, pool = read_files(compiled_files(OPTIONS))
    return GetMessageClass(pool.FindMessageTypeByName("Options"))()
