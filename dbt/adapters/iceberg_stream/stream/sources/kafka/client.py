"""Read partitions, offsets and single messages of Kafka without Spark."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.stream.errors import StreamError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient

TIMEOUT_SECONDS = 30.0
# Seconds between two checks of the client's connection errors.
ERROR_POLL_SECONDS = 3.0
# Seconds between two requests while a partition changes its leader.
LEADER_POLL_SECONDS = 0.2
# The id that brokers before Kafka 2.8 return for each topic.
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
# Options for long reads. What is fetched beyond the end of a range is fetched in vain, so the queue
# is short. While it is full, the client would pause for a second by default.
LONG_READ_OPTIONS = {
    "queued.min.messages": "20000",
    "queued.max.messages.kbytes": "4096",
    "fetch.queue.backoff.ms": "5",
}
# A consumer of single messages needs no large queue.
SINGLE_MESSAGE_OPTIONS = {"queued.min.messages": "1000"}


@dataclass
class KafkaClient:
    """A client of one Kafka cluster, which connects on first use.

    Attributes:
        options: the client's options, by librdkafka's names, such as bootstrap.servers.
    """

    options: Mapping[str, str] = field(repr=False)
    _errors: list[KafkaError] = field(default_factory=list, init=False, repr=False)

    @cached_property
    def _consumer(self) -> Consumer:
        return self.connect()

    def connect(
        self,
        defaults: Mapping[str, str] = SINGLE_MESSAGE_OPTIONS,
        required: Mapping[str, str] | None = None,
        on_error: Callable[[KafkaError], None] | None = None,
    ) -> Consumer:
        """Return a new consumer.

        Args:
            defaults: options that the client's own replace.
            required: options that replace the client's own.
            on_error: called with errors of its connections; None to keep them in this client.

        Raises:
            StreamError: the client is not installed, or refuses an option.
        """
        try:
            from confluent_kafka import Consumer, KafkaException
        except ImportError as error:
            raise StreamError(
                "Streams from Kafka need its client: pip install 'dbt-iceberg-stream[kafka]'."
            ) from error
        options: dict[str, Any] = {
            "group.id": "dbt-iceberg-stream",
            "enable.auto.commit": "false",
            "fetch.wait.max.ms": "10",
            "enable.partition.eof": "true",
            **defaults,
            **self.options,
            **(required or {}),
            "error_cb": on_error or self._errors.append,
        }
        try:
            return Consumer(options, logger=_silent())
        except KafkaException as error:
            raise StreamError(f"Kafka's client refuses an option: {error.args[0].str()}") from error

    def request_leaders(self, consumer: Consumer, topic: str) -> None:
        """Have a consumer look up the leaders of a topic, once before it first reads the topic.

        Otherwise it does so a second after the topic is assigned.

        Args:
            consumer: the consumer.
            topic: the topic.
        """
        from confluent_kafka import KafkaException

        # The read reports errors better.
        with contextlib.suppress(KafkaException):
            consumer.list_topics(topic, timeout=ERROR_POLL_SECONDS)

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the first offset and the end offset of each partition.

        Args:
            topic: the topic.

        Raises:
            StreamError: the topic does not exist, or Kafka does not answer.
        """
        from confluent_kafka import KafkaException

        try:
            return {number: self._offsets(topic, number) for number in self._partitions(topic)}
        except KafkaException as error:
            raise self.unanswered(topic, error.args[0].str()) from error

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the ids of topics; Kafka before 2.8 has none.

        A topic that is deleted and created again gets another id.

        Args:
            topics: names of the topics.
        """
        from confluent_kafka import KafkaException, TopicCollection

        for topic in topics:
            self._partitions(topic)  # reports connection errors better than the request below
        answers = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=TIMEOUT_SECONDS
        )
        ids = {}
        for topic, future in answers.items():
            # The next request for the topic's offsets reports its error.
            with contextlib.suppress(KafkaException):
                ids[topic] = str(future.result().topic_id)
        return {topic: number for topic, number in ids.items() if number != NO_ID}

    @cached_property
    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient(dict(self.options), logger=_silent())

    def _offsets(self, topic: str, number: int) -> tuple[int, int]:
        """Return the offsets; retry while the partition moves to another broker."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        moving = KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                place = TopicPartition(topic, number)
                low, high = self._consumer.get_watermark_offsets(place, timeout=TIMEOUT_SECONDS)
                return low, high
            except KafkaException as error:
                if error.args[0].code() not in moving or time.monotonic() > deadline:
                    raise
                time.sleep(LEADER_POLL_SECONDS)

    def _partitions(self, topic: str) -> list[int]:
        """Return the partitions; stop early on a wrong password, which the client would retry."""
        from confluent_kafka import KafkaError, KafkaException

        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                topics = self._consumer.list_topics(topic, timeout=ERROR_POLL_SECONDS).topics
                break
            except KafkaException as error:
                self._consumer.poll(0)  # calls `error_cb`
                self.check_refusals(topic, self._errors)
                if time.monotonic() > deadline:
                    reported = [e for e in self._errors if e.code() != KafkaError._ALL_BROKERS_DOWN]
                    cause = (reported or [error.args[0]])[-1]
                    raise self.unanswered(topic, cause.str()) from error
        # Only now: the client reports a refusal once, perhaps before the first request.
        self._errors.clear()
        metadata = topics[topic]
        if metadata.error is not None:
            raise StreamError(f"The topic {topic} cannot be read: {metadata.error.str()}.")
        return sorted(metadata.partitions)

    def check_refusals(self, topic: str, errors: Iterable[KafkaError]) -> None:
        """Check that the brokers accept the client, which would try again for ever.

        Args:
            topic: the topic to read.
            errors: errors of the connections.

        Raises:
            StreamError: the password or the certificate is wrong.
        """
        from confluent_kafka import KafkaError

        for error in errors:
            if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
                raise self.unanswered(topic, error.str())

    def unanswered(self, topic: str, cause: str) -> StreamError:
        """Return the error for brokers that do not answer.

        Args:
            topic: the topic to read.
            cause: why they do not.
        """
        servers = self.options.get("bootstrap.servers")
        return StreamError(f"Kafka at {servers} does not answer for the topic {topic}: {cause}")


def _silent() -> Any:
    import logging

    logger = logging.getLogger("dbt.adapters.iceberg_stream.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
