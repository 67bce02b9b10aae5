"""Schemas of messages: which columns they give, and which cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import (
    MessageSchemas,
    json_schemas,
    message_schemas,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    Reference,
    RegisteredSchema,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import list_of
from tests.unit.stream.sources.formats.decoded_messages import ddl_of


def schema(number: int, kind: str = "AVRO", **fields: Any) -> RegisteredSchema:
    named = [{"name": name, "type": of} for name, of in fields.items()]
    text = json.dumps({"type": "record", "name": "Row", "fields": named})
    return RegisteredSchema(number, text, kind)


def test_schemas_that_cannot_be_read() -> None:
    envelope = Envelope("avro", "", required=("ID",))
    schemas = message_schemas(
        [
            schema(1, id="int"),
            schema(2, id="string"),
            schema(3, "JSON", id="int"),
            schema(4, other="int"),
            schema(5, id="int"),
        ],
        envelope,
        None,
    )
    assert ddl_of(schemas.columns) == "struct<id:int>"
    assert [writer.ids for writer in schemas.writers] == [(1, 5)]
    assert schemas.unreadable == {
        2: "has the schema 2, which has `id` as string, which is int in the other schemas. Set the "
        "source's `columns` to choose its type",
        3: "has the schema 3, which is JSON Schema and not Avro. Set `format: json`",
        4: "has the schema 4, which lacks the field `ID`, a column of the key. Set the model's "
        "`unique_key` to fields that every schema has",
    }


def test_debezium_needs_its_envelope() -> None:
    schemas = message_schemas(
        [schema(1, id="int")], Envelope("debezium", "", encoding="avro"), None
    )
    assert "is no envelope of Debezium" in schemas.unreadable[1]


def test_debezium_has_the_columns_of_its_rows() -> None:
    def envelope(number: int, **fields: Any) -> RegisteredSchema:
        named = [{"name": name, "type": of} for name, of in fields.items()]
        row = {"type": "record", "name": "Value", "fields": named}
        images = {"before": ["null", row], "after": ["null", "Value"]}
        return schema(number, **images, op="string")

    schemas = message_schemas(
        [envelope(1, id="int"), envelope(2, id="long", more="string")],
        Envelope("debezium", "", encoding="avro"),
        None,
    )
    assert ddl_of(schemas.columns) == "struct<id:bigint,more:string>"
    assert schemas.unreadable == {}


def test_columns_of_the_definition_need_no_schema_that_fits_the_others() -> None:
    versions = [schema(1, id="int"), schema(2, id="string"), schema(3, id="bytes")]
    declared = pa.schema([("id", pa.int64())])
    schemas = message_schemas(versions, Envelope("avro", "id bigint"), declared)
    assert schemas.columns == declared
    assert [writer.ids for writer in schemas.writers] == [(1,), (2,)]
    assert schemas.unreadable == {
        3: "has the schema 3, which has `id` as binary, which cannot be cast to bigint. Correct "
        "the source's `columns`"
    }
    texts = pa.schema([("id", pa.string())])
    assert message_schemas(versions, Envelope("avro", "id string"), texts).unreadable == {}


def union(number: int, *types: str, place: str = "via") -> RegisteredSchema:
    fields = [{"name": "number", "type": "string"}]
    records = [{"type": "record", "name": name, "fields": fields} for name in types]
    of_place = {
        "via": ["null", *records],
        "vias": {"type": "array", "items": ["null", *records]},
        "text": ["null", *records],
    }
    return schema(number, id="long", **{place: of_place[place]})


@pytest.mark.parametrize("place", ["via", "vias", "text"])
def test_members_of_unions_in_columns_of_the_definition(place: str) -> None:
    """A column takes the members of one position, which have the same type in all schemas."""
    member = pa.struct([("number", pa.string())])
    members = pa.struct([(f"member{number}", member) for number in range(2)])
    declared = pa.schema([("via", members), ("vias", list_of(members)), ("text", pa.string())])
    envelope = Envelope("avro", "-")
    versions = [
        union(1, "Card", "Bank", place=place),
        union(2, "Card", "Bank", "Cash", place=place),
        union(3, "Bank", "Card", place=place),
        union(4, "Card", "Cash", "Bank", place=place),
    ]
    schemas = message_schemas(versions, envelope, declared)
    assert sorted(schemas.unreadable) == [3, 4]
    assert "Members have columns by their positions" in schemas.unreadable[3]
    # A column that the definition does not have is of no matter.
    only = pa.schema([("id", pa.int64())])
    assert message_schemas(versions, envelope, only).unreadable == {}


PROTOBUF = Envelope("protobuf", "")


def protobuf(number: int, text: str) -> RegisteredSchema:
    return RegisteredSchema(number, f'syntax = "proto3"; {text}', "PROTOBUF")


def test_protobuf_with_other_numbers_of_fields_is_read_with_its_own_schema() -> None:
    first, second = "int32 id = 1; int32 x = 2;", "int32 id = 2; int32 x = 1;"
    schemas = message_schemas(
        [protobuf(n, f"message Row {{ {fields} }}") for n, fields in ((1, first), (2, second))],
        PROTOBUF,
        None,
    )
    assert ddl_of(schemas.columns) == "struct<id:int,x:int>"
    assert [writer.ids for writer in schemas.writers] == [(1,), (2,)]


def test_schemas_of_other_kinds_name_the_right_format() -> None:
    cdc = Envelope("debezium", "", encoding="protobuf")
    for envelope, key in ((PROTOBUF, "format"), (cdc, "encoding")):
        schemas = message_schemas([schema(1, id="int"), protobuf(2, "message {")], envelope, None)
        assert schemas.unreadable[1] == (
            f"has the schema 1, which is Avro and not Protobuf. Set `{key}: avro`"
        )
        assert schemas.unreadable[2].startswith(
            "has the schema 2, which Protobuf's compiler refuses: 1:"
        )
    schemas = message_schemas([protobuf(3, "")], Envelope("avro", ""), None)
    assert "Protobuf and not Avro. Set `format: protobuf`" in schemas.unreadable[3]


def test_maps_with_other_keys_do_not_fit() -> None:
    texts = ("map<string, int32> m = 1;", "map<int32, int32> m = 1;")
    schemas = message_schemas(
        [protobuf(n, f"message Row {{ {text} }}") for n, text in enumerate(texts)], PROTOBUF, None
    )
    assert "has `m` as map<int,int>, which is map<string,int> in the other" in schemas.unreadable[1]


def test_messages_in_keys_are_the_first_ones() -> None:
    envelope = Envelope("protobuf", "", message="Row", tombstone_deletes=True)
    key = protobuf(1, "message Key { int32 id = 1; }")
    row = protobuf(2, "message Row { int64 id = 1; }")
    assert message_schemas([row, key], envelope, None, keys={1}).unreadable == {}
    unreadable = message_schemas([row, key], envelope, None).unreadable
    assert "has no message `Row`. Set the source's `message` to one of: Key" in unreadable[1]


def test_other_record_types() -> None:
    """They are told apart by the name of the record, and of the key's record for keys."""
    named = [
        RegisteredSchema(n, schema(n, id="int").text.replace("Row", name))
        for n, name in enumerate(("Row", "Other", "Key", "OtherKey"), 1)
    ]
    envelope = Envelope("avro", "", record="Row", key_record="Key", tombstone_deletes=True)
    schemas = message_schemas(named, envelope, None, keys={3, 4})
    assert [writer.ids for writer in schemas.writers] == [(1, 3)]
    assert schemas.others == {2: ("Other",), 4: ("OtherKey",)}
    assert schemas.unreadable == {}
    without = Envelope("avro", "", record="Row", tombstone_deletes=True)
    assert message_schemas(named, without, None, keys={3, 4}).others == {2: ("Other",)}


def test_record_types_of_a_file() -> None:
    envelope = Envelope("protobuf", "", record="Second")
    file = protobuf(1, "message First { int32 a = 1; } message Second { int32 b = 1; }")
    schemas = message_schemas([file, protobuf(2, "message Third { int32 c = 1; }")], envelope, None)
    assert ddl_of(schemas.columns) == "struct<b:int>"
    assert schemas.others == {2: ("Third",)}


def test_durations_need_a_definition() -> None:
    duration = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    part = {"type": "record", "name": "Part", "fields": [{"name": "d", "type": ["null", duration]}]}
    words = (
        "which has `{}` as a duration, for which no column has a type. Set the source's `columns`, "
        "without the field or with it as binary"
    )
    for kind, path in {
        "plain": (duration, "x"),
        "list": ({"type": "array", "items": part}, "x.element.d"),
        "map": ({"type": "map", "values": duration}, "x.value"),
    }.values():
        schemas = message_schemas([schema(1, x=kind)], Envelope("avro", ""), None)
        assert schemas.unreadable == {1: f"has the schema 1, {words.format(path)}"}
    both = schema(1, id="int", x=duration)
    for name, of in {"id": pa.int32(), "x": pa.binary()}.items():
        declared = pa.schema([(name, of)])
        assert message_schemas([both], Envelope("avro", "-"), declared).unreadable == {}
    shorter = {**duration, "size": 4}
    assert message_schemas([schema(1, x=shorter)], Envelope("avro", ""), None).unreadable == {}


def test_envelopes_of_debezium_are_record_types() -> None:
    def envelope(number: int, table: str, **fields: Any) -> RegisteredSchema:
        row = {"type": "record", "name": "Value", "fields": json.loads(schema(0, **fields).text)}
        row["fields"] = row["fields"]["fields"]
        images = {"before": ["null", row], "after": ["null", f"{table}.Value"]}
        described = json.loads(schema(number, **images, op="string").text)
        names = {"name": "Envelope", "namespace": table}
        return RegisteredSchema(number, json.dumps({**described, **names}))

    record = "shop.orders.Envelope"
    schemas = message_schemas(
        [envelope(1, "shop.orders", id="int"), envelope(2, "shop.items", x="int")],
        Envelope("debezium", "", encoding="avro", record=record),
        None,
    )
    assert ddl_of(schemas.columns) == "struct<id:int>"
    assert schemas.others == {2: ("shop.items.Envelope",)} and not schemas.unreadable


def json_schema(number: int, **described: Any) -> RegisteredSchema:
    return RegisteredSchema(number, json.dumps({"type": "object", **described}), "JSON")


def test_schemas_of_json_that_cannot_be_read() -> None:
    integer, text = {"type": "integer"}, {"type": "string"}
    schemas = message_schemas(
        [
            json_schema(1, properties={"id": integer, "part": {"properties": {"a": integer}}}),
            json_schema(2, properties={"id": integer, "part": {"properties": {"a": text}}}),
            json_schema(3, properties={"id": integer, "part": {"oneOf": [text, integer]}}),
            json_schema(4, properties={"ID": integer, "more": {"type": "number"}}),
            json_schema(5, properties={"other": integer}),
            schema(6, id="int"),
        ],
        Envelope("json", "", required=("id",)),
        None,
    )
    assert ddl_of(schemas.columns) == "struct<id:bigint,part:struct<a:bigint>,more:double>"
    assert [writer.ids for writer in schemas.writers] == [(1,), (4,)]
    assert schemas.unreadable == {
        2: "has the schema 2, which has `part.a` as string, which is bigint in the other schemas. "
        "Set the source's `columns` to choose its type",
        3: "has the schema 3, which has `part` as a union of several types, for which no column "
        "has a type. Set the source's `columns`, without the field or with it as string",
        5: "has the schema 5, which lacks the field `id`, a column of the key. Set the model's "
        "`unique_key` to fields that every schema has",
        6: "has the schema 6, which is Avro and not JSON Schema. Set `format: avro`",
    }


def test_debezium_in_json_has_the_columns_of_its_rows() -> None:
    """Other members of the envelope may be of any type."""
    row = {"oneOf": [{"type": "null"}, {"properties": {"id": {"type": "integer"}}}]}
    text, free = {"type": "string"}, {"type": "object"}
    change = {"before": row, "after": row, "op": text, "transaction": free}
    schemas = message_schemas(
        [
            json_schema(1, properties={**change, "source": {"properties": {"table": text}}}),
            json_schema(2, properties={**change, "source": {"properties": {"x": free}}}),
            json_schema(3, properties={**change, "source": free}),
            json_schema(4, properties={"id": text}),
        ],
        Envelope("debezium", ""),
        None,
    )
    assert ddl_of(schemas.columns) == "struct<id:bigint>"
    assert sorted(number for writer in schemas.writers for number in writer.ids) == [1, 2, 3]
    assert list(schemas.unreadable) == [4]
    assert "is no envelope of Debezium" in schemas.unreadable[4]
    assert schemas.unreadable[4].endswith("For rows without it, set `format: json`")


def test_record_types_of_json() -> None:
    """The title names them; a union of them is refused, because a message does not say its own."""
    order, payment = (
        {"title": title, "properties": {title.lower(): {"type": "integer"}}}
        for title in ("Order", "Payment")
    )
    schemas = message_schemas(
        [
            json_schema(1, **order),
            json_schema(2, **payment),
            RegisteredSchema(3, json.dumps({"oneOf": [order, payment]}), "JSON"),
        ],
        Envelope("json", "", record="Order"),
        None,
    )
    assert ddl_of(schemas.columns) == "struct<order:bigint>"
    assert schemas.others == {2: ("Payment",)}
    assert "which is a union of the record types `Order`, `Payment`" in schemas.unreadable[3]


ORDER, PAYMENT = ({"type": "object", "title": title} for title in ("Order", "Payment"))
UNTITLED = {"type": "object"}
ORDER_FILE = (Reference("order.json", json.dumps(ORDER)),)


def of_title(number: int, **described: Any) -> RegisteredSchema:
    return RegisteredSchema(number, json.dumps(described), "JSON", ORDER_FILE)


def orders(*schemas: RegisteredSchema) -> MessageSchemas:
    return json_schemas(schemas, "Order", pa.schema([("id", pa.int64())]))


def test_schemas_of_a_record_type_in_json() -> None:
    schemas = orders(
        of_title(1, **ORDER),
        of_title(2, **PAYMENT),
        of_title(3, oneOf=[{"$ref": "order.json"}, {"type": "null"}]),
        of_title(4, title="Order", oneOf=[UNTITLED | {"title": "A"}, PAYMENT]),
        of_title(5, oneOf=[PAYMENT, PAYMENT]),
        of_title(6, type="string"),
    )
    assert [writer.ids for writer in schemas.writers] == [(1, 3, 4)]
    assert schemas.others == {2: ("Payment",), 5: ("Payment",), 6: ()}
    assert (ddl_of(schemas.columns), schemas.unreadable) == ("struct<id:bigint>", {})


def test_unions_are_refused() -> None:
    types = "has the schema {}, which is a union of {}, and JSON does not say which one a message "
    rest = "is of. Remove the source's `record`, and choose rows by a field in the model's query"
    avro = RegisteredSchema(3, '{"type": "record", "name": "Order", "fields": []}')
    schemas = orders(of_title(1, oneOf=[PAYMENT, ORDER]), of_title(2, oneOf=[UNTITLED]), avro)
    assert schemas.unreadable == {
        1: types.format(1, "the record types `Payment`, `Order`") + rest,
        2: types.format(2, "types of which one has no `title`") + rest,
        3: "has the schema 3, which is Avro and not JSON Schema. Set `format: avro`",
    }
    assert not schemas.writers
