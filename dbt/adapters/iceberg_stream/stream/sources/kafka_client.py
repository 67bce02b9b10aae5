"""Kafka without Spark: partitions, offsets, a few messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.stream.errors import StreamError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient

SECONDS = 30.0
# Between two looks at what the client says of its connections.
LOOK_SECONDS = 3.0
# Between two looks for who has a partition.
MOVE_SECONDS = 0.2
# The id of a topic in answers of an older Kafka.
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
# With a full memory the client would rest for a second.
MUCH = {"queued.max.messages.kbytes": "16384", "fetch.queue.backoff.ms": "5"}


@dataclass
class KafkaClient:
    """A client of one Kafka, which connects when it is asked first.

    Attributes:
        options: as librdkafka names them: bootstrap.servers, …
    """

    options: Mapping[str, str] = field(repr=False)
    _errors: list[KafkaError] = field(default_factory=list, init=False, repr=False)

    @cached_property
    def _consumer(self) -> Consumer:
        return self.connect()

    def connect(self, much: bool = False) -> Consumer:
        """A consumer of its own, for a few messages or for much of a topic."""
        try:
            from confluent_kafka import Consumer, KafkaException
        except ImportError as error:
            raise StreamError(
                "Streams from Kafka need its client: pip install 'dbt-iceberg-stream[kafka]'."
            ) from error
        defaults: dict[str, Any] = {
            "group.id": "dbt-iceberg-stream",
            "enable.auto.commit": "false",
            "fetch.wait.max.ms": "10",
            "enable.partition.eof": "true",
            # The few messages that it reads need not fill its memory.
            **(MUCH if much else {"queued.min.messages": "1000"}),
        }
        callbacks = {"error_cb": self._errors.append}
        try:
            return Consumer({**defaults, **self.options, **callbacks}, logger=_silent())
        except KafkaException as error:
            raise StreamError(f"The options of Kafka are refused: {error.args[0].str()}") from error

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """The first offset and the one behind the last, of each partition.

        Raises:
            StreamError: there is no such topic, or Kafka does not answer.
        """
        from confluent_kafka import KafkaException

        try:
            return {number: self._offsets(topic, number) for number in self._partitions(topic)}
        except KafkaException as error:
            raise self._unanswered(topic, error.args[0].str()) from error

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Ids of topics, which those that are created again do not share; of Kafka 2.8 on."""
        from confluent_kafka import KafkaException, TopicCollection

        for topic in topics:
            self._partitions(topic)  # its errors say more about the connection
        answers = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=SECONDS
        )
        ids = {}
        for topic, future in answers.items():
            # A request for its offsets reports what is wrong with the topic.
            with contextlib.suppress(KafkaException):
                ids[topic] = str(future.result().topic_id)
        return {topic: number for topic, number in ids.items() if number != NO_ID}

    @cached_property
    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient(dict(self.options), logger=_silent())

    def _offsets(self, topic: str, number: int) -> tuple[int, int]:
        """Asked several times, for a partition may be on its way to another broker."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        moving = KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                place = TopicPartition(topic, number)
                low, high = self._consumer.get_watermark_offsets(place, timeout=SECONDS)
                return low, high
            except KafkaException as error:
                if error.args[0].code() not in moving or time.monotonic() > deadline:
                    raise
                time.sleep(MOVE_SECONDS)

    def _partitions(self, topic: str) -> list[int]:
        """Asked several times, for the client itself would try a wrong password until the end."""
        from confluent_kafka import KafkaError, KafkaException

        refusals = KafkaError._AUTHENTICATION, KafkaError._SSL
        deadline = time.monotonic() + SECONDS
        self._consumer.poll(0)
        self._errors.clear()  # they are of earlier times
        while True:
            try:
                topics = self._consumer.list_topics(topic, timeout=LOOK_SECONDS).topics
                break
            except KafkaException as error:
                self._consumer.poll(0)  # collects the errors of the meantime
                reported = [e for e in self._errors if e.code() != KafkaError._ALL_BROKERS_DOWN]
                refused = [each for each in reported if each.code() in refusals]
                if refused or time.monotonic() > deadline:
                    cause = (refused or reported or [error.args[0]])[-1]
                    raise self._unanswered(topic, cause.str()) from error
        metadata = topics[topic]
        if metadata.error is not None:
            raise StreamError(f"The topic {topic} cannot be read: {metadata.error.str()}.")
        return sorted(metadata.partitions)

    def _unanswered(self, topic: str, cause: str) -> StreamError:
        servers = self.options.get("bootstrap.servers")
        return StreamError(f"Kafka at {servers} does not answer for the topic {topic}: {cause}")


def _silent() -> Any:
    import logging

    logger = logging.getLogger("dbt.adapters.iceberg_stream.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
