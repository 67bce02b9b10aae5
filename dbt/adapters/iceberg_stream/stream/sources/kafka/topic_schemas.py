"""Schemas of the messages of Kafka topics, from a schema registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import (
    named,
    record_names,
    record_of_subject,
    subjects_of,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    RegisteredSchema,
    SchemaRegistry,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.frontiers import SCHEMA_IDS, schema_ids_of
from dbt.adapters.iceberg_stream.stream.sources.kafka.topics import FollowedTopics
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

    from dbt.adapters.iceberg_stream.stream.sources.arrow.records import IsOther, RecordDecoder
    from dbt.adapters.iceberg_stream.stream.sources.formats.json_types import OwnMessages
    from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import MessageSchemas


HAS_SUBJECT = "Set the source's `subject` to the subject of the schema"
CHOOSE = "Set the source's `record` to the one to read, and others are skipped"


@dataclass(frozen=True)
class TopicSchemas:
    """The schemas of topics whose messages have their ids.

    A frontier has the ids of all schemas of each subject, in the order in which their columns are
    put together. Rows that are read again therefore have the same columns.

    Attributes:
        registry: has the schemas.
        envelope: the format of the messages.
        own_subject: the subject of the schemas; None for those that Confluent's serializers use.
    """

    registry: SchemaRegistry
    envelope: Envelope
    own_subject: str | None = None
    # Schemas of messages that were seen, by their ids.
    _seen: dict[int, RegisteredSchema] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

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

    def learn(self, ids: Iterable[int]) -> None:
        """Ask the registry for the schemas of messages.

        Args:
            ids: the ids that the messages have.

        Raises:
            StreamError: the registry does not answer, or refuses.
        """
        for number in sorted(set(ids) - self._seen.keys()):
            if (schema := self.registry.find(number)) is not None:
                self._seen[number] = schema

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
        # Another model of the source, which reads another record type, may have pinned its own.
        before, pinned = schema_ids_of(lower), dict(schema_ids_of(upper))
        for subject in self._subjects(topics):
            if subject in pinned:
                continue
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
        sample: Callable[[], Iterable[int]],
    ) -> DataFrame:
        """Decode messages; see Envelope.unpack.

        Args:
            spark: the Spark session.
            envelope: the format of the messages.
            messages: a frame with the columns of Spark's Kafka source.
            topics: their topics.
            pinned: a frontier with the ids of their schemas.
            sample: returns ids that some messages of the topics have, for messages.

        Raises:
            StreamError: the registry has no schema of them, so that their columns are not known.
        """
        from dbt.adapters.iceberg_stream.stream.sources.formats.json_types import unpack_json
        from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import (
            SchemaMessages,
        )

        schemas = self._schemas(topics, pinned, self._declared(spark))
        if not schemas.columns.fields:
            self._require_readable(topics, pinned, schemas)
            self.learn(sample())
            raise self._without_columns(topics)
        if envelope.of_json_record:
            return unpack_json(spark, envelope, schemas, messages)
        return SchemaMessages(envelope, schemas).unpack(messages)

    def decoder(
        self, spark: SparkSession, topics: Sequence[str], pinned: Frontier, zone: str | None = None
    ) -> RecordDecoder | None:
        """Return what decodes messages without Spark; None if Spark has to.

        Args:
            spark: the Spark session.
            topics: the topics of the messages.
            pinned: a frontier with the ids of their schemas.
            zone: the time zone of times without one in JSON; None if Spark has to read times.
        """
        from dbt.adapters.iceberg_stream.stream.sources.arrow.avro import avro_decoder
        from dbt.adapters.iceberg_stream.stream.sources.arrow.json_schema import json_decoder
        from dbt.adapters.iceberg_stream.stream.sources.arrow.protobuf import protobuf_decoder

        declared = self._declared(spark)
        is_other = self._is_other(topics, pinned, declared)
        schemas = self._schemas(topics, pinned, declared)
        if self.envelope.schema_format == "json":
            return json_decoder(schemas, self.envelope.required, zone, is_other)
        is_avro = self.envelope.schema_format == "avro"
        return (avro_decoder if is_avro else protobuf_decoder)(schemas, is_other)

    def own_messages(
        self, spark: SparkSession, topics: Sequence[str], pinned: Frontier
    ) -> OwnMessages:
        """Return what picks messages in JSON of the record type without Spark.

        Args:
            spark: the Spark session.
            topics: the topics of the messages.
            pinned: a frontier with the ids of their schemas.
        """
        from dbt.adapters.iceberg_stream.stream.sources.formats.json_types import OwnMessages

        declared = self._declared(spark)
        schemas = self._schemas(topics, pinned, declared)
        return OwnMessages.of(schemas, self._is_other(topics, pinned, declared))

    def _is_other(
        self, topics: Sequence[str], pinned: Frontier, declared: StructType | None
    ) -> IsOther:
        """Return what asks the registry whether the messages of another schema are skipped."""

        @cache
        def is_other(number: int) -> bool:
            self.learn([number])
            return number in self._schemas(topics, pinned, declared).others

        return is_other

    def _declared(self, spark: SparkSession) -> StructType | None:
        """Return the columns of the source's definition, if it has them."""
        from pyspark.sql.types import StructType

        return StructType(self.envelope.fields(spark)) if self.envelope.columns else None

    def _schemas(
        self, topics: Sequence[str], pinned: Frontier, declared: StructType | None
    ) -> MessageSchemas:
        from dbt.adapters.iceberg_stream.stream.sources.formats.json_types import json_schemas
        from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import (
            message_schemas,
        )

        ids = schema_ids_of(pinned)
        values, keys = (
            [number for subject in subjects for number in ids.get(subject) or ()]
            for subjects in (self._value_subjects(topics), self._key_subjects(topics))
        )
        own = [self.registry.by_id(number) for number in dict.fromkeys([*values, *keys])]
        envelope = self.envelope
        if self.own_subject and not envelope.record:
            record = record_of_subject(self.own_subject, topics, own)
            envelope = replace(envelope, record=None if envelope.message else record)
        if envelope.of_json_record:
            assert envelope.record is not None and declared is not None
            schemas = json_schemas(own, envelope.record, declared)
        else:
            schemas = message_schemas(own, envelope, declared, set(keys) - set(values))
        return self._with_seen(schemas, envelope, topics, own)

    def _with_seen(
        self,
        schemas: MessageSchemas,
        envelope: Envelope,
        topics: Sequence[str],
        own: Sequence[RegisteredSchema],
    ) -> MessageSchemas:
        """Return schemas with those that messages were seen to have besides."""
        unreadable, others = dict(schemas.unreadable), dict(schemas.others)
        if envelope.record is None:
            types = {name for schema in own for name in record_names(schema) or ()}
        else:
            types = {envelope.record, envelope.key_record or envelope.record}
        for number in self._seen.keys() - {schema.id for schema in own}:
            names = record_names(self._seen[number])
            if names is None or not types.isdisjoint(names):
                unreadable[number] = self._why_unreadable(number, names, topics, HAS_SUBJECT)
            elif envelope.record is None:
                advice = f"{self._seen_types()} {CHOOSE}" if names else HAS_SUBJECT
                unreadable[number] = self._why_unreadable(number, names, topics, advice)
            else:
                others[number] = names
        return replace(schemas, unreadable=unreadable, others=others)

    def _why_unreadable(
        self, number: int, names: Sequence[str] | None, topics: Sequence[str], advice: str
    ) -> str:
        """Return why messages of a schema that no subject has cannot be read."""
        of = "" if names is None else f" of {named(names)}"
        subjects = self._named_subjects(topics)
        return f"has the schema {number}{of}, which is not under {subjects}. {advice}"

    def _seen_types(self) -> str:
        """Return a sentence about the record types of messages that were seen, if there are any."""
        # Batches are read in several threads, which may add schemas.
        seen = [*self._seen.values()]
        names = {name for schema in seen for name in record_names(schema) or ()}
        return f"The messages are of {named(sorted(names))}." if names else ""

    def _named_subjects(self, topics: Sequence[str]) -> str:
        subjects = self._subjects(topics)
        return f"the subject{'s' if len(subjects) > 1 else ''} {', '.join(subjects)}"

    def _subjects(self, topics: Sequence[str]) -> list[str]:
        """Return the subjects of values and, if they are read, of keys."""
        # Fields that only keys have come last.
        return [*self._value_subjects(topics), *self._key_subjects(topics)]

    def _value_subjects(self, topics: Sequence[str]) -> list[str]:
        if self.own_subject:
            return [self.own_subject]
        return _subjects_of(topics, "value", self.envelope.record)

    def _key_subjects(self, topics: Sequence[str]) -> list[str]:
        if not self.envelope.reads_keys:
            return []
        return _subjects_of(topics, "key", self.envelope.key_record)

    def _require_readable(
        self, topics: Sequence[str], pinned: Frontier, schemas: MessageSchemas
    ) -> None:
        """Raise StreamError if the subjects have schemas, none of which can be read."""
        ids = schema_ids_of(pinned)
        own = {number for subject in self._subjects(topics) for number in ids.get(subject) or ()}
        if reasons := [why for number, why in schemas.unreadable.items() if number in own]:
            raise StreamError(
                f"No schema of {self._named_subjects(topics)} in the registry at "
                f"{self.registry.address} can be read. The topic {'; '.join(reasons)}."
            )

    def _without_columns(self, topics: Sequence[str]) -> StreamError:
        subjects = self._named_subjects(topics)
        record, types = self.envelope.record, self._seen_types()
        if record is not None:
            missing = f"has no schema of the record type `{record}` yet under {subjects}"
            advice = (
                "Correct `record`, register the schema, set its `subject` if it has another one"
            )
        else:
            missing = f"has no {subjects.removeprefix('the ')} yet"
            advice = f"{CHOOSE}. Or register the schema" if types else "Register the schema"
            advice += ", set the source's `subject` if the schemas have another one"
        return StreamError(
            f"The schema registry at {self.registry.address} {missing}, so the columns are not "
            f"known. {types}{' ' if types else ''}{advice}, or set its `columns`."
        )


def _subjects_of(topics: Sequence[str], part: str, record: str | None) -> list[str]:
    subjects = [subject for topic in topics for subject in subjects_of(topic, part, record)]
    return list(dict.fromkeys(subjects))
