"""The fields of the keys of Kafka messages, by their schemas in a registry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import (
    named,
    record_names,
    subjects_of,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    RegisteredSchema,
    SchemaRegistry,
)


@dataclass(frozen=True)
class TopicKeys:
    """The schemas of the keys of topics.

    Attributes:
        registry: has the schemas.
        record: full name of the record type of the keys; None if each topic has one.
    """

    registry: SchemaRegistry
    record: str | None = None

    def fields(self, topics: Sequence[str]) -> tuple[str, ...]:
        """Return the fields of the newest schema; none if a topic has no subject with one.

        Args:
            topics: the topics.

        Raises:
            StreamError: the keys have no fields, or those of the topics differ; or the registry
                refuses, or does not answer.
        """
        by_topic = {topic: self._fields_of(self.subjects(topic)) for topic in topics}
        if len(set(by_topic.values())) > 1:
            keys = "; ".join(f"{topic}: {', '.join(own)}" for topic, own in by_topic.items())
            raise StreamError(
                f"The keys of the source's topics have different fields ({keys}). Set "
                "`unique_key` to the columns that identify a row."
            )
        return next(iter(by_topic.values()))

    def subjects(self, topic: str) -> list[str]:
        """Return the subjects that may have the schemas of a topic's keys.

        Args:
            topic: the topic.
        """
        return subjects_of(topic, "key", self.record)

    def _fields_of(self, subjects: Sequence[str]) -> tuple[str, ...]:
        from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError

        by_subject = ((subject, self._versions(subject)) for subject in subjects)
        subject, versions = next((pair for pair in by_subject if pair[1]), ("", []))
        if not versions:
            return ()
        schema = versions[-1]
        try:
            return _fields(schema, self.record)
        except SchemaError as error:
            raise StreamError(
                f"The newest schema of the subject {subject} in the registry at "
                f"{self.registry.address}, {schema.id}, {error}. Set `unique_key` to the columns "
                "that identify a row."
            ) from error

    def _versions(self, subject: str) -> list[RegisteredSchema]:
        """Return the schemas of a subject that are of the keys' record type."""
        versions = self.registry.versions(subject)
        if self.record is not None:
            return [schema for schema in versions if self.record in (record_names(schema) or ())]
        distinct = {
            name
            for schema in versions
            # Of a file of Protobuf, the first message is read.
            for name in (record_names(schema) or ())[: 1 if schema.kind == "PROTOBUF" else None]
        }
        if len(distinct) > 1:
            raise StreamError(
                f"The subject {subject} in the registry at {self.registry.address} has keys of "
                f"{named(sorted(distinct))}. Set the source's `key_record` to the record type of "
                "its keys, or `unique_key` to the columns that identify a row."
            )
        return versions


def _fields(schema: RegisteredSchema, record: str | None) -> tuple[str, ...]:
    """Return the fields of a key; raise SchemaError if it has none."""
    from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import parse_record
    from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError

    if schema.kind == "JSON":
        described = json.loads(schema.text)
        names = tuple(described.get("properties") or ()) if isinstance(described, dict) else ()
    else:
        parsed, _ = parse_record(schema, record, is_key=True)
        names = tuple(parsed.column.names)
    if not names:
        raise SchemaError("has no fields")
    return names
