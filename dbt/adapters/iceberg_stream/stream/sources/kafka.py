"""A Kafka topic, read by ranges of offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.stream.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, Lag

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

SECONDS = 30.0
MESSAGES = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)


@dataclass
class KafkaSource:
    """A topic; a frontier is the next offset of each partition, by its number as text.

    Attributes:
        topic: name.
        options: of Kafka's clients, as both librdkafka and Java's know them: bootstrap.servers, …
        envelope: what the messages are.
        starting: `earliest` or `latest`, for a stream that begins.
    """

    topic: str
    options: Mapping[str, str]
    envelope: Envelope
    starting: str = "earliest"
    ordered: bool = field(default=True, init=False)

    @property
    def has_bad(self) -> bool:
        return self.envelope.name != "raw"

    @property
    def has_truncates(self) -> bool:
        return self.envelope.name == "debezium"

    @property
    def of_rows(self) -> bool:
        return self.envelope.name in ("debezium", "maxwell")

    def empty(self, spark: SparkSession) -> DataFrame:
        return self.envelope.unpack(spark, spark.createDataFrame([], MESSAGES))

    def present(self, lower: Frontier | None) -> Frontier | None:
        first, last = self._bounds()
        self._begin(lower, first, last)
        return last

    def mint(
        self, lower: Frontier | None, rows: int, until: Frontier | None = None
    ) -> Frontier | None:
        first, last = self._bounds()
        begin = self._begin(lower, first, last)
        if until is not None:
            last = {p: min(offset, int(until.get(p, 0))) for p, offset in last.items()}
        waiting = {p: last[p] - begin[p] for p in last if last[p] > begin[p]}
        if not waiting:
            return None if lower is not None else begin
        # Each partition gives its share, so that none is left behind.
        total = sum(waiting.values())
        share = min(1.0, rows / total)
        taken = {p: max(1, int(count * share)) for p, count in waiting.items()}
        return {p: begin[p] + taken.get(p, 0) for p in begin}

    def read(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        return self.envelope.unpack(spark, self.messages(spark, lower, upper))

    def messages(self, spark: SparkSession, lower: Frontier | None, upper: Frontier) -> DataFrame:
        """The batch as Kafka has it."""
        first, last = self._bounds()
        begin = self._begin(lower, first, last)
        reader = spark.read.format("kafka").option("subscribe", self.topic)
        for name, value in self.options.items():
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
    def _consumer(self) -> Consumer:
        try:
            from confluent_kafka import Consumer
        except ImportError as error:
            raise StreamError(
                "Streams from Kafka need its client: pip install 'dbt-iceberg-stream[kafka]'."
            ) from error
        asked = {"group.id": "dbt-iceberg-stream", "enable.auto.commit": "false"}
        return Consumer({**asked, **self.options}, logger=_silent())

    def _bounds(self) -> tuple[dict[str, int], dict[str, int]]:
        """The first offset and the one behind the last, of each partition."""
        from confluent_kafka import KafkaException, TopicPartition

        first, last = {}, {}
        try:
            topics = self._consumer.list_topics(self.topic, timeout=SECONDS).topics
            found = topics[self.topic]
            if found.error is not None:
                raise StreamError(f"The topic {self.topic} cannot be read: {found.error.str()}.")
            for number in sorted(found.partitions):
                low, high = self._consumer.get_watermark_offsets(
                    TopicPartition(self.topic, number), timeout=SECONDS
                )
                first[str(number)], last[str(number)] = low, high
        except KafkaException as error:
            servers = self.options.get("bootstrap.servers")
            raise StreamError(
                f"Kafka at {servers} does not answer for the topic {self.topic}: "
                f"{error.args[0].str()}"
            ) from error
        return first, last

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


def _silent() -> Any:
    import logging

    logger = logging.getLogger("dbt.adapters.iceberg_stream.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
