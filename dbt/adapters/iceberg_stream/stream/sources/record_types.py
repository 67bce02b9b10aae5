"""Record types of messages: several may be in one topic, of which a stream reads one.

Confluent's serializers register the schemas of a record type under its name (RecordNameStrategy),
under the topic and its name (TopicRecordNameStrategy), or with those of all others of the topic
(TopicNameStrategy, the default).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dbt.adapters.iceberg_stream.stream.sources.schema_registry import RegisteredSchema

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
    subject: str, topics: Iterable[str], schemas: Iterable[RegisteredSchema]
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
    from dbt.adapters.iceberg_stream.stream.sources.protobuf_schemas import (
        compiled_files,
        message_indexes,
        read_files,
    )
    from dbt.adapters.iceberg_stream.stream.sources.schema_types import SchemaError

    try:
        if schema.kind == "PROTOBUF":
            file, _ = read_files(compiled_files(schema.text, schema.references))
            return tuple(message_indexes(file))
        described = json.loads(schema.text)
    except (SchemaError, json.JSONDecodeError):
        return None
    if schema.kind == "JSON":
        title = described.get("title") if isinstance(described, dict) else None
        return (title,) if isinstance(title, str) else ()
    return tuple(avro_names(described))


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


def named(names: Iterable[str]) -> str:
    """Return record types as text for messages.

    Args:
        names: their full names.
    """
    quoted = [f"`{name}`" for name in names]
    if not quoted:
        return "no record type"
    return f"the record type{'s' if len(quoted) > 1 else ''} {', '.join(quoted)}"
