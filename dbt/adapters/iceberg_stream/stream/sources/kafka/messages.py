"""Read ranges of Kafka's messages."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.client import (
    LONG_READ_OPTIONS,
    KafkaClient,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import KeptMessages
from dbt.adapters.iceberg_stream.stream.sources.kafka.message_batch import (
    BATCH_BYTES,
    MessageBatch,
    read_metadata,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

# Messages that are taken together. More of them would start Python's garbage collector, which
# runs once 700 more objects exist, and by default takes longer than all else here.
TAKEN = 500
# Seconds to wait for a message before the client's errors are checked.
POLL_SECONDS = 0.1
# Seconds without any message after which the read fails; as long as Spark's reader waits.
READ_SECONDS = 120.0
# Offsets that Kafka no longer has must be an error, whatever the user's options are.
REQUIRED_OPTIONS = {
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
}
# Errors of the client that are kept to name the reason if no message arrives.
MAX_ERRORS = 20


class OffsetOutOfRange(StreamError):
    """Kafka does not have an offset of the range any more."""


@dataclass(frozen=True)
class OffsetRange:
    """A range of a partition's offsets; some of them may have no message.

    Attributes:
        topic: the partition's topic.
        partition: its number.
        begin: the first offset.
        end: the offset after the last one.
    """

    topic: str
    partition: int
    begin: int
    end: int


class MessageReader:
    """Reads ranges of messages; several threads may do so at the same time.

    Each read has a consumer of its own, which the next one uses again.

    Args:
        client: connects consumers.
    """

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._idle: deque[_RangeConsumer] = deque()

    def read(
        self, ranges: Sequence[OffsetRange], kept: KeptMessages, fields: Sequence[str] = ()
    ) -> Generator[MessageBatch, None, None]:
        """Yield the messages of ranges; close the generator if it is not read to its end.

        The messages of a partition are in their order, and those of several partitions mixed.

        Args:
            ranges: the ranges, at most one of each partition.
            kept: messages in memory, which need not be read, without such fields.
            fields: what batches have besides; see `read_metadata`.

        Raises:
            OffsetOutOfRange: Kafka no longer has the messages.
            StreamError: the messages cannot be read.
        """
        unread = []
        for part in ranges:
            begin = part.begin
            if not fields:
                batches, begin = kept.take((part.topic, part.partition), part.begin, part.end)
                yield from batches
            unread.append(replace(part, begin=begin))
        yield from self._fetch([part for part in unread if part.begin < part.end], fields)

    def _fetch(
        self, ranges: Sequence[OffsetRange], fields: Sequence[str]
    ) -> Iterator[MessageBatch]:
        """Read ranges from Kafka."""
        topics = dict.fromkeys(part.topic for part in ranges)
        if not topics:
            return
        try:
            consumer = self._idle.popleft()
        except IndexError:
            consumer = _RangeConsumer(self._client)
        with ExitStack() as undo:
            undo.callback(consumer.close)
            for topic in topics:
                ends = {part.partition: part for part in ranges if part.topic == topic}
                yield from consumer.read(topic, ends, fields)
            undo.pop_all()
        self._idle.append(consumer)

    def close(self) -> None:
        """Close the consumers that are not in use."""
        while self._idle:
            self._idle.pop().close()


class _RangeConsumer:
    """Reads ranges of one topic at a time."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._errors: deque[KafkaError] = deque(maxlen=MAX_ERRORS)
        self._topics: set[str] = set()
        self._consumer = client.connect(LONG_READ_OPTIONS, REQUIRED_OPTIONS, self._errors.append)

    def close(self) -> None:
        self._consumer.close()

    def read(
        self, topic: str, ranges: Mapping[int, OffsetRange], fields: Sequence[str]
    ) -> Iterator[MessageBatch]:
        """Yield the messages of ranges by partition, as `MessageReader.read` does."""
        from confluent_kafka import Message, TopicPartition

        unread = {number: part.end for number, part in ranges.items()}
        if topic not in self._topics:
            self._client.request_leaders(self._consumer, topic)
            self._topics.add(topic)
        places = [TopicPartition(topic, number, ranges[number].begin) for number in unread]
        self._consumer.assign(places)
        batch = MessageBatch(topic)
        while unread:
            messages, events = self._take(topic, unread)
            for partition, group in groupby(messages, Message.partition):
                number = int(partition or 0)
                # More messages of a partition may have been taken together with its last ones.
                if number in unread and _add(batch, list(group), unread[number], fields):
                    self._finish(topic, number, unread)
            for event in events:
                number = self._end_of_partition(topic, event)
                if _offset(event) >= unread.get(number, math.inf):
                    self._finish(topic, number, unread)
            if batch.nbytes >= BATCH_BYTES:
                yield batch
                batch = MessageBatch(topic)
        self._consumer.unassign()
        self._errors.clear()
        if batch.values:
            yield batch

    def _finish(self, topic: str, number: int, unread: dict[int, int]) -> None:
        from confluent_kafka import TopicPartition

        del unread[number]
        self._consumer.incremental_unassign([TopicPartition(topic, number)])

    def _take(
        self, topic: str, unread: Mapping[int, int]
    ) -> tuple[list[Message], Sequence[Message]]:
        """Return the next messages, and the next events, which have an error."""
        from confluent_kafka import Message

        # More than one message is only waited for if none is there: a range may have gaps.
        messages = self._consumer.consume(TAKEN, timeout=0)
        waited = 0.0
        while not messages:
            if (message := self._consumer.poll(POLL_SECONDS)) is not None:
                messages = [message]
                break
            waited += POLL_SECONDS
            self._client.check_refusals(topic, self._errors)
            if waited >= READ_SECONDS:
                raise self._silence(topic, unread)
        if not any(map(Message.error, messages)):
            return messages, ()
        events = [message for message in messages if message.error() is not None]
        return [message for message in messages if message.error() is None], events

    def _silence(self, topic: str, unread: Mapping[int, int]) -> StreamError:
        from confluent_kafka import KafkaError

        errors = [e for e in self._errors if e.code() != KafkaError._ALL_BROKERS_DOWN]
        if errors:
            return self._client.unanswered(topic, errors[-1].str())
        ends = ", ".join(f"{number} up to offset {end}" for number, end in unread.items())
        return StreamError(
            f"Kafka returned no message of {topic} for {READ_SECONDS:.0f} seconds, although its "
            f"partitions are not read to the batch's end: {ends}. Check that its brokers are "
            "healthy, and retry."
        )

    def _end_of_partition(self, topic: str, event: Message) -> int:
        """Return the number of the partition whose end an event reports, or -1."""
        from confluent_kafka import KafkaError

        error = event.error()
        assert error is not None, "an event has an error"
        if event.topic() is None:
            # If this error matters, no message will arrive. Without rights for its consumer group,
            # for example, the client reads all the same.
            self._errors.append(error)
            return -1
        number = int(event.partition() or 0)
        if error.code() == KafkaError._PARTITION_EOF:
            return number
        message = f"Partition {number} of {topic} cannot be read: {error.str()}."
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise OffsetOutOfRange(message)
        raise StreamError(message)


def _offset(message: Message) -> int:
    return int(message.offset() or 0)


def _add(batch: MessageBatch, messages: list[Message], end: int, fields: Sequence[str]) -> bool:
    """Add a partition's next messages; return whether there are none left up to `end`."""
    from confluent_kafka import Message

    count, first, last = len(messages), _offset(messages[0]), _offset(messages[-1])
    if last - first == count - 1:
        offsets = np.arange(first, last + 1, dtype=np.int64)
    else:
        offsets = np.fromiter(map(Message.offset, messages), np.int64, count)
    is_end = last + 1 >= end
    if is_end:
        count = int(np.searchsorted(offsets, end))
        messages, offsets = messages[:count], offsets[:count]
    if messages:
        partition, values = int(messages[0].partition() or 0), list(map(Message.value, messages))
        batch.add(partition, values, offsets, read_metadata(messages, fields))
    return is_end
