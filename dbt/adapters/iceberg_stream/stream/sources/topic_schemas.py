"""Schemas of the messages of Kafka topics, from a schema registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.kafka_frontiers import SCHEMA_IDS, schema_ids_of
from dbt.adapters.iceberg_stream.stream.sources.kafka_topics import FollowedTopics
from dbt.adapters.iceberg_stream.stream.sources.schema_registry import SchemaRegistry
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

    from dbt.adapters.iceberg_stream.stream.sources.arrow_records import RecordDecoder
    from dbt.adapters.iceberg_stream.stream.sources.schema_messages import MessageSchemas


@dataclass(frozen=True)
class TopicSchemas:
    """The schemas of topics whose messages have their ids.

    A frontier has the ids of all schemas of each subject, in the order in which their columns are
    put together. Rows that are read again therefore have the same columns.

    Attributes:
        registry: has the schemas.
        envelope: the format of the messages.
        own_subject: the subject of the schemas; None for `<topic>-value`, as Confluent's
            serializers name it.
    """

    registry: SchemaRegistry
    envelope: Envelope
    own_subject: str | None = None

    def check(self, topics: FollowedTopics) -> None:
        """Check that the options of the source do not contradict each other.

        Args:
            topics: the source's topics.

        Raises:
            StreamError: an option is wrong; names it.
        """
        if self.own_subject and topics.topics:
            raise StreamError(
                "`subject` needs one `topic`: with `topics` each topic has its own subject, "
                "`<topic>-value`. Remove it."
            )

    def pin(self, topics: Sequence[str], lower: Frontier | None, upper: Frontier) -> Frontier:
        """Return a frontier with the ids of the schemas that the registry has now.

        The columns so far stay the first ones. A new stream begins with those of the newest schema.

        Args:
            topics: all topics of the source.
            lower: the stream's frontier.
            upper: the frontier without the ids.

        Raises:
            StreamError: the registry does not answer, or refuses.
        """
        before, pinned = schema_ids_of(lower), {}
        for subject in self._subjects(topics):
            ids = list(before.get(subject) or ())
            versions = [schema.id for schema in self.registry.versions(subject)]
            later = [number for number in versions if number not in ids]
            pinned[subject] = list(dict.fromkeys(ids + (later if ids else later[::-1])))
        return {**upper, SCHEMA_IDS: pinned}

    def columns_of(self, topics: Sequence[str], pinned: Frontier) -> str:
        """Return the columns of a frontier's schemas as text.

        Args:
            topics: the topics whose messages are read.
            pinned: the frontier.
        """
        return self._schemas(topics, pinned, None).columns.simpleString()

    def unpack(
        self,
        spark: SparkSession,
        envelope: Envelope,
        messages: DataFrame,
        topics: Sequence[str],
        pinned: Frontier,
    ) -> DataFrame:
        """Decode messages; see Envelope.unpack.

        Args:
            spark: the Spark session.
            envelope: the format of the messages.
            messages: a frame with the columns of Spark's Kafka source.
            topics: their topics.
            pinned: a frontier with the ids of their schemas.

        Raises:
            StreamError: the registry has no schema of them, so that their columns are not known.
        """
        from dbt.adapters.iceberg_stream.stream.sources.schema_messages import SchemaMessages

        schemas = self._schemas(topics, pinned, self._declared(spark))
        subjects = ", ".join(self._subjects(topics))
        if not schemas.columns.fields:
            raise self._without_columns(subjects, schemas)
        return SchemaMessages(envelope, schemas, subjects).unpack(messages)

    def decoder(
        self, spark: SparkSession, topics: Sequence[str], pinned: Frontier
    ) -> RecordDecoder | None:
        """Return what decodes messages without Spark; None if Spark has to.

        Args:
            spark: the Spark session.
            topics: the topics of the messages.
            pinned: a frontier with the ids of their schemas.
        """
        from dbt.adapters.iceberg_stream.stream.sources.arrow_avro import avro_decoder
        from dbt.adapters.iceberg_stream.stream.sources.arrow_protobuf import protobuf_decoder

        is_avro = self.envelope.schema_format == "avro"
        decoder = avro_decoder if is_avro else protobuf_decoder
        return decoder(self._schemas(topics, pinned, self._declared(spark)))

    def _declared(self, spark: SparkSession) -> StructType | None:
        """Return the columns of the source's definition, if it has them."""
        from pyspark.sql.types import StructType

        return StructType(self.envelope.fields(spark)) if self.envelope.columns else None

    def _schemas(
        self, topics: Sequence[str], pinned: Frontier, declared: StructType | None
    ) -> MessageSchemas:
        from dbt.adapters.iceberg_stream.stream.sources.schema_messages import message_schemas

        ids = schema_ids_of(pinned)
        values, keys = (
            [number for subject in subjects for number in ids.get(subject) or ()]
            for subjects in (self._value_subjects(topics), self._key_subjects(topics))
        )
        schemas = [self.registry.by_id(number) for number in dict.fromkeys([*values, *keys])]
        return message_schemas(schemas, self.envelope, declared, set(keys) - set(values))

    def _subjects(self, topics: Sequence[str]) -> list[str]:
        """Return the subjects of values and, if they are read, of keys."""
        # Fields that only keys have come last.
        return [*self._value_subjects(topics), *self._key_subjects(topics)]

    def _value_subjects(self, topics: Sequence[str]) -> list[str]:
        return [self.own_subject or f"{topic}-value" for topic in topics]

    def _key_subjects(self, topics: Sequence[str]) -> list[str]:
        return [f"{topic}-key" for topic in topics] if self.envelope.reads_keys else []

    def _without_columns(self, subjects: str, schemas: MessageSchemas) -> StreamError:
        reasons = "; ".join(schemas.unreadable.values())
        if reasons:
            return StreamError(
                f"No schema of the subject {subjects} in the registry at "
                f"{self.registry.address} can be read. The topic {reasons}."
            )
        return StreamError(
            f"The schema registry at {self.registry.address} has no subject {subjects} yet, so the "
            "columns are not known. Register the schema, set the source's `subject` if the schemas "
            "have another one, or set its `columns`."
        )
