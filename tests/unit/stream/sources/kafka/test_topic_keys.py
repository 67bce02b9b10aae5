"""Which columns identify a row by the schemas of the messages' keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    RegisteredSchema,
    SchemaRegistry,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source

CONNECTIONS = {
    "shop": {"bootstrap.servers": "b:1", "schema.registry.url": "http://registry:8081"},
    "bare": {"bootstrap.servers": "b:1"},
}
AVRO = {"format": "debezium", "encoding": "avro", "topic": "a"}


def avro(*names: str, record: str = "Key") -> RegisteredSchema:
    fields = [{"name": name, "type": "int"} for name in names]
    return RegisteredSchema(1, json.dumps({"type": "record", "name": record, "fields": fields}))


PROTOBUF = RegisteredSchema(
    1, 'syntax = "proto3"; message Key { int32 id = 1; string region = 2; }', "PROTOBUF"
)
JSON_TEXT = {"type": "object", "properties": {"id": {"type": "integer"}}}
JSON = RegisteredSchema(1, json.dumps(JSON_TEXT), "JSON")


def registered_key(
    monkeypatch: pytest.MonkeyPatch,
    subjects: dict[str, list[RegisteredSchema]],
    connection: str = "shop",
    **keys: Any,
) -> tuple[str, ...]:
    """Return the key of a source, whose registry has these subjects."""
    monkeypatch.setattr(SchemaRegistry, "versions", lambda self, subject: subjects.get(subject, []))
    spec = {"type": "kafka", "connection": connection, **keys}
    definition = SourceDefinition(("s", "a"), "s.a", spec)
    source = open_source(definition, None, Path(), {}, CONNECTIONS)  # type: ignore[arg-type]
    assert isinstance(source, KafkaSource)
    return source.registered_key()


@pytest.mark.parametrize(
    ("schema", "expected"), [(avro("id"), ("id",)), (PROTOBUF, ("id", "region")), (JSON, ("id",))]
)
def test_the_fields_of_the_key(
    monkeypatch: pytest.MonkeyPatch, schema: RegisteredSchema, expected: tuple[str, ...]
) -> None:
    assert registered_key(monkeypatch, {"a-key": [schema]}, **AVRO) == expected
    tombstones = {"format": "avro", "tombstones": "delete", "topic": "a"}
    assert registered_key(monkeypatch, {"a-key": [schema]}, **tombstones) == expected
    text = {"format": "debezium", "columns": "id int", "topic": "a"}
    assert registered_key(monkeypatch, {"a-key": [schema]}, **text) == expected


def test_the_newest_schema_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registered_key(monkeypatch, {"a-key": [avro("x"), avro("y")]}, **AVRO) == ("y",)


SECOND = RegisteredSchema(
    2,
    'syntax = "proto3"; package shop; message First { int32 x = 1; } message Key { int32 y = 1; }',
    "PROTOBUF",
)


@pytest.mark.parametrize(
    ("subjects", "expected"),
    [
        ({"shop.Key": [avro("x", record="shop.Key")], "a-key": [avro("y")]}, ("x",)),
        ({"a-shop.Key": [SECOND], "shop.Key": [avro("x", record="shop.Key")]}, ("y",)),
        ({"a-key": [avro("x", record="shop.Key"), avro("y")]}, ("x",)),
    ],
)
def test_the_record_type_of_keys(
    monkeypatch: pytest.MonkeyPatch,
    subjects: dict[str, list[RegisteredSchema]],
    expected: tuple[str, ...],
) -> None:
    """Its subject has one of the names that serializers use."""
    assert registered_key(monkeypatch, subjects, key_record="shop.Key", **AVRO) == expected


def test_unions_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (json.loads(avro(name, record=name.upper()).text) for name in ("id", "x"))
    nullable, union = (
        RegisteredSchema(1, json.dumps(["null", *records])) for records in ([one], [other, one])
    )
    assert registered_key(monkeypatch, {"a-key": [nullable]}, **AVRO) == ("id",)
    assert registered_key(monkeypatch, {"a-key": [union]}, **AVRO, key_record="ID") == ("id",)
    with pytest.raises(StreamError, match="keys of the record types `ID`, `X`. Set the source's"):
        registered_key(monkeypatch, {"a-key": [union]}, **AVRO)


def test_several_record_types_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [RegisteredSchema(n, avro("x", record=f"k.{name}").text) for n, name in enumerate("ab")]
    with pytest.raises(StreamError, match="keys of the record types `k.a`, `k.b`. Set .* `key_rec"):
        registered_key(monkeypatch, {"a-key": keys}, **AVRO)
    with pytest.raises(StreamError, match="has no subject a-k.c, k.c, a-key, whose fields"):
        registered_key(monkeypatch, {"a-key": keys}, key_record="k.c", **AVRO)


@pytest.mark.parametrize(
    "keys",
    [
        {"format": "avro", "topic": "a"},
        {"format": "json", "columns": "id int", "topic": "a"},
        {"format": "raw", "topic": "a"},
    ],
)
def test_events_are_appended(monkeypatch: pytest.MonkeyPatch, keys: dict[str, str]) -> None:
    assert registered_key(monkeypatch, {"a-key": [avro("id")]}, **keys) == ()


@pytest.mark.parametrize("connection", CONNECTIONS)
@pytest.mark.parametrize("format", ["debezium", "maxwell"])
def test_changes_in_json_without_a_key(
    monkeypatch: pytest.MonkeyPatch, connection: str, format: str
) -> None:
    keys = {"format": format, "columns": "id int", "topic": "a"}
    with pytest.raises(StreamError, match="`unique_key` is missing: the source deletes rows"):
        registered_key(monkeypatch, {}, connection, **keys)


def test_several_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = {"a-key": [avro("id")], "b-key": [avro("id")], "c-key": [avro("x")]}
    several = {"format": "debezium", "encoding": "avro"}
    assert registered_key(monkeypatch, subjects, topics=["a", "b"], **several) == ("id",)
    with pytest.raises(StreamError, match="have different fields .a: id; c: x.. Set `unique_key`"):
        registered_key(monkeypatch, subjects, topics=["a", "c"], **several)
    one_of_them = {**several, "topic": "c", "topics": ["a", "c"]}
    assert registered_key(monkeypatch, subjects, **one_of_them) == ("x",)


@pytest.mark.parametrize(
    ("schemas", "words"),
    [
        ([], "has no subject a-key, whose fields would be the key. Set `unique_key`"),
        ([], "named after the record type of the keys, set the source's `key_record` to it"),
        ([RegisteredSchema(7, '"long"')], "subject a-key .* 7, is not of a record"),
        ([avro()], "has no fields"),
        ([RegisteredSchema(7, "true", "JSON")], "has no fields"),
    ],
)
def test_keys_without_fields(
    monkeypatch: pytest.MonkeyPatch, schemas: list[RegisteredSchema], words: str
) -> None:
    with pytest.raises(StreamError, match=words):
        registered_key(monkeypatch, {"a-key": schemas}, **AVRO)
