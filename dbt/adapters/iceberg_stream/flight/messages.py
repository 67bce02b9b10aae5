"""The messages of Flight SQL (Apache Arrow, `format/FlightSql.proto`) that the server uses.

No Python package has them. They are defined in a separate descriptor pool, so that they do not
conflict with a program's own definitions.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

PACKAGE = "arrow.flight.protocol.sql"
TYPE_URL = f"type.googleapis.com/{PACKAGE}."
_KINDS = descriptor_pb2.FieldDescriptorProto

# Name, number and type of each field; an enum is an int on the wire.
FIELDS: dict[str, list[tuple[str, int, str]]] = {
    "CommandGetSqlInfo": [("info", 1, "repeated uint32")],
    "CommandGetCatalogs": [],
    "CommandGetDbSchemas": [("catalog", 1, "string"), ("db_schema_filter_pattern", 2, "string")],
    "CommandGetTables": [
        ("catalog", 1, "string"),
        ("db_schema_filter_pattern", 2, "string"),
        ("table_name_filter_pattern", 3, "string"),
        ("table_types", 4, "repeated string"),
        ("include_schema", 5, "bool"),
    ],
    "CommandGetTableTypes": [],
    "CommandStatementQuery": [("query", 1, "string"), ("transaction_id", 2, "bytes")],
    "CommandStatementUpdate": [("query", 1, "string"), ("transaction_id", 2, "bytes")],
    "CommandPreparedStatementQuery": [("prepared_statement_handle", 1, "bytes")],
    "CommandPreparedStatementUpdate": [("prepared_statement_handle", 1, "bytes")],
    "ActionCreatePreparedStatementRequest": [
        ("query", 1, "string"),
        ("transaction_id", 2, "bytes"),
    ],
    "ActionCreatePreparedStatementResult": [
        ("prepared_statement_handle", 1, "bytes"),
        ("dataset_schema", 2, "bytes"),
        ("parameter_schema", 3, "bytes"),
    ],
    "ActionClosePreparedStatementRequest": [("prepared_statement_handle", 1, "bytes")],
    "TicketStatementQuery": [("statement_handle", 1, "bytes")],
    "TableDefinitionOptions": [("if_not_exist", 1, "int32"), ("if_exists", 2, "int32")],
    "CommandStatementIngest": [
        ("table_definition_options", 1, "TableDefinitionOptions"),
        ("table", 2, "string"),
        ("schema", 3, "string"),
        ("catalog", 4, "string"),
        ("temporary", 5, "bool"),
        ("transaction_id", 6, "bytes"),
    ],
    "DoPutUpdateResult": [("record_count", 1, "int64")],
}
# TableDefinitionOptions: what to do if the table does not exist, and if it does.
NOT_EXIST_CREATE, NOT_EXIST_FAIL = 1, 2
EXISTS_FAIL, EXISTS_APPEND, EXISTS_REPLACE = 1, 2, 3


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="flight_sql_subset.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, declared in fields:
            *repeated, kind = declared.split()
            added = message.field.add(name=field, number=number)
            added.label = _KINDS.LABEL_REPEATED if repeated else _KINDS.LABEL_OPTIONAL
            if kind in FIELDS:
                added.type, added.type_name = _KINDS.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                added.type = getattr(_KINDS, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _pool()


def message(name: str, **fields: Any) -> Any:
    """Create a message.

    Args:
        name: of the message's type.
        fields: of the message.
    """
    descriptor = _POOL.FindMessageTypeByName(f"{PACKAGE}.{name}")
    return message_factory.GetMessageClass(descriptor)(**fields)


def parse(name: str, data: bytes) -> Any:
    """Parse a message.

    Args:
        name: of the message's type.
        data: the serialized message.

    Raises:
        ValueError: the bytes are not a message of this type.
    """
    parsed = message(name)
    try:
        parsed.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"The bytes are not a {name}: {error}") from error
    return parsed


def pack(name: str, **fields: Any) -> bytes:
    """Create and serialize a message, wrapped with its type as `Any`.

    Args:
        name: of the message's type.
        fields: of the message.
    """
    value = message(name, **fields).SerializeToString()
    return any_pb2.Any(type_url=TYPE_URL + name, value=value).SerializeToString()


def unpack(data: bytes) -> tuple[str, Any]:
    """Parse a message that is wrapped with its type as `Any`.

    Args:
        data: the serialized message.

    Returns:
        The name of the message's type, and the message.

    Raises:
        ValueError: it is a message of another protocol, or not supported.
    """
    wrapped = any_pb2.Any()
    try:
        wrapped.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"The bytes are not a message of Flight SQL: {error}") from error
    name = wrapped.type_url.removeprefix(TYPE_URL)
    if name not in FIELDS:
        raise ValueError(f"This server does not support `{wrapped.type_url}`.")
    return name, parse(name, wrapped.value)
