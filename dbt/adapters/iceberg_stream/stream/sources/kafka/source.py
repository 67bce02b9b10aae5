"""Read Kafka topics by ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.decoder_processes import (
    PROCESSES,
    Messages,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import RAW, Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import (
    BadMessage,
    Decoded,
    MessageDecoder,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.message_metadata import TYPES
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import SchemaRegistry
from dbt.adapters.iceberg_stream.stream.sources.formats.values import TIME_ZONE, Values
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import HEADER_BYTES, schema_id
from dbt.adapters.iceberg_stream.stream.sources.kafka.client import KafkaClient
from dbt.adapters.iceberg_stream.stream.sources.kafka.frontiers import (
    offsets_of,
    require_same_topics,
    with_ids,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import KeptMessages
from dbt.adapters.iceberg_stream.stream.sources.kafka.message_batch import (
    READERS,
    MessageBatch,
    Offsets,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.messages import (
    MessageReader,
    OffsetOutOfRange,
    OffsetRange,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.offsets import OffsetPlanner
from dbt.adapters.iceberg_stream.stream.sources.kafka.plain_schema import PlainSchema
from dbt.adapters.iceberg_stream.stream.sources.kafka.topic_keys import TopicKeys
from dbt.adapters.iceberg_stream.stream.sources.kafka.topic_schemas import TopicSchemas
from dbt.adapters.iceberg_stream.stream.sources.kafka.topics import FollowedTopics
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payloads import PayloadReader
from dbt.adapters.iceberg_stream.stream.sources.source import (
    MAJOR,
    MINOR,
    ROW_DELETED,
    TRUNCATED,
    BadRecord,
    Frontier,
    Lag,
    Records,
    RecordSource,
    Source,
    empty_frame,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from dbt.adapters.iceberg_stream.engines.session import Session

# Messages of each partition that are read to name their record types.
NEWEST = 1000
logger = Logger()


@dataclass
class KafkaSource(RecordSource):
    """Kafka topics; a frontier has the next offset of each partition and the ids of the topics.

    Attributes:
        topic: the topic to read; None to read all `topics`.
        options: options of Kafka's clients, by librdkafka's names, such as bootstrap.servers.
        envelope: the format of the messages.
        starting: `earliest` or `latest`, for a stream without progress.
        transactions: whether a batch has only whole transactions of the database.
        topics: the topics in frontiers, if there are several.
        transaction_topic: the topic to which Debezium reports transactions; batches then have only
            whole transactions.
        schemas: the schemas of the messages, if they have the ids of schemas, or the schema of
            all.
        keys: the schemas of the messages' keys, if messages delete rows and there is a registry.
        registry: has the schemas of the messages that transactions are read from, if there is one.

    Raises:
        StreamError: the options of the topics contradict each other.
    """

    topic: str | None
    options: Mapping[str, str] = field(repr=False)
    envelope: Envelope
    starting: str = "earliest"
    transactions: bool = False
    topics: tuple[str, ...] = ()
    transaction_topic: str | None = None
    schemas: TopicSchemas | PlainSchema | None = None
    keys: TopicKeys | None = None
    registry: SchemaRegistry | None = None
    # What planning has read of the next batches.
    kept: KeptMessages = field(default_factory=KeptMessages, init=False, repr=False)

    def __post_init__(self) -> None:
        self._topics = FollowedTopics(self.topic, self.topics, self.transaction_topic)
        self._topics.check(self.envelope.name, self.transactions)
        if self.schemas is not None:
            self.schemas.check(self._topics)

    @cached_property
    def client(self) -> KafkaClient:
        """The client that reads offsets and ids of topics."""
        return KafkaClient(self.options)

    @cached_property
    def planner(self) -> OffsetPlanner:
        """The planner of the offsets of a batch."""
        return OffsetPlanner(
            self._topics,
            self.client,
            self.starting,
            self.transactions,
            self.envelope.name,
            PayloadReader(self.registry),
            self.kept,
        )

    @cached_property
    def reader(self) -> MessageReader:
        """The reader of messages in this process."""
        return MessageReader(self.client)

    @property
    def has_truncates(self) -> bool:
        return self.envelope.name == "debezium"

    @property
    def of_rows(self) -> bool:
        return self.envelope.name in ("debezium", "maxwell")

    def registered_key(self) -> tuple[str, ...]:
        """Return the columns that identify a row by the schemas of the messages' keys.

        Returns:
            The columns; none if messages delete no rows.

        Raises:
            StreamError: the messages delete rows, and no registry has the columns of their keys.
        """
        fields = () if self.keys is None else self.keys.fields(self._topics.read)
        if fields or not (self.of_rows or self.envelope.tombstone_deletes):
            return fields
        why = "the source deletes rows"
        if self.keys is not None:
            subjects = ", ".join(s for t in self._topics.read for s in self.keys.subjects(t))
            why += f", and the schema registry at {self.keys.registry.address} has no subject "
            why += f"{subjects}, whose fields would be the key"
        advice = "or to [] to append a row for each message."
        if self.keys is not None and self.keys.record is None:
            advice += (
                " If their subject is named after the record type of the keys, set the source's "
                "`key_record` to it."
            )
        raise StreamError(
            f"`unique_key` is missing: {why}. Set `unique_key` to the columns that identify a row, "
            f"{advice}"
        )

    def empty(
        self, spark: SparkSession, lower: Frontier | None = None, upper: Frontier | None = None
    ) -> DataFrame:
        return empty_frame(spark, self._columns(spark, upper or self.pin(lower, {})))

    def schema_id(self, lower: Frontier | None, upper: Frontier | None = None) -> str:
        if self.schemas is None or self.envelope.columns:
            return ""  # the source's definition fixes the columns
        pinned = self.pin(lower, {}) if upper is None else upper
        return str(self.schemas.columns(self._topics.read, pinned, None))

    def pin(self, lower: Frontier | None, upper: Frontier) -> Frontier:
        # Of messages with schemas, these are the schemas that the registry has now.
        if self.schemas is None:
            return upper
        return self.schemas.pin(self._topics.followed, lower, upper)

    def present(self, lower: Frontier | None) -> Frontier | None:
        ids, lower = self._topic_ids(lower), offsets_of(lower)
        first, last = self.planner.bounds(lower)
        self.planner.begin(lower, first, last)
        return with_ids(last, ids)

    def plan_batch(
        self,
        lower: Frontier | None,
        rows: int,
        until: Frontier | None = None,
        whole: bool = False,
    ) -> Frontier | None:
        ids = self._topic_ids(lower)
        upper = self.planner.plan(offsets_of(lower), rows, offsets_of(until), whole)
        if upper is None:
            return None
        # Producers register a schema before they send messages of it. Read later than the offsets,
        # the registry therefore has all schemas of the batch.
        return self.pin(lower, with_ids(upper, ids))

    def _topic_ids(self, frontier: Frontier | None) -> Mapping[str, str]:
        """Return the current ids of the topics, after a check that the frontier has the same."""
        ids = self.client.topic_ids(self._topics.followed)
        require_same_topics(frontier, ids)
        return ids

    def is_behind(self, lower: Frontier, other: Frontier) -> bool:
        ours, theirs = (
            self._topics.followed_offsets(offsets_of(frontier) or {}) for frontier in (lower, other)
        )
        return any(ours.get(p, 0) < offset for p, offset in theirs.items())

    def arrow_schema(self, session: Session, lower: Frontier | None, upper: Frontier) -> pa.Schema:
        return self._columns(session.spark, upper)

    def _columns(self, spark: SparkSession, pinned: Frontier) -> pa.Schema:
        """Return the columns of the records and of their metadata.

        Raises:
            StreamError: they are not known, or two have one name.
        """
        if self.envelope.name == "raw":
            return pa.schema([(name, TYPES[name]) for name in RAW])
        declared = self._declared(spark)
        columns = declared
        if self.schemas is not None:
            topics = self._topics.read
            columns = self.schemas.columns(topics, pinned, declared)
            if not columns.names:
                raise self.schemas.without_columns(topics, pinned, self._newest_ids)
        assert columns is not None, "a source without schemas has `columns`"
        if name := self.envelope.table_column:
            columns = columns.append(pa.field(name, pa.string()))
        self.envelope.metadata.require_other_names(columns.names)
        return pa.schema([*columns, *self.envelope.metadata.schema])

    def _declared(self, spark: SparkSession) -> pa.Schema | None:
        """Return the columns of the source's definition, if it has them."""
        return self.envelope.declared(spark) if self.envelope.columns else None

    def decode(
        self, session: Session, lower: Frontier | None, upper: Frontier
    ) -> Iterator[Records]:
        if self.envelope.name == "raw":
            yield from map(_raw_records, self._messages(lower, upper, RAW))
            return
        fields = [*self.envelope.metadata.fields]
        if self.envelope.tombstone_deletes and "key" not in fields:
            fields.append("key")
        decoder = self._decoder(session, upper)
        parts = ((b, self._bodies(b)) for b in self._messages(lower, upper, fields))
        with closing(PROCESSES.decode(decoder, parts)) as decoded:
            for batch, part in decoded:
                yield self._records(batch, part)

    def _decoder(self, session: Session, upper: Frontier) -> MessageDecoder:
        """Return what decodes the messages of a frontier."""
        declared = self._declared(session.spark)
        values = Values(session.setting(TIME_ZONE))
        if self.schemas is None:
            assert declared is not None, "a source without schemas has `columns`"
            return MessageDecoder(self.envelope, declared, values)
        return self.schemas.decoder(self._topics.read, upper, declared, values)

    def _bodies(self, batch: MessageBatch) -> Messages:
        has_keys = self.envelope.tombstone_deletes and None in batch.values
        return Messages(batch.values, batch.column("key").to_pylist() if has_keys else ())

    def _records(self, batch: MessageBatch, decoded: Decoded) -> Records:
        offsets, of = batch.all_offsets(), pa.array(decoded.of)
        columns = dict(zip(decoded.rows.schema.names, decoded.rows.columns, strict=True))
        for name, field_name in self.envelope.metadata.columns:
            columns[name] = batch.column(field_name).take(of)
        minors = offsets[decoded.of]
        if self.envelope.has_images:
            # The row of an old key is deleted before that of the new one is written.
            minors = 2 * minors + ~decoded.is_old
        columns[MAJOR] = pa.repeat(pa.scalar(0, pa.int64()), len(of))
        columns[MINOR] = pa.array(minors)
        if self.of_rows or self.envelope.tombstone_deletes:
            columns[ROW_DELETED] = pa.array(decoded.deleted)
        rows = pa.record_batch(columns)
        if len(decoded.truncates):
            rows = _with_truncates(rows, 2 * offsets[decoded.truncates])
        bad = self._bad(decoded.bad, batch, offsets) if decoded.bad else []
        return Records(rows, bad, decoded.skipped)

    def _bad(
        self, messages: Sequence[BadMessage], batch: MessageBatch, offsets: Offsets
    ) -> list[BadRecord]:
        places = batch.places()
        topic = f"{batch.topic}, " if self.topic is None or self.schemas is not None else ""
        return [
            BadRecord(
                f"{topic}partition {places[bad.place]}, offset {offsets[bad.place]}",
                bad.record,
                bad.reason,
            )
            for bad in messages
        ]

    def _messages(
        self, lower: Frontier | None, upper: Frontier, fields: Sequence[str]
    ) -> Iterator[MessageBatch]:
        """Yield the messages of a batch."""
        self._topic_ids(upper)
        lower, upper = offsets_of(lower), offsets_of(upper) or {}
        begin = self.planner.begin_of_batch(lower, upper)
        ranges = [OffsetRange(*self._topics.place(p), begin[p], int(upper[p])) for p in begin]
        own = [name for name in fields if name in READERS]
        with closing(self.reader.read(ranges, self.kept, own)) as messages:
            try:
                yield from messages
            except OffsetOutOfRange:
                # This names the offsets that Kafka has removed meanwhile.
                self.planner.begin_of_batch(lower, upper)
                raise

    def _newest_ids(self) -> set[int]:
        """Return ids of schemas that the newest messages have; none if they cannot be read."""
        try:
            begin, end = self.planner.bounds(None)
            places = {p: max(begin[p], end[p] - NEWEST) for p in end if self._topics.is_read(p)}
            ranges = [OffsetRange(*self._topics.place(p), places[p], end[p]) for p in places]
            with closing(self.reader.read(ranges, KeptMessages())) as batches:
                ids = (
                    schema_id(value[:HEADER_BYTES]) for b in batches for value in b.values if value
                )
                return {number for number in ids if number is not None}
        except StreamError as error:
            logger.debug(f"The newest messages cannot be read: {error}")
            return set()

    def share_reads(self, other: Source) -> None:
        if isinstance(other, KafkaSource):
            other.kept = self.kept

    def close(self) -> None:
        self.reader.close()

    def partitions(self, upper: Frontier) -> int:
        return sum(map(self._topics.is_read, offsets_of(upper) or {}))

    def lag(self, frontier: Frontier | None) -> Lag:
        return Lag(self.planner.count_unread(offsets_of(frontier)), "rows")


def _raw_records(batch: MessageBatch) -> Records:
    columns = {name: batch.column(name) for name in RAW}
    columns[MAJOR] = pa.repeat(pa.scalar(0, pa.int64()), len(batch.values))
    columns[MINOR] = batch.column("offset")
    return Records(pa.record_batch(columns))


def _with_truncates(rows: pa.RecordBatch, minors: Offsets) -> pa.RecordBatch:
    """Return rows with one for each change that deletes all rows, in the order of the changes."""
    count = len(minors)
    truncates = {f.name: pa.nulls(count, f.type) for f in rows.schema}
    truncates |= {MAJOR: pa.repeat(pa.scalar(0, pa.int64()), count), MINOR: pa.array(minors)}
    truncates[ROW_DELETED] = pa.repeat(pa.scalar(False), count)
    flags = [pa.repeat(pa.scalar(flag), n) for flag, n in ((False, rows.num_rows), (True, count))]
    both = pa.Table.from_batches([rows, pa.record_batch(truncates, rows.schema)])
    both = both.append_column(TRUNCATED, pa.chunked_array(flags))
    return both.sort_by(MINOR).combine_chunks().to_batches()[0]
