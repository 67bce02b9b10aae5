"""Record types of messages: several may be in one topic, of which a stream reads one.

Confluent's serializers register the schemas of a record type under its name (RecordNameStrategy),
under the topic and its name (TopicRecordNameStrategy), or with those of all others of the topic
(TopicNameStrategy, the default).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    Reference,
    RegisteredSchema,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError

AVRO_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


def subjects_of(topic: str, part: str, record: str | None) -> list[str]:
    """Return the subjects that may have the schemas of a topic's messages.

    Args:
        topic: the topic.
        part: `value` or `key`.
        record: full name of the record type; None if there is one type in the topic.
    """
    by_topic = f"{topic}-{part}"
    return [by_topic] if record is None else [f"{topic}-{record}", record, by_topic]


def record_of_subject(
    subject: str, topics: Collection[str], schemas: Iterable[RegisteredSchema]
) -> str | None:
    """Return the record type that a subject is named after; None if it is not.

    Args:
        subject: the subject.
        topics: the topics whose messages have its schemas.
        schemas: its schemas.
    """
    names = [name for schema in schemas for name in record_names(schema) or ()]
    of_type = (n for n in names if subject in (n, *(f"{topic}-{n}" for topic in topics)))
    return next(of_type, None)


def record_names(schema: RegisteredSchema) -> tuple[str, ...] | None:
    """Return the full names of the record types that messages of a schema may have.

    Args:
        schema: the schema.

    Returns:
        The names: several of a file of Protobuf, none of a schema without records; None if the
        schema cannot be read.
    """
    from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
        compiled_files,
        message_indexes,
        read_files,
    )

    try:
        if schema.kind == "PROTOBUF":
            file, _ = read_files(compiled_files(schema.text, schema.references))
            return tuple(message_indexes(file))
        described = json.loads(schema.text)
    except (SchemaError, json.JSONDecodeError):
        return None
    if schema.kind == "JSON":
        return _json_names(described, schema.references)
    return tuple(avro_names(described))


def _json_names(schema: Any, references: Collection[Reference]) -> tuple[str, ...] | None:
    """Return the titles of a JSON Schema and of those it is a union of; None if one has none."""
    title = schema.get("title") if isinstance(schema, dict) else None
    names = [title] if isinstance(title, str) else []
    for member in _json_members(schema):
        if member != {"type": "null"}:
            described = _json_target(member, schema, references)
            if not isinstance(described, dict) or not isinstance(described.get("title"), str):
                return None
            names.append(described["title"])
    return tuple(dict.fromkeys(names))


def _json_members(schema: Any) -> Sequence[Any]:
    """Return the schemas that a JSON Schema is a union of."""
    unions = (schema.get(key) for key in ("oneOf", "anyOf")) if isinstance(schema, dict) else ()
    return next((union for union in unions if isinstance(union, list)), ())


def _json_target(member: Any, schema: Any, references: Collection[Reference]) -> Any:
    """Return the schema that a member of a union is, or refers to; None if it is not there."""
    if not isinstance(member, dict) or "$ref" not in member:
        return member
    path = str(member["$ref"])
    texts = {reference.name: reference.text for reference in references}
    if path in texts:
        return json.loads(texts[path])
    if not path.startswith("#/"):
        return None
    for part in path.removeprefix("#/").split("/"):
        schema = schema.get(part) if isinstance(schema, dict) else None
    return schema


def avro_members(schema: Any) -> Sequence[Any] | None:
    """Return the types of a union; None if a schema is none.

    Args:
        schema: the schema, decoded from JSON.
    """
    while isinstance(schema, dict) and isinstance(schema.get("type"), list | dict):
        schema = schema["type"]
    return schema if isinstance(schema, list) else None


def avro_names(schema: Any) -> Iterator[str]:
    """Yield the full names of the record types of a schema.

    Args:
        schema: the schema, decoded from JSON.
    """
    if isinstance(schema, list):
        for member in schema:
            yield from avro_names(member)
    elif isinstance(schema, str):
        # A schema may be the name of a type that another one defines.
        if schema not in AVRO_PRIMITIVES:
            yield schema
    elif isinstance(schema, dict) and schema.get("type") in ("record", "error"):
        name, namespace = str(schema.get("name")), schema.get("namespace")
        yield name if "." in name or not namespace else f"{namespace}.{name}"
    elif isinstance(schema, dict) and isinstance(schema.get("type"), list | dict):
        yield from avro_names(schema["type"])


def require_record_type(schema: RegisteredSchema, record: str | None) -> None:
    """Check that a JSON Schema of a record type is of no other ones, too.

    Args:
        schema: the schema, which has the record type.
        record: the title of the record type; None for any.

    Raises:
        SchemaError: it is a union of record types: nothing in a message says of which one it is.
    """
    names = record_names(schema)
    if record is None or names == (record,) or json.loads(schema.text).get("title") == record:
        return
    types = named(names) if names else "types of which one has no `title`"
    raise SchemaError(
        f"is a union of {types}, and JSON does not say which one a message is of. Remove the "
        "source's `record`, and choose rows by a field in the model's query"
    )


def named(names: Iterable[str]) -> str:
    """Return record types as text for messages.

    Args:
        names: their full names.
    """
    quoted = [f"`{name}`" for name in names]
    if not quoted:
        return "no record type"
    return f"the record type{'s' if len(quoted) > 1 else ''} {', '.join(quoted)}"
