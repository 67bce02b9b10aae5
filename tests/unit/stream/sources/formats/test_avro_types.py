"""Avro schemas, and the columns that they become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import (
    SchemaError,
    parse_avro,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import type_name


def columns(*fields: Any, references: tuple[str, ...] = ()) -> str:
    named = [{"name": f"c{number}", "type": kind} for number, kind in enumerate(fields)]
    schema = {"type": "record", "name": "Row", "namespace": "shop", "fields": named}
    return type_name(parse_avro(json.dumps(schema), references).column)


def column(kind: Any) -> str:
    return columns(kind).removeprefix("struct<c0:").removesuffix(">")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("int", "int"),
        ({"type": {"type": "int"}}, "int"),
        (
            {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4},
            "decimal(4,0)",
        ),
        (
            {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5},
            "binary",
        ),
        (["null", "long"], "bigint"),
        (["string", "null"], "string"),
        (["int", "long"], "bigint"),
        (["null", "float", "double"], "double"),
        (["null", "int", "string"], "struct<member0:int,member1:string>"),
        ({"type": "array", "items": ["null", "int"]}, "array<int>"),
        ({"type": "map", "values": "boolean"}, "map<string,boolean>"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 16}, "binary"),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, "string"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "int", "logicalType": "time-millis"}, "int"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp_ntz"),
        ({"type": "long", "logicalType": "date"}, "bigint"),
        ({"type": "int", "connect.name": "io.debezium.time.Date"}, "date"),
        ({"type": "long", "connect.name": "io.debezium.time.Timestamp"}, "timestamp_ntz"),
        ({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}, "timestamp_ntz"),
        ({"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}, "timestamp"),
        ({"type": "string", "connect.name": "io.debezium.data.Json"}, "string"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "decimal(9,2)",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2},
            "decimal(38,2)",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 12}, "binary"),
        (
            {
                "type": "bytes",
                "connect.name": "org.apache.kafka.connect.data.Decimal",
                "connect.parameters": {"scale": "3"},
            },
            "decimal(38,3)",
        ),
    ],
)
def test_types(kind: Any, expected: str) -> None:
    assert column(kind) == expected


def test_a_field_of_null_is_no_column() -> None:
    assert columns("int", "null", "string") == "struct<c0:int,c2:string>"


def test_names_refer_to_types_of_this_schema_and_of_others() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "a", "type": "int"}]}
    assert columns(inner, ["null", "shop.In"], "In") == (
        "struct<c0:struct<a:int>,c1:struct<a:int>,c2:struct<a:int>>"
    )
    other = json.dumps({**inner, "namespace": "other"})
    assert columns("other.In", references=(other,)) == "struct<c0:struct<a:int>>"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "is no Avro schema"),
        ('"string"', "is not of a record"),
        ('{"type": "record", "name": "R"}', "is no Avro schema"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}',
            "has the record `R` within itself",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "r", "type": "S"}]}',
            "uses the type `S`, which it does not define",
        ),
        (
            '{"type": "record", "name": "R", "fields": '
            '[{"name": "r", "type": "int"}, {"name": "R", "type": "int"}]}',
            "differ only in their case: `r`",
        ),
    ],
)
def test_schemas_without_columns(schema: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        parse_avro(schema)
