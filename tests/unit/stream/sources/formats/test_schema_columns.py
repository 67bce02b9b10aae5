"""Columns that take the records of several schemas."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import parse_avro
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import (
    require_castable,
    type_name,
    widened,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError, Struct


def record(**fields: Any) -> Struct:
    named = [{"name": name, "type": kind} for name, kind in fields.items()]
    return parse_avro(json.dumps({"type": "record", "name": "Row", "fields": named}))


def nested(**fields: Any) -> dict[str, Any]:
    named = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "Part", "fields": named}


def test_new_fields_come_last_and_types_become_wider() -> None:
    old = record(id="int", ratio="float", part=nested(a="int"))
    new = record(more="string", ID="long", part=nested(b="int", a="long"))
    expected = "struct<id:bigint,ratio:float,part:struct<a:bigint,b:int>,more:string>"
    assert type_name(widened(old.column, new.column)) == expected
    assert widened(pa.int64(), pa.int32()) == pa.int64()
    assert widened(pa.decimal128(9, 2), pa.decimal128(12, 2)) == pa.decimal128(12, 2)
    assert widened(pa.decimal128(12, 2), pa.decimal128(9, 2)) == pa.decimal128(12, 2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("int", "string", "has `c` as string, which is int in the other schemas"),
        ("int", "double", "has `c` as double"),
        (nested(a="int"), nested(a="string"), "has `c.a` as string"),
        (
            {"type": "array", "items": "int"},
            {"type": "array", "items": "string"},
            "has `c.element` as string",
        ),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, "`c.value`"),
    ],
)
def test_types_without_a_wider_one(old: Any, new: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        widened(record(c=old).column, record(c=new).column)


def test_what_can_be_cast() -> None:
    row = record(a="string", b="int", c=nested(x="boolean"), d="bytes")
    texts = pa.struct([(name, pa.string()) for name in "abcd"])
    require_castable(row, texts)
    require_castable(row, pa.struct([("b", pa.decimal128(9, 2))]))
    with pytest.raises(SchemaError, match="has `b` as int, which cannot be cast to date"):
        require_castable(row, pa.struct([("b", pa.date32())]))
    with pytest.raises(SchemaError, match="has `c` as struct<x:boolean>"):
        require_castable(row, pa.struct([("c", pa.int32())]))


def of_union(*types: str) -> Any:
    records = [
        {"type": "record", "name": name, "fields": [{"name": "number", "type": "string"}]}
        for name in types
    ]
    schema = {
        "type": "record",
        "name": "P",
        "fields": [{"name": "via", "type": ["null", *records]}],
    }
    return parse_avro(json.dumps(schema)).column


def test_members_of_unions_keep_their_places() -> None:
    """Columns know them by their positions, and Avro by the names of their types."""
    two, three = of_union("Card", "Bank"), of_union("Card", "Bank", "Cash")
    assert widened(two, three) == three and widened(three, two) == three
    for other in (of_union("Bank", "Card"), of_union("Card"), of_union("Card", "Cash", "Bank")):
        for pair in ((three, other), (other, three)):
            with pytest.raises(SchemaError, match=r"has the union `via` of .*Card"):
                widened(*pair)


def test_members_of_unions_in_several_namespaces() -> None:
    """A type may move to another one, if no other type of the union has its name."""
    two = of_union("v1.Card", "v1.Bank")
    for other in (of_union("v2.Card", "v1.Bank"), of_union("v1.Card", "v1.Bank", "v2.Card")):
        assert widened(two, other)
    both = of_union("v1.Card", "v2.Card")
    assert widened(both, both) == both
    with pytest.raises(SchemaError, match=r"the union `via` of v2\.Card, v1\.Card, which is v1"):
        widened(both, of_union("v2.Card", "v1.Card"))
