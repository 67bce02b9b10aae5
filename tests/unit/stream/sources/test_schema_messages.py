"""Schemas of messages: which columns they give, and which cannot be read."""

from __future__ import annotations

import json
from typing import Any

from dbt.adapters.iceberg_stream.stream.sources.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.schema_messages import message_schemas
from dbt.adapters.iceberg_stream.stream.sources.schema_registry import RegisteredSchema


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
    assert schemas.columns.simpleString() == "struct<id:int>"
    assert [writer.ids for writer in schemas.writers] == [(1, 5)]
    assert schemas.unreadable == {
        2: "has the schema 2, which has `id` as string, which is int in the other schemas. Set the "
        "source's `columns` to choose its type",
        3: "has the schema 3, which is JSON Schema and not Avro. Set `format: json` and the "
        "source's `columns`",
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
    assert schemas.columns.simpleString() == "struct<id:bigint,more:string>"
    assert schemas.unreadable == {}


def test_columns_of_the_definition_need_no_schema_that_fits_the_others() -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    versions = [schema(1, id="int"), schema(2, id="string"), schema(3, id="bytes")]
    declared = StructType([StructField("id", LongType())])
    schemas = message_schemas(versions, Envelope("avro", "id bigint"), declared)
    assert schemas.columns == declared
    assert [writer.ids for writer in schemas.writers] == [(1,), (2,)]
    assert schemas.unreadable == {
        3: "has the schema 3, which has `id` as binary, which cannot be cast to bigint. Correct "
        "the source's `columns`"
    }
    texts = StructType([StructField("id", StringType())])
    assert message_schemas(versions, Envelope("avro", "id string"), texts).unreadable == {}
