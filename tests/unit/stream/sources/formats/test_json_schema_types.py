"""JSON Schemas as producers write them, and the columns that they become."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from dbt.adapters.iceberg_stream.stream.sources.formats.json_schema_types import parse_json_schema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import (
    require_columns,
    type_name,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import Reference
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError, Struct

CONNECT = "org.apache.kafka.connect.data."
NULL = {"type": "null"}
TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
POINT = {"type": "object", "properties": {"x": INTEGER, "y": {"type": "number"}}}


def parse(schema: Any, *references: Reference) -> Struct:
    return parse_json_schema(json.dumps(schema), references)


def of(kind: Any, **more: Any) -> Struct:
    return parse({"type": "object", "properties": {"c": kind}, **more})


def column(kind: Any, **more: Any) -> str:
    record = of(kind, **more)
    require_columns(record)
    return type_name(record.column).removeprefix("struct<c:").removesuffix(">")


def connect(kind: str, title: str, type: str = "integer", **parameters: str) -> Any:
    """A type as Connect's JsonSchemaConverter writes it."""
    schema = {"type": type, "title": title, "connect.version": 1, "connect.type": kind}
    return {**schema, **({"connect.parameters": parameters} if parameters else {})}


def decimal(**parameters: str) -> Any:
    return connect("bytes", f"{CONNECT}Decimal", "number", **parameters)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (TEXT, "string"),
        (INTEGER, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": ["null", "string"]}, "string"),
        ({"type": ["integer", "number", "null"]}, "double"),
        ({"type": ["string"]}, "string"),
        ({"oneOf": [NULL, INTEGER]}, "bigint"),
        ({"anyOf": [INTEGER, NULL], "default": None}, "bigint"),
        ({"oneOf": [{"const": "a"}, {"const": "b"}]}, "string"),
        ({"allOf": [POINT]}, "struct<x:bigint,y:double>"),
        (
            {**POINT, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
            "struct<x:bigint,y:double>",
        ),
        ({"type": "object", "oneOf": [POINT]}, "struct<x:bigint,y:double>"),
        ({"properties": {"x": TEXT}}, "struct<x:string>"),
        ({"type": "object", "additionalProperties": INTEGER}, "map<string,bigint>"),
        ({"type": "array", "items": {"oneOf": [NULL, POINT]}}, "array<struct<x:bigint,y:double>>"),
        ({"items": TEXT}, "array<string>"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"enum": [1, 2]}, "bigint"),
        ({"enum": [1, 2.5]}, "double"),
        ({"const": True}, "boolean"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": ["string", "null"], "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "time"}, "string"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "integer", "format": "utc-millisec"}, "timestamp"),
        ({"type": "integer", "format": "date"}, "bigint"),
        *(({"type": "integer", "connect.type": f"int{n}"}, "int") for n in (8, 16, 32)),
        ({"type": "integer", "connect.type": "int64"}, "bigint"),
        ({"type": "number", "connect.type": "float32"}, "float"),
        ({"type": "number", "connect.type": "float64"}, "double"),
        ({"type": "string", "connect.type": "bytes"}, "binary"),
        (decimal(scale="2", **{"connect.decimal.precision": "9"}), "decimal(9,2)"),
        (decimal(scale="2"), "decimal(38,2)"),
        (decimal(), "decimal(38,0)"),
        (connect("int32", f"{CONNECT}Date"), "date"),
        (connect("int32", f"{CONNECT}Time"), "int"),
        (connect("int64", f"{CONNECT}Timestamp"), "timestamp"),
        (connect("int32", "io.debezium.time.Date"), "date"),
        (connect("int64", "io.debezium.time.Timestamp"), "timestamp_ntz"),
        (connect("int64", "io.debezium.time.MicroTimestamp"), "timestamp_ntz"),
        (connect("int64", "io.debezium.time.NanoTimestamp"), "timestamp_ntz"),
        (connect("int64", "io.debezium.time.MicroTime"), "bigint"),
        ({"type": "string", "title": "io.debezium.time.ZonedTimestamp"}, "timestamp"),
        ({"type": "string", "title": "io.debezium.data.Json"}, "string"),
        # A map whose keys are no texts.
        (
            {"type": "array", "connect.type": "map", "items": {"properties": {"key": INTEGER}}},
            "array<struct<key:bigint>>",
        ),
    ],
)
def test_columns_of_types(kind: Any, expected: str) -> None:
    assert column(kind) == expected


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"oneOf": [TEXT, INTEGER]}, "`c` as a union of several types"),
        ({"type": ["string", "integer"]}, "`c` as a union of several types"),
        ({"type": "object", "oneOf": [POINT, TEXT]}, "`c` as a union of several types"),
        ({"enum": ["a", 1]}, "`c` as a union of several types"),
        ({"allOf": [POINT, {"properties": {"z": TEXT}}]}, "`c` as `allOf` several schemas"),
        ({"type": "object"}, "`c` as an object without `properties`"),
        ({"type": "object", "additionalProperties": True}, "`c` as an object without"),
        ({"type": "array"}, "`c` as an array without `items`"),
        ({"type": "array", "items": [TEXT]}, "`c` as an array whose items have a type for each"),
        ({"type": "array", "prefixItems": [TEXT]}, "`c` as an array whose items have a type for"),
        ({"type": "array", "items": {"type": "object"}}, "`c.element` as an object without"),
        ({"additionalProperties": {"oneOf": [TEXT, INTEGER]}}, "`c.value` as a union"),
        ({"properties": {"d": {"type": "object"}}}, "`c.d` as an object without"),
        ({}, "`c` as values of any type"),
        ({"oneOf": [NULL, {}]}, "`c` as values of any type"),
        ({"anyOf": [TEXT, {"description": "or else"}]}, "`c` as a union of several types"),
        ({"allOf": [{"required": ["x"]}]}, "`c` as values of any type"),
        (True, "`c` as values of any type"),
        ({"$ref": "#"}, "`c` as `#` within itself"),
        (decimal(scale="-2"), "`c` as decimals of the scale -2"),
        ({"type": "file"}, "`c` as values of the type `file`"),
    ],
)
def test_types_that_need_a_definition(kind: Any, words: str) -> None:
    with pytest.raises(SchemaError) as refused:
        require_columns(of(kind))
    assert f"has {words}" in str(refused.value)
    assert str(refused.value).endswith(
        "for which no column has a type. Set the source's `columns`, without the field or with it "
        "as string"
    )


def test_fields_without_values_become_no_columns() -> None:
    kinds = {"a": NULL, "b": TEXT, "c": {"oneOf": [NULL]}, "d": {"type": "array", "items": NULL}}
    assert type_name(parse({"properties": kinds}).column) == "struct<b:string>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON Schema"),
        ('"x"', "is no JSON Schema"),
        ("true", "is of values of any type, so it has no columns. Set the source's `columns`"),
        ('{"type": "string"}', "is not of an object with `properties`, so it has no columns"),
        ('{"type": "object"}', "is of an object without `properties`, so it has no columns"),
        ('{"oneOf": [{"type": "string"}, {"type": "integer"}]}', "is of a union of several types"),
        ('{"properties": 5}', "is no JSON Schema"),
        ('{"properties": {"a": {"type": 5}}}', "is no JSON Schema"),
        ('{"properties": {"a": {"$ref": "x.json"}}}', "refers to `x.json`, which neither it nor"),
        ('{"properties": {"a": {"$ref": "#/$defs/a"}}}', "refers to `#/$defs/a`, which neither"),
        (
            '{"properties": {"a": {"type": "string"}, "A": {"type": "string"}}}',
            "has fields that differ only in their case: `a`",
        ),
    ],
)
def test_schemas_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(SchemaError, match=f"^{words.replace('$', '[$]')}"):
        parse_json_schema(text)


class Color(Enum):
    RED = "red"


class Address(BaseModel):
    city: str
    zip: int | None = None


class Order(BaseModel):
    id: int
    price: float
    note: str | None = Field(None, alias="the-note")
    day: date
    at: datetime | None
    token: UUID
    color: Color
    kind: Literal["new"]
    home: Address
    work: Address | None
    all: list[Address]
    counts: dict[str, int]


def test_schemas_of_pydantic() -> None:
    """They have `$defs`, `$ref` and `anyOf` with null."""
    schema = Order.model_json_schema()
    address = "struct<city:string,zip:bigint>"
    assert type_name(parse(schema).column) == (
        "struct<id:bigint,price:double,the-note:string,day:date,at:timestamp,token:string,"
        f"color:string,kind:string,home:{address},work:{address},all:array<{address}>,"
        "counts:map<string,bigint>>"
    )


def test_decimals_of_pydantic() -> None:
    """They may be numbers or texts, unless the schema is of what is written."""

    class Priced(BaseModel):
        price: Decimal

    with pytest.raises(SchemaError, match="`price` as a union of several types"):
        require_columns(parse(Priced.model_json_schema()))
    written = parse(Priced.model_json_schema(mode="serialization"))
    assert type_name(written.column) == "struct<price:string>"


def not_included(kind: Any) -> Any:
    return {"oneOf": [{"type": "null", "title": "Not included"}, kind]}


def test_schemas_of_java_classes() -> None:
    """Confluent's serializer writes them with mbknor's generator, whose output this is."""
    address, free = {"$ref": "#/definitions/Address"}, {"$ref": "#/definitions/Object"}
    definitions = {
        "Address": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"city": not_included(TEXT), "zip": INTEGER},
            "required": ["zip"],
        },
        "Object": {"type": "object", "additionalProperties": False, "properties": {}},
    }
    kinds = {
        "id": (INTEGER, "bigint"),
        "price": (not_included({"type": "number"}), "double"),
        "date": (not_included({"type": "integer", "format": "utc-millisec"}), "timestamp"),
        "day": (not_included({"type": "string", "format": "date"}), "date"),
        "color": (not_included({"type": "string", "enum": ["RED", "GREEN"]}), "string"),
        "home": (not_included(address), "struct<city:string,zip:bigint>"),
        "all": (
            not_included({"type": "array", "items": address}),
            "array<struct<city:string,zip:bigint>>",
        ),
        "counts": (
            not_included({"type": "object", "additionalProperties": INTEGER}),
            "map<string,bigint>",
        ),
    }
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: kind for name, (kind, _) in kinds.items()},
        "required": ["id"],
        "definitions": definitions,
    }
    record = parse(schema)
    require_columns(record)
    assert type_name(record.column) == (
        f"struct<{','.join(f'{name}:{column}' for name, (_, column) in kinds.items())}>"
    )
    # Without a module for Java's times, their types are unknown, and so are those of objects.
    for words, kind in {
        "`c` as values of any type": not_included({}),
        "`c` as an object without": not_included(free),
        "`c.value` as an object without": {"type": "object", "additionalProperties": free},
    }.items():
        with pytest.raises(SchemaError, match=words):
            require_columns(of(kind, definitions=definitions))


def test_the_order_of_connects_fields() -> None:
    """The converter writes properties in any order, and their positions besides."""
    schema = {
        "type": "object",
        "title": "shop.Value",
        "properties": {
            "c": {"oneOf": [NULL, {**TEXT, "connect.type": "x"}], "connect.index": 2},
            "a": {**INTEGER, "connect.type": "int32", "connect.index": 0},
            "b": {"enum": ["x"], "connect.index": 1},
        },
    }
    assert type_name(parse(schema).column) == "struct<a:int,b:string,c:string>"


@pytest.mark.parametrize("root", [{}, {"$id": "https://shop.example/order.json"}])
@pytest.mark.parametrize(
    "draft",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2020-12/schema",
        "http://json-schema.org/schema#",
        None,
    ],
)
def test_references_to_other_schemas(draft: str | None, root: Any) -> None:
    """By the names of the registry's references, and by places in them."""
    dialect = {"$schema": draft} if draft else {}
    city = Reference("city.json", json.dumps({**dialect, "type": "string"}))
    address = {**dialect, "type": "object", "properties": {"city": {"$ref": "city.json"}}}
    parts = {**dialect, "definitions": {"a/b": INTEGER}}
    references = (
        city,
        Reference("address.json", json.dumps(address)),
        Reference("https://shop.example/parts.json", json.dumps(parts)),
    )
    properties = {
        "home": {"$ref": "address.json"},
        "more": {"$ref": "https://shop.example/parts.json#/definitions/a~1b"},
    }
    record = parse({**dialect, **root, "type": "object", "properties": properties}, *references)
    assert type_name(record.column) == "struct<home:struct<city:string>,more:bigint>"
