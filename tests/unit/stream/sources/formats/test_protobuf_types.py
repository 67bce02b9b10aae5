"""Columns of Protobuf's messages, and schemas that have none."""

from __future__ import annotations

import base64

import pytest

from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import parse_record
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_records import MessageLayout
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import MAIN, read_files
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import type_name
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    Reference,
    RegisteredSchema,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError, Struct

WELL_KNOWN = "".join(
    f'import "google/protobuf/{name}.proto"; '
    for name in ("timestamp", "wrappers", "struct", "any", "duration", "empty")
)
DECIMAL = 'import "confluent/meta.proto"; import "confluent/type/decimal.proto"; '
ADDRESS = 'syntax = "proto3"; package shop; message Address { string city = 1; }'


def schema(text: str, **references: str) -> RegisteredSchema:
    named = tuple(Reference(f"shop/{name}.proto", of) for name, of in references.items())
    return RegisteredSchema(1, f'syntax = "proto3"; {text}', "PROTOBUF", named)


def parse(registered: RegisteredSchema, message: str | None = None) -> tuple[Struct, MessageLayout]:
    record, layout = parse_record(registered, None, False, message)
    assert isinstance(layout, MessageLayout)
    return record, layout


def columns(text: str, message: str | None = None, **references: str) -> str:
    record, _ = parse(schema(text, **references), message)
    return type_name(record.column).removeprefix("struct<").removesuffix(">")


@pytest.mark.parametrize(
    ("field", "column"),
    [
        *((f"{kind} f", "int") for kind in ("int32", "sint32", "sfixed32")),
        *((f"{kind} f", "bigint") for kind in ("uint32", "fixed32", "int64", "sint64", "sfixed64")),
        *((f"{kind} f", "decimal(20,0)") for kind in ("uint64", "fixed64")),
        ("float f", "float"),
        ("double f", "double"),
        ("bool f", "boolean"),
        ("optional string f", "string"),
        ("bytes f", "binary"),
        ("repeated int32 f", "array<int>"),
        ("map<int64, bool> f", "map<bigint,boolean>"),
        ("google.protobuf.Timestamp f", "timestamp"),
        ("google.protobuf.UInt64Value f", "decimal(20,0)"),
        ("google.protobuf.Struct f", "string"),
        ("repeated google.protobuf.Value f", "array<string>"),
        ("google.protobuf.Duration f", "struct<seconds:bigint,nanos:int>"),
        ("google.protobuf.Any f", "struct<type_url:string,value:binary>"),
    ],
)
def test_types(field: str, column: str) -> None:
    assert columns(f"{WELL_KNOWN} message Row {{ {field} = 1; }}") == f"f:{column}"


def test_fields_without_values_are_no_columns() -> None:
    fields = "google.protobuf.Empty a = 1; repeated Nothing b = 2; int32 c = 3;"
    assert (
        columns(f"{WELL_KNOWN} message Nothing {{}} message Row {{ {fields} }}", "Row") == "c:int"
    )


def test_members_of_a_oneof_and_enums_are_columns() -> None:
    text = "enum Kind { A = 0; } message Row { oneof o { Kind a = 1; string b = 2; } }"
    assert columns(text) == "a:string,b:string"


@pytest.mark.parametrize(
    ("params", "column"),
    [
        ((("precision", "10"), ("scale", "2")), "decimal(10,2)"),
        ((("precision", "10"),), "struct<value:binary,precision:bigint,scale:int>"),
        ((("precision", "64"), ("scale", "2")), "struct<value:binary,precision:bigint,scale:int>"),
    ],
)
def test_decimals_need_precision_and_scale(
    params: tuple[tuple[str, str], ...], column: str
) -> None:
    named = ", ".join(f'{{key: "{key}", value: "{value}"}}' for key, value in params)
    field = f"confluent.type.Decimal f = 1 [(confluent.field_meta) = {{params: [{named}]}}];"
    assert columns(f"{DECIMAL} message Row {{ {field} }}") == f"f:{column}"


def test_imports_as_text_and_as_descriptors() -> None:
    """Clients may register serialized descriptors, which some registries keep as they are."""
    text = 'package shop; import "shop/address.proto"; message Row { Address a = 1; }'
    assert columns(text, address=ADDRESS) == "a:struct<city:string>"
    _, layout = parse(schema(text, address=ADDRESS))
    _, pool = read_files(layout.files)

    def encoded(file: str) -> str:
        return base64.b64encode(pool.FindFileByName(file).serialized_pb).decode()

    for main in (schema(text).text, encoded(MAIN)):
        for address in (ADDRESS, encoded("shop/address.proto")):
            references = (Reference("shop/address.proto", address),)
            registered = RegisteredSchema(1, main, "PROTOBUF", references)
            record, _ = parse(registered)
            assert type_name(record.column) == "struct<a:struct<city:string>>"


def test_the_message_that_is_read() -> None:
    text = (
        "package shop; message First { int32 a = 1; map<string, int32> m = 2; "
        "message Entry { int32 b = 1; } } message Second { int32 c = 1; }"
    )
    indexes = {
        name: parse(schema(text), name)[1].index
        for name in (None, "shop.First.Entry", "shop.Second")
    }
    # The entry of the map is a message within the first one, too: the compiler puts it where the
    # field is.
    assert indexes == {None: (0,), "shop.First.Entry": (0, 1), "shop.Second": (1,)}
    record, _ = parse_record(schema(text), None, True, "shop.Second")
    assert type_name(record.column) == "struct<a:int,m:map<string,int>>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("message A { B b = 1; } message B { A a = 1; }", "has the message `A` within itself"),
        ("message A { int32 a = 1; int32 A = 2; }", "differ only in their case: `a`"),
        ("message A {}", "has the message `A` without fields"),
        ("enum E { A = 0; }", "has no message"),
        ("message A {", "Protobuf's compiler refuses: 1:"),
        ('import "shop/away.proto";', "refuses: shop/away.proto: File not found"),
    ],
)
def test_schemas_without_columns(text: str, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        columns(text)


def test_a_message_that_a_schema_does_not_have() -> None:
    with pytest.raises(SchemaError, match="has no message `B`. Set the source's `message` to .* A"):
        columns("message A { int32 a = 1; }", "B")


@pytest.mark.parametrize("name", ["../a.proto", "/a.proto"])
def test_imports_stay_within_the_schema(name: str) -> None:
    registered = RegisteredSchema(1, "", "PROTOBUF", (Reference(name, ADDRESS),))
    with pytest.raises(SchemaError, match="no name of a file within the schema"):
        parse(registered)
