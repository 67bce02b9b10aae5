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
    import pyarrow as pa

    from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
    from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import MessageSchemas
    from dbt.adapters.iceberg_stream.stream.sources.formats.values import Values

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

    def columns(
        self, topics: Sequence[str], pinned: Frontier, declared: pa.Schema | None
    ) -> pa.Schema:
        """Return the columns of a frontier's schemas; none if it has no schema.

        Args:
            topics: the topics whose messages are read.
            pinned: the frontier.
            declared: the columns of the source's definition, if it has them.
        """
        return self._schemas(topics, pinned, declared).columns

    def decoder(
        self, topics: Sequence[str], pinned: Frontier, declared: pa.Schema | None, values: Values
    ) -> MessageDecoder:
        """Return what decodes messages.

        Args:
            topics: their topics.
            pinned: a frontier with the ids of their schemas.
            declared: the columns of the source's definition, if it has them.
            values: converts values.
        """
        from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import (
            MessageDecoder,
        )

        schemas = self._schemas(topics, pinned, declared)

        @cache
        def learn(number: int) -> MessageSchemas:
            self.learn([number])
            return self._schemas(topics, pinned, declared)

        return MessageDecoder(self.envelope, schemas.columns, values, schemas, learn)

    def without_columns(
        self, topics: Sequence[str], pinned: Frontier, sample: Callable[[], Iterable[int]]
    ) -> StreamError:
        """Return the error for topics whose columns are not known.

        Args:
            topics: the topics whose messages are read.
            pinned: a frontier with the ids of their schemas.
            sample: returns ids that some messages of the topics have.
        """
        schemas = self._schemas(topics, pinned, None)
        ids = schema_ids_of(pinned)
        own = {number for subject in self._subjects(topics) for number in ids.get(subject) or ()}
        if reasons := [why for number, why in schemas.unreadable.items() if number in own]:
            return StreamError(
                f"No schema of {self._named_subjects(topics)} in the registry at "
                f"{self.registry.address} can be read. The topic {'; '.join(reasons)}."
            )
        self.learn(sample())
        return self._without_columns(topics)

    def _schemas(
        self, topics: Sequence[str], pinned: Frontier, declared: pa.Schema | None
    ) -> MessageSchemas:
        from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import (
            json_schemas,
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
        seen = self._seen_types(own)
        for number in self._seen.keys() - {schema.id for schema in own}:
            names = record_names(self._seen[number])
            if names is None or not types.isdisjoint(names):
                unreadable[number] = self._why_unreadable(number, names, topics, HAS_SUBJECT)
            elif envelope.record is None:
                advice = f"{seen} {CHOOSE}" if names else HAS_SUBJECT
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

    def _seen_types(self, own: Sequence[RegisteredSchema] = ()) -> str:
        """Return a sentence about the record types of messages, if any are known.

        Args:
            own: the schemas of the topics' subjects, beside those that messages were seen to have.
        """
        # Batches are read in several threads, which may add schemas.
        seen = [*own, *self._seen.values()]
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
