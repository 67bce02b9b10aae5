"""A Kafka topic, read by ranges of offsets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.kafka_options import IN_QUERY_TEXTS, java_options
from dbt.adapters.iceberg_stream.stream.sources.kafka_transactions import ENDS, Transactions
from dbt.adapters.iceberg_stream.stream.sources.plain_json import (
    MESSAGES_SQL,
    MESSAGES_VIEW,
    decoded,
    plain_schema,
)
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, Lag, Pick

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from dbt.adapters.iceberg_stream.engines.session import Session

SECONDS = 30.0
# Between two looks at what the client says of its connections.
LOOK_SECONDS = 3.0
REDACTION = "spark.sql.redaction.string.regex"
MESSAGES = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)


@dataclass
class KafkaSource:
    """A topic; a frontier is the next offset of each partition, by its number as text.

    Attributes:
        topic: name.
        options: of Kafka's clients, as librdkafka names them: bootstrap.servers, …
        envelope: what the messages are.
        starting: `earliest` or `latest`, for a stream that begins.
        transactions: whether a batch holds whole transactions of the database.
    """

    topic: str
    options: Mapping[str, str] = field(repr=False)
    envelope: Envelope
    starting: str = "earliest"
    transactions: bool = False
    ordered: bool = field(default=True, init=False)
    _errors: list[KafkaError] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.transactions and self.envelope.name not in ENDS:
            raise StreamError(
                f"`transactions: true` needs a `format` that tells of them: {', '.join(ENDS)}."
            )

    @property
    def has_bad(self) -> bool:
        return self.envelope.name != "raw"

    @property
    def has_truncates(self) -> bool:
        return self.envelope.name == "debezium"

    @property
    def of_rows(self) -> bool:
        return self.envelope.name in ("debezium", "maxwell")

    def empty(
        self, spark: SparkSession, lower: Frontier | None = None, upper: Frontier | None = None
    ) -> DataFrame:
        return self.envelope.unpack(spark, spark.createDataFrame([], MESSAGES))

    def schema_id(self, lower: Frontier | None, upper: Frontier | None = None) -> str:
        return ""  # the definition says what the columns are

    def present(self, lower: Frontier | None) -> Frontier | None:
        first, last = self._bounds()
        self._begin(lower, first, last)
        return last

    def mint(
        self, lower: Frontier | None, rows: int, until: Frontier | None = None
    ) -> Frontier | None:
        first, last = self._bounds()
        begin = self._begin(lower, first, last)
        limit = last
        if until is not None:
            # Partitions that came up since then begin at their first offset, later.
            limit = {p: min(offset, int(until.get(p, first[p]))) for p, offset in last.items()}
        if lower is None:
            begin = {p: min(offset, limit[p]) for p, offset in begin.items()}
        waiting = {p: limit[p] - begin[p] for p in limit if limit[p] > begin[p]}
        if not waiting:
            return None if lower is not None else begin
        # Each partition gives its share, so that none is left behind.
        total = sum(waiting.values())
        share = min(1.0, rows / total)
        taken = {p: max(1, int(count * share)) for p, count in waiting.items()}
        upper = {p: begin[p] + taken.get(p, 0) for p in begin}
        if self.transactions:
            # What comes after the limit tells whether a transaction ends before it.
            whole = self._whole_transactions(begin, upper, last)
            upper = whole if all(whole[p] <= limit[p] for p in whole) else begin
        return upper if upper != begin or lower is None else None

    def _whole_transactions(
        self, begin: Mapping[str, int], upper: Mapping[str, int], last: Mapping[str, int]
    ) -> dict[str, int]:
        if len(upper) > 1:
            raise StreamError(
                f"{self.topic} has {len(upper)} partitions, between which the order of "
                "transactions is not known: `transactions: true` needs a topic of one partition."
            )
        ends = self._transactions
        return {p: ends.last_end(begin[p], upper[p], last[p]) for p in upper}

    def is_behind(self, lower: Frontier, other: Frontier) -> bool:
        return any(int(lower.get(p, 0)) < int(offset) for p, offset in other.items())

    def read(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        return self.envelope.unpack(spark, self.messages(spark, lower, upper))

    def plain_rows(
        self, session: Session, lower: Frontier | None, upper: Frontier, pick: Pick
    ) -> Iterator[pa.RecordBatch] | None:
        if not self.envelope.is_plain:
            return None
        fields = self.envelope.fields(session.spark)
        schema = plain_schema({field.name: field.dataType.simpleString() for field in fields})
        columns = None if schema is None else pick(schema.names)
        if schema is None or columns is None:
            return None
        frame = self.messages(session.spark, lower, upper)
        messages = session.stream(MESSAGES_SQL, **{MESSAGES_VIEW: frame})
        next(messages)  # the schema
        return decoded(messages, schema, columns)

    def messages(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        """The batch as Kafka has it."""
        first, last = self._bounds()
        begin = self._begin(lower, first, last)
        hide_secrets(spark)
        reader = spark.read.format("kafka").option("subscribe", self.topic)
        for name, value in java_options(self.options).items():
            reader = reader.option(f"kafka.{name}", value)
        reader = reader.option("startingOffsets", self._offsets(begin, upper))
        reader = reader.option("endingOffsets", self._offsets(upper, upper))
        reader = reader.option("failOnDataLoss", "true")
        reader = reader.option("includeHeaders", str(self.envelope.name == "raw").lower())
        return reader.load()

    def lag(self, frontier: Frontier | None) -> Lag:
        first, last = self._bounds()
        begin = self._begin(frontier, first, last)
        return Lag(sum(last.values()) - sum(begin[p] for p in last), "rows")

    @cached_property
    def _transactions(self) -> Transactions:
        # With a consumer of its own: writers that ask for offsets would take its messages.
        return Transactions(self._connect(), self.topic, self.envelope.name)

    @cached_property
    def _consumer(self) -> Consumer:
        return self._connect()

    def _connect(self) -> Consumer:
        try:
            from confluent_kafka import Consumer, KafkaException
        except ImportError as error:
            raise StreamError(
                "Streams from Kafka need its client: pip install 'dbt-iceberg-stream[kafka]'."
            ) from error
        asked: dict[str, Any] = {
            "group.id": "dbt-iceberg-stream",
            "enable.auto.commit": "false",
            # The few messages that it reads need not fill its memory.
            "queued.min.messages": "1000",
            "fetch.wait.max.ms": "10",
            "enable.partition.eof": "true",
        }
        told = {"error_cb": self._errors.append}
        try:
            return Consumer({**asked, **self.options, **told}, logger=_silent())
        except KafkaException as error:
            raise StreamError(f"The options of Kafka are refused: {error.args[0].str()}") from error

    def _bounds(self) -> tuple[dict[str, int], dict[str, int]]:
        """The first offset and the one behind the last, of each partition."""
        from confluent_kafka import KafkaException, TopicPartition

        first, last = {}, {}
        try:
            for number in self._partitions():
                low, high = self._consumer.get_watermark_offsets(
                    TopicPartition(self.topic, number), timeout=SECONDS
                )
                first[str(number)], last[str(number)] = low, high
        except KafkaException as error:
            raise self._unanswered(error.args[0].str()) from error
        return first, last

    def _partitions(self) -> list[int]:
        """Asked several times, for the client itself would try a wrong password until the end."""
        from confluent_kafka import KafkaError, KafkaException

        refusals = KafkaError._AUTHENTICATION, KafkaError._SSL
        deadline = time.monotonic() + SECONDS
        self._consumer.poll(0)
        self._errors.clear()  # they are of earlier times
        while True:
            try:
                topics = self._consumer.list_topics(self.topic, timeout=LOOK_SECONDS).topics
                break
            except KafkaException as error:
                self._consumer.poll(0)  # tells what happened meanwhile
                told = [one for one in self._errors if one.code() != KafkaError._ALL_BROKERS_DOWN]
                refused = [one for one in told if one.code() in refusals]
                if refused or time.monotonic() > deadline:
                    cause = (refused or told or [error.args[0]])[-1]
                    raise self._unanswered(cause.str()) from error
        found = topics[self.topic]
        if found.error is not None:
            raise StreamError(f"The topic {self.topic} cannot be read: {found.error.str()}.")
        return sorted(found.partitions)

    def _unanswered(self, cause: str) -> StreamError:
        servers = self.options.get("bootstrap.servers")
        return StreamError(
            f"Kafka at {servers} does not answer for the topic {self.topic}: {cause}"
        )

    def _begin(
        self, lower: Frontier | None, first: Mapping[str, int], last: Mapping[str, int]
    ) -> dict[str, int]:
        """Where to read on; partitions that are new begin at their first offset."""
        if lower is None:
            return dict(last if self.starting == "latest" else first)
        begin = {p: int(lower.get(p, first[p])) for p in first}
        for partition, offset in begin.items():
            if offset < first[partition]:
                raise StreamError(
                    f"Kafka no longer has the offsets {offset} to {first[partition] - 1} of "
                    f"partition {partition} of {self.topic}: they are older than its retention. "
                    "What they held is lost to this stream; begin anew with --full-refresh if the "
                    "topic holds all rows, else load them from where they come from."
                )
            if offset > last[partition]:
                raise StreamError(
                    f"Partition {partition} of {self.topic} ends at {last[partition]}, before the "
                    f"stream's progress {offset}: the topic was made anew. Use --full-refresh."
                )
        return begin

    def _offsets(self, frontier: Frontier, all_of: Frontier) -> str:
        # -2 and -1 would be the earliest and the latest.
        return json.dumps({self.topic: {p: frontier.get(p, 0) for p in all_of}})


def hide_secrets(spark: SparkSession) -> None:
    """Have Spark leave them out of the texts of queries, which its event log and web pages show."""
    known = spark.conf.get(REDACTION, None)
    if IN_QUERY_TEXTS not in (known or ""):
        spark.conf.set(REDACTION, f"{known}|{IN_QUERY_TEXTS}" if known else IN_QUERY_TEXTS)


def _silent() -> Any:
    import logging

    logger = logging.getLogger("dbt.adapters.iceberg_stream.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
