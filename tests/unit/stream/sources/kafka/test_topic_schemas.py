"""Schemas of topics: their ids in frontiers, their columns, and wrong definitions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.values import Values
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import schema_header
from dbt.adapters.iceberg_stream.stream.sources.kafka.frontiers import offsets_of, schema_ids_of
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from dbt.adapters.iceberg_stream.stream.sources.kafka.topic_schemas import TopicSchemas
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source
from tests.unit.stream.sources.formats.decoded_messages import ddl_of

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
        schema = self.find(number)
        assert schema is not None
        return schema

    def find(self, number: int) -> RegisteredSchema | None:
        return next((s for of in self.subjects.values() for s in of if s.id == number), None)


def topic_schemas(registry: Registry, subject: str | None = None, **keys: Any) -> TopicSchemas:
    return TopicSchemas(registry, Envelope("avro", "", **keys), subject)  # type: ignore[arg-type]


def of_type(number: int, name: str, **fields: Any) -> RegisteredSchema:
    """Return a schema of a record type."""
    described = json.loads(schema(number, **fields).text)
    return RegisteredSchema(number, json.dumps({**described, "name": name, "namespace": "shop"}))


def test_columns_begin_with_the_newest_schema_and_then_grow() -> None:
    old, new = schema(1, id="int", dropped="int"), schema(2, note="string", id="long")
    registry = Registry(t_value=[old, new])
    schemas = topic_schemas(registry)
    first = schemas.pin(["t"], None, {"0": 5})
    assert first == {"0": 5, "schema-ids": {"t-value": [2, 1]}}
    assert (
        ddl_of(schemas.columns(["t"], first, None)) == "struct<note:string,id:bigint,dropped:int>"
    )
    registry.subjects["t-value"].append(schema(9, id="long", last="int"))
    second = schemas.pin(["t"], first, {"0": 7})
    assert schema_ids_of(second) == {"t-value": [2, 1, 9]}
    assert offsets_of(second) == {"0": 7}
    columns = ddl_of(schemas.columns(["t"], second, None))
    assert columns == "struct<note:string,id:bigint,dropped:int,last:int>"


def test_topics_have_subjects_of_their_own() -> None:
    registry = Registry(a_value=[schema(1, a="int")], b_value=[schema(2, b="int")])
    schemas = topic_schemas(registry)
    pinned = schemas.pin(["a", "b"], None, {})
    assert schema_ids_of(pinned) == {"a-value": [1], "b-value": [2]}
    assert ddl_of(schemas.columns(["b"], pinned, None)) == "struct<b:int>"
    assert schema_ids_of(topic_schemas(registry, "b-value").pin(["a"], None, {})) == {
        "b-value": [2]
    }


def test_keys_of_tombstones_have_subjects_of_their_own() -> None:
    registry = Registry(t_value=[schema(1, id="int", x="int")], t_key=[schema(2, id="long")])
    envelope = Envelope("avro", "", tombstone_deletes=True)
    schemas = TopicSchemas(registry, envelope)  # type: ignore[arg-type]
    pinned = schemas.pin(["t"], None, {})
    assert schema_ids_of(pinned) == {"t-value": [1], "t-key": [2]}
    assert ddl_of(schemas.columns(["t"], pinned, None)) == "struct<id:bigint,x:int>"


def test_a_record_type_has_the_subjects_of_all_strategies() -> None:
    registry = Registry()
    registry.subjects = {
        "t-shop.Row": [of_type(1, "Row", a="int")],
        "shop.Row": [of_type(2, "Row", b="int")],
        "t-value": [of_type(3, "Row", c="int"), of_type(4, "Other", d="int")],
    }
    schemas = topic_schemas(registry, record="shop.Row")
    pinned = schemas.pin(["t"], None, {})
    assert schema_ids_of(pinned) == {"t-shop.Row": [1], "shop.Row": [2], "t-value": [4, 3]}
    assert ddl_of(schemas.columns(["t"], pinned, None)) == "struct<a:int,b:int,c:int>"


def test_models_that_read_other_types_share_frontiers() -> None:
    registry = Registry()
    registry.subjects = {f"shop.{name}": [of_type(n, name)] for n, name in enumerate("AB", 1)}
    one, other = (topic_schemas(registry, record=f"shop.{name}") for name in "AB")
    first = one.pin(["t"], None, {"0": 5})
    pinned = other.pin(["t"], None, first)
    assert {n: ids for n, ids in schema_ids_of(pinned).items() if ids} == {
        "shop.A": [1],
        "shop.B": [2],
    }
    # What is pinned stays, so that all models of a batch have the same columns.
    registry.subjects["shop.A"].append(of_type(9, "A", more="int"))
    assert one.pin(["t"], None, pinned) == pinned
    assert schema_ids_of(one.pin(["t"], pinned, {}))["shop.A"] == [1, 9]


def skipped_ids(schemas: TopicSchemas, *ids: int, body: bytes = b"\2") -> dict[int, bool | None]:
    """Return whether the messages with each id are skipped, and not bad; None if they are read."""
    pinned = schemas.pin(["t"], None, {})
    declared = pa.schema([("id", pa.int64())]) if schemas.envelope.columns else None
    decoder = schemas.decoder(["t"], pinned, declared, Values())
    values = [schema_header(number) + body for number in ids]
    decoded = decoder.decode(values)
    bad = {own.place for own in decoded.bad}
    places = {*decoded.of.tolist()}
    assert decoded.skipped == len(ids) - len(bad) - len(places)
    return {n: None if p in places else p not in bad for p, n in enumerate(ids)}


def test_messages_of_other_types_are_skipped() -> None:
    registry = Registry()
    registry.subjects = {
        "shop.Row": [of_type(1, "Row", a="int")],
        "custom": [of_type(2, "Row", a="long")],
        "shop.Other": [of_type(3, "Other", a="int")],
        "text": [RegisteredSchema(4, '"string"')],
        "json": [RegisteredSchema(5, '{"title": "Third"}', "JSON")],
        "spoiled": [RegisteredSchema(6, "{")],
    }
    expected = {1: None, 2: False, 3: True, 4: True, 5: True, 6: False, 99: False}
    assert skipped_ids(topic_schemas(registry, record="shop.Row"), *expected) == expected
    # A subject that is named after a type names it, too.
    assert skipped_ids(topic_schemas(registry, "shop.Row"), *expected) == expected
    registry.subjects["t-value"] = registry.subjects["shop.Row"]
    without = dict.fromkeys(expected, False) | {1: None}
    assert skipped_ids(topic_schemas(registry), *expected) == without
    assert skipped_ids(topic_schemas(registry, "custom"), *expected) == without | {
        1: False,
        2: None,
    }


def test_what_is_said_of_types_without_a_choice() -> None:
    registry = Registry()
    registry.subjects = {"shop.A": [of_type(1, "A")], "shop.B": [of_type(2, "B")]}

    def message(ids: Sequence[int], **keys: Any) -> str:
        schemas = topic_schemas(registry, **keys)
        error = schemas.without_columns(["t"], {}, lambda: ids)
        return error.msg.removeprefix(f"The schema registry at {ADDRESS} ")

    unknown = "has no subject t-value yet, so the columns are not known. "
    rest = (
        "egister the schema, set the source's `subject` if the schemas have another one, or set its"
    )
    assert message([]) == f"{unknown}R{rest} `columns`."
    assert message([2, 1, 9]) == (
        f"{unknown}The messages are of the record types `shop.A`, `shop.B`. Set the source's "
        f"`record` to the one to read, and others are skipped. Or r{rest} `columns`."
    )
    assert message([2], record="shop.C") == (
        "has no schema of the record type `shop.C` yet under the subjects t-shop.C, shop.C, t-value, "
        "so the columns are not known. The messages are of the record type `shop.B`. Correct "
        "`record`, register the schema, set its `subject` if it has another one, or set its "
        "`columns`."
    )


def test_schemas_that_cannot_be_read_are_named() -> None:
    """Also if messages were seen to have them."""
    registry = Registry(t_value=[schema(1, "JSON")])
    schemas = topic_schemas(registry)
    pinned = schemas.pin(["t"], None, {})
    schemas.learn([1])
    words = (
        "No schema of the subject t-value in .* The topic has the schema 1, which is JSON Schema"
    )
    with pytest.raises(StreamError, match=words):
        raise schemas.without_columns(["t"], pinned, lambda: [1])


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
        ({"format": "raw", "subject": "s"}, "`subject` is of messages whose schemas are in a"),
        ({"format": "raw", "record": "s"}, "`record` is of messages whose schemas are in a"),
        ({"record": ["s"]}, "`record` must be text"),
        ({"format": "json", "columns": "a int", "record": "s"}, "`record` needs a schema registry"),
        ({"format": "json", "columns": "a int", "subject": "s"}, "For JSON, remove `columns`"),
        (
            {"format": "json", "columns": "a int", "record": "s", "tombstones": "delete"},
            "`record` cannot be used with `tombstones: delete`",
        ),
        ({"format": "protobuf", "record": "a.A", "message": "a.B"}, "has `message` and `record`"),
        (
            {"schema_registry": ADDRESS, "key_record": "a.Key"},
            "`key_record` is of messages that delete rows",
        ),
        ({"format": "maxwell", "encoding": "avro", "columns": "a int"}, "of Debezium's messages"),
        ({"format": "protobuf"}, "Protobuf needs a schema registry"),
        ({"format": "json"}, "needs `columns`, as `name type, name type`, or a schema registry"),
        ({"format": "debezium"}, "The format debezium needs `columns`, as `name type, name type`,"),
        (
            {"format": "maxwell", "schema_registry": ADDRESS},
            "The format maxwell needs `columns`, as `name type, name type`.",
        ),
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
    assert identity(format="avro", record="a") == identity(format="avro", record="b")
    assert identity(format="avro") != identity(format="avro", tombstones="delete")
    assert identity(format="json", encoding="json") == identity(format="raw")


@pytest.mark.parametrize("keys", [{"schema_registry": ADDRESS}, {"connection": "shop"}])
@pytest.mark.parametrize("message_format", ["json", "debezium"])
def test_json_without_columns_has_the_schemas_of_a_registry(
    message_format: str, keys: dict[str, Any]
) -> None:
    connections = {"shop": {"schema.registry.url": ADDRESS}}
    spec = {**AVRO, "format": message_format, **keys}

    def schemas(**more: str) -> TopicSchemas | None:
        definition = SourceDefinition(("s", "t"), "s.t", {**spec, **more})
        source = open_source(definition, None, Path("."), {}, connections)  # type: ignore[arg-type]
        assert isinstance(source, KafkaSource)
        return source.schemas

    own = schemas(subject="other")
    assert own is not None and own.registry.address == ADDRESS
    assert own.envelope.schema_format == "json" and own.own_subject == "other"
    if "connection" in keys:
        assert schemas(columns="id int") is None


def test_json_of_other_record_types_is_skipped() -> None:
    registry = Registry()
    registry.subjects = {
        name: [RegisteredSchema(number, json.dumps({"title": name, **ROW}), "JSON")]
        for number, name in enumerate(("Order", "Payment"), 1)
    }
    schemas = TopicSchemas(registry, Envelope("json", "", record="Order"))  # type: ignore[arg-type]
    pinned = schemas.pin(["t"], None, {})
    assert ddl_of(schemas.columns(["t"], pinned, None)) == "struct<id:bigint>"
    assert skipped_ids(schemas, 1, 2, 99, body=b"{}") == {1: None, 2: True, 99: False}


ROW = {"type": "object", "properties": {"id": {"type": "integer"}}}
