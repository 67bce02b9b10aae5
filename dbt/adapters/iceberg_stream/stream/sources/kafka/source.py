"""Read Kafka topics by ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.arrow.debezium import decode_debezium
from dbt.adapters.iceberg_stream.stream.sources.arrow.json import decode_messages
from dbt.adapters.iceberg_stream.stream.sources.arrow.json_types import (
    has_times,
    json_arrow_schema,
)
from dbt.adapters.iceberg_stream.stream.sources.arrow.metadata import ArrowMetadata, Decode
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import SchemaRegistry
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import schema_id_sql, schema_ids
from dbt.adapters.iceberg_stream.stream.sources.kafka.client import KafkaClient
from dbt.adapters.iceberg_stream.stream.sources.kafka.frontiers import (
    offsets_of,
    require_same_topics,
    with_ids,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.java_options import hide_secrets, java_options
from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import KeptMessages
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
    BAD,
    REASON,
    SKIPPED,
    WHERE,
    Frontier,
    Lag,
    OnSkip,
    Pick,
    Source,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from dbt.adapters.iceberg_stream.engines.session import Session

MESSAGES = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)

# Messages of each partition that are read to name their record types.
NEWEST = 1000
# How Spark reads texts of times.
TIME_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.legacy.timeParserPolicy")
logger = Logger()


@dataclass
class KafkaSource:
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
    ordered: bool = field(default=True, init=False)
    # What planning has read of the next batches.
    kept: KeptMessages = field(default_factory=KeptMessages, init=False, repr=False)
    _time_settings: tuple[str, ...] | None = field(default=None, init=False)

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
    def has_bad(self) -> bool:
        return self.envelope.name != "raw"

    @property
    def has_truncates(self) -> bool:
        return self.envelope.name == "debezium"

    @property
    def has_skipped(self) -> bool:
        return self.schemas is not None

    @property
    def record_columns(self) -> tuple[str, ...]:
        skipped = (SKIPPED,) if self.has_skipped else ()
        return (BAD, REASON, WHERE, *skipped) if self.has_bad else ()

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
        messages = spark.createDataFrame([], MESSAGES)
        pinned = upper or self.pin(lower, {})
        return self._unpack(spark, messages, pinned)

    def schema_id(self, lower: Frontier | None, upper: Frontier | None = None) -> str:
        if self.schemas is None or self.envelope.columns:
            return ""  # the source's definition fixes the columns
        pinned = self.pin(lower, {}) if upper is None else upper
        return self.schemas.columns_of(self._topics.read, pinned)

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

    def read(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        return self._unpack(spark, self.messages(spark, lower, upper), upper)

    def learn_types(self, session: Session, lower: Frontier | None, upper: Frontier) -> None:
        if not isinstance(self.schemas, TopicSchemas):
            return
        messages = self.messages(session.spark, lower, upper)
        sql = f"select distinct {schema_id_sql('coalesce(value, key)')} as id from m"
        ids = session.rows(sql, m=messages)["id"].drop_null()
        self.schemas.learn(ids.to_pylist())

    def _unpack(self, spark: SparkSession, messages: DataFrame, pinned: Frontier) -> DataFrame:
        """Decode messages with the schemas of a frontier."""
        messages = messages.selectExpr("*", *self.envelope.metadata.packed_sql)
        of_topics = self.topic is None or self.schemas is not None
        envelope = replace(self.envelope, of_topics=of_topics)
        if self.schemas is None:
            return envelope.unpack(spark, messages)
        topics = self._topics.read
        return self.schemas.unpack(spark, envelope, messages, topics, pinned, self._newest_ids)

    def _newest_ids(self) -> set[int]:
        """Return ids of schemas that the newest messages have; none if they cannot be read."""
        try:
            begin, end = self.planner.bounds(None)
            places = {p: max(begin[p], end[p] - NEWEST) for p in end if self._topics.is_read(p)}
            ranges = [OffsetRange(*self._topics.place(p), places[p], end[p]) for p in places]
            with closing(self.reader.read(ranges, KeptMessages())) as batches:
                return {number for batch in batches for number in schema_ids(batch["value"])}
        except StreamError as error:
            logger.debug(f"The newest messages cannot be read: {error}")
            return set()

    def arrow_rows(
        self, session: Session, lower: Frontier | None, upper: Frontier, pick: Pick, on_skip: OnSkip
    ) -> Iterator[pa.RecordBatch] | None:
        if not (self.envelope.has_only_records or self.envelope.has_only_rows):
            return None
        metadata = ArrowMetadata(self.envelope.metadata)
        pick = metadata.picking(pick)
        if self.schemas is None or self.envelope.of_json_record:
            decoder = self._decode_json(session.spark, upper, pick, on_skip)
        else:
            decoder = self._decode_records(session.spark, upper, pick, on_skip)
        if decoder is None:
            return None
        return self._decoded(lower, upper, metadata.adding(decoder), metadata.fields)

    def _decode_json(
        self, spark: SparkSession, upper: Frontier, pick: Pick, on_skip: OnSkip
    ) -> Decode | None:
        """Return what decodes JSON; None if Spark has to."""
        schema = json_arrow_schema(self.envelope.fields(spark))
        columns = None if schema is None else pick(schema)
        if schema is None or columns is None:
            return None
        zone = self._zone_of_times(spark) if has_times(schema) else ""
        if zone is None:
            return None
        required = self.envelope.required_columns(schema.names)
        if self.envelope.has_only_rows:
            key = self.envelope.key_columns(schema.names)
            return partial(decode_debezium, schema=schema, columns=columns, key=key, zone=zone)
        decode = partial(
            decode_messages, schema=schema, columns=columns, required=required, zone=zone
        )
        if self.schemas is None:
            return decode
        assert isinstance(self.schemas, TopicSchemas), "a registry has record types of JSON"
        own = self.schemas.own_messages(spark, self._topics.read, upper)
        return lambda messages: decode(own.pick(messages, on_skip))

    def _zone_of_times(self, spark: SparkSession) -> str | None:
        """Return the time zone of texts without one; None if Spark reads texts of other forms."""
        if self._time_settings is None:
            self._time_settings = tuple(str(spark.conf.get(name)) for name in TIME_SETTINGS)
        zone, policy = self._time_settings
        return None if policy.upper() == "LEGACY" else zone

    def _decode_records(
        self, spark: SparkSession, upper: Frontier, pick: Pick, on_skip: OnSkip
    ) -> Decode | None:
        """Return what decodes messages of a frontier's schemas; None if Spark has to."""
        assert self.schemas is not None
        zone = self._zone_of_times(spark) if self.envelope.schema_format == "json" else None
        decoder = self.schemas.decoder(spark, self._topics.read, upper, zone)
        columns = None if decoder is None else pick(decoder.schema)
        if decoder is None or columns is None:
            return None
        return partial(decoder.decode, columns=columns, on_skip=on_skip)

    def _decoded(
        self, lower: Frontier | None, upper: Frontier, decode: Decode, fields: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Read the messages of a batch in this process, and yield their columns."""
        self._topic_ids(upper)
        lower, upper = offsets_of(lower), offsets_of(upper) or {}
        begin = self.planner.begin_of_batch(lower, upper)
        ranges = [OffsetRange(*self._topics.place(p), begin[p], int(upper[p])) for p in begin]
        with closing(self.reader.read(ranges, self.kept, fields)) as messages:
            try:
                yield from decode(messages)
            except OffsetOutOfRange:
                # This names the offsets that Kafka has removed meanwhile.
                self.planner.begin_of_batch(lower, upper)
                raise

    def share_reads(self, other: Source) -> None:
        if isinstance(other, KafkaSource):
            other.kept = self.kept

    def close(self) -> None:
        self.reader.close()

    def partitions(self, upper: Frontier) -> int:
        return sum(map(self._topics.is_read, offsets_of(upper) or {}))

    def messages(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        """Return the messages of a batch, not decoded.

        Args:
            spark: the session.
            lower: the frontier that the batch starts at; None for the source's beginning.
            upper: the frontier that the batch ends at.

        Raises:
            StreamError: a topic was created again, or Kafka no longer has the messages.
        """
        self._topic_ids(upper)
        lower, upper, read = offsets_of(lower), offsets_of(upper) or {}, self._topics.read
        begin = self.planner.begin_of_batch(lower, upper)
        hide_secrets(spark)
        reader = spark.read.format("kafka").option("subscribe", ",".join(read))
        for name, value in java_options(self.options).items():
            reader = reader.option(f"kafka.{name}", value)
        reader = reader.option("startingOffsets", self._topics.spark_offsets(begin, read))
        followed = {p: upper[p] for p in upper if self._topics.is_read(p)}
        reader = reader.option("endingOffsets", self._topics.spark_offsets(followed, read))
        reader = reader.option("failOnDataLoss", "true")
        has_headers = self.envelope.name == "raw" or "headers" in self.envelope.metadata.fields
        reader = reader.option("includeHeaders", str(has_headers).lower())
        return reader.load()

    def lag(self, frontier: Frontier | None) -> Lag:
        return Lag(self.planner.count_unread(offsets_of(frontier)), "rows")
