"""Messages of Flight SQL (Apache Arrow, `format/FlightSql.proto`), as far as they are used here.

No package brings them for Python. They are defined in a pool of their own, so that a program that
has the whole of them is not disturbed.
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
# TableDefinitionOptions: what to do without the table, and with it.
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
    """A message of Flight SQL."""
    found = _POOL.FindMessageTypeByName(f"{PACKAGE}.{name}")
    return message_factory.GetMessageClass(found)(**fields)


def parse(name: str, data: bytes) -> Any:
    """A message from its bytes.

    Raises:
        ValueError: they are none.
    """
    parsed = message(name)
    try:
        parsed.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"This is no {name}: {error}") from error
    return parsed


def pack(name: str, **fields: Any) -> bytes:
    """A message as Flight wraps them: with its type."""
    value = message(name, **fields).SerializeToString()
    return any_pb2.Any(type_url=TYPE_URL + name, value=value).SerializeToString()


def unpack(data: bytes) -> tuple[str, Any]:
    """Name and content of a wrapped message.

    Raises:
        ValueError: it is of another protocol or not known here.
    """
    wrapped = any_pb2.Any()
    try:
        wrapped.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"This is no message of Flight SQL: {error}") from error
    name = wrapped.type_url.removeprefix(TYPE_URL)
    if name not in FIELDS:
        raise ValueError(f"This server does not know `{wrapped.type_url}`.")
    return name, parse(name, wrapped.value)
