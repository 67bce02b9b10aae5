"""Schemas of topics: their ids in frontiers, their columns, and wrong definitions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.kafka_frontiers import offsets_of, schema_ids_of
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source
from dbt.adapters.iceberg_stream.stream.sources.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.topic_schemas import TopicSchemas

ADDRESS = "http://registry:8081"
AVRO = {"type": "kafka", "bootstrap_servers": "b:1", "topic": "t", "format": "avro"}


def schema(number: int, kind: str = "AVRO", **fields: Any) -> RegisteredSchema:
    named = [{"name": name, "type": of} for name, of in fields.items()]
    text = json.dumps({"type": "record", "name": "Row", "fields": named})
    return RegisteredSchema(number, text, kind)


class Registry:
    """A registry without a server."""

    address = ADDRESS

    def __init__(self, **subjects: Sequence[RegisteredSchema]) -> None:
        self.subjects = {name.replace("_", "-"): list(of) for name, of in subjects.items()}

    def versions(self, subject: str) -> list[RegisteredSchema]:
        return self.subjects.get(subject, [])

    def by_id(self, number: int) -> RegisteredSchema:
        return next(s for of in self.subjects.values() for s in of if s.id == number)


def topic_schemas(registry: Registry, subject: str | None = None) -> TopicSchemas:
    return TopicSchemas(registry, Envelope("avro", ""), subject)  # type: ignore[arg-type]


def test_columns_begin_with_the_newest_schema_and_then_grow() -> None:
    old, new = schema(1, id="int", dropped="int"), schema(2, note="string", id="long")
    registry = Registry(t_value=[old, new])
    schemas = topic_schemas(registry)
    first = schemas.pin(["t"], None, {"0": 5})
    assert first == {"0": 5, "schema-ids": {"t-value": [2, 1]}}
    assert schemas.columns_of(["t"], first) == "struct<note:string,id:bigint,dropped:int>"
    registry.subjects["t-value"].append(schema(9, id="long", last="int"))
    second = schemas.pin(["t"], first, {"0": 7})
    assert schema_ids_of(second) == {"t-value": [2, 1, 9]}
    assert offsets_of(second) == {"0": 7}
    columns = schemas.columns_of(["t"], second)
    assert columns == "struct<note:string,id:bigint,dropped:int,last:int>"


def test_topics_have_subjects_of_their_own() -> None:
    registry = Registry(a_value=[schema(1, a="int")], b_value=[schema(2, b="int")])
    schemas = topic_schemas(registry)
    pinned = schemas.pin(["a", "b"], None, {})
    assert schema_ids_of(pinned) == {"a-value": [1], "b-value": [2]}
    assert schemas.columns_of(["b"], pinned) == "struct<b:int>"
    assert schema_ids_of(topic_schemas(registry, "b-value").pin(["a"], None, {})) == {
        "b-value": [2]
    }


def test_keys_of_tombstones_have_subjects_of_their_own() -> None:
    registry = Registry(t_value=[schema(1, id="int", x="int")], t_key=[schema(2, id="long")])
    envelope = Envelope("avro", "", tombstone_deletes=True)
    schemas = TopicSchemas(registry, envelope)  # type: ignore[arg-type]
    pinned = schemas.pin(["t"], None, {})
    assert schema_ids_of(pinned) == {"t-value": [1], "t-key": [2]}
    assert schemas.columns_of(["t"], pinned) == "struct<id:bigint,x:int>"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "Avro needs a schema registry"),
        ({"schema_registry": "http://al:pw@host"}, "`schema_registry` holds a login"),
        (
            {"schema_registry": ADDRESS, "transactions": True},
            "needs a `format` that has transactions",
        ),
        ({"schema_registry": [ADDRESS]}, "`schema_registry` must be text"),
        (
            {"schema_registry": ADDRESS, "topics": ["t", "u"], "subject": "s"},
            "`subject` needs one `topic`",
        ),
        (
            {"schema_registry": ADDRESS, "options": {"schema.registry.magic": 1}},
            "has no option schema.registry.magic",
        ),
        (
            {"options": {"schema.registry.url": "http://al:pw@host"}},
            "hold a secret, schema.registry.url,",
        ),
        (
            {"options": {"schema.registry.basic.auth.user.info": "al:pw"}},
            "hold a secret, schema.registry.basic.auth.user.info,",
        ),
        ({"options": {"schema.registry.bearer.auth.token": "t"}}, "hold a secret"),
        ({"format": "raw", "subject": "s"}, "`subject` is of messages in Avro or Protobuf"),
        ({"format": "maxwell", "encoding": "avro", "columns": "a int"}, "of Debezium's messages"),
        ({"format": "protobuf"}, "Protobuf needs a schema registry"),
        ({"format": "avro", "message": "a.B"}, "`message` is of messages in Protobuf"),
        ({"format": "avro", "encoding": "protobuf"}, "of Debezium's messages"),
        (
            {"format": "debezium", "encoding": "xml"},
            "`encoding` must be one of json, avro, protobuf",
        ),
    ],
)
def test_wrong_definitions(keys: dict[str, Any], words: str) -> None:
    definition = SourceDefinition(("s", "t"), "s.t", {**AVRO, **keys})
    with pytest.raises(StreamError, match=words):
        open_source(definition, None, Path("."), {})  # type: ignore[arg-type]


def test_models_of_one_source_must_agree_in_the_encoding() -> None:
    def identity(**keys: str) -> Any:
        return SourceDefinition(("s", "t"), "s.t", {"type": "kafka", "topic": "t", **keys}).identity

    assert identity(format="avro") == identity(format="debezium", encoding="avro")
    assert identity(format="avro") != identity(format="raw")
    assert identity(format="avro") != identity(format="protobuf")
    assert identity(format="protobuf", message="a") == identity(format="protobuf", message="b")
    assert identity(format="avro") != identity(format="avro", tombstones="delete")
    assert identity(format="json", encoding="json") == identity(format="raw")
