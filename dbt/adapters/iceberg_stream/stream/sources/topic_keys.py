"""The fields of the keys of Kafka messages, by their schemas in a registry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.schema_registry import (
    RegisteredSchema,
    SchemaRegistry,
)


@dataclass(frozen=True)
class TopicKeys:
    """The schemas of the keys of topics.

    Attributes:
        registry: has the schemas, for each topic in the subject `<topic>-key`.
    """

    registry: SchemaRegistry

    def fields(self, topics: Sequence[str]) -> tuple[str, ...]:
        """Return the fields of the newest schema; none if a topic has no subject.

        Args:
            topics: the topics.

        Raises:
            StreamError: the keys have no fields, or those of the topics differ; or the registry
                refuses, or does not answer.
        """
        by_topic = {topic: self._fields_of(f"{topic}-key") for topic in topics}
        if len(set(by_topic.values())) > 1:
            keys = "; ".join(f"{topic}: {', '.join(own)}" for topic, own in by_topic.items())
            raise StreamError(
                f"The keys of the source's topics have different fields ({keys}). Set "
                "`unique_key` to the columns that identify a row."
            )
        return next(iter(by_topic.values()))

    def _fields_of(self, subject: str) -> tuple[str, ...]:
        from dbt.adapters.iceberg_stream.stream.sources.schema_types import SchemaError

        versions = self.registry.versions(subject)
        if not versions:
            return ()
        schema = versions[-1]
        try:
            return _fields(schema)
        except SchemaError as error:
            raise StreamError(
                f"The newest schema of the subject {subject} in the registry at "
                f"{self.registry.address}, {schema.id}, {error}. Set `unique_key` to the columns "
                "that identify a row."
            ) from error


def _fields(schema: RegisteredSchema) -> tuple[str, ...]:
    """Return the fields of a key; raise SchemaError if it has none."""
    from dbt.adapters.iceberg_stream.stream.sources.avro_messages import AvroFormat
    from dbt.adapters.iceberg_stream.stream.sources.protobuf_messages import ProtobufFormat
    from dbt.adapters.iceberg_stream.stream.sources.schema_types import SchemaError

    if schema.kind == "JSON":
        described = json.loads(schema.text)
        names = tuple(described.get("properties") or ()) if isinstance(described, dict) else ()
    else:
        message_format = ProtobufFormat(None) if schema.kind == "PROTOBUF" else AvroFormat()
        record, _ = message_format.parse(schema, is_key=True)
        names = tuple(record.column.names)
    if not names:
        raise SchemaError("has no fields")
    return names
