"""Find the ends of transactions in a topic, so that batches have only whole ones.

Debezium adds the id of its transaction to each change (`provide.transaction.metadata`). Maxwell
marks the last change of a transaction (`commit`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payloads import PayloadReader

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import (
        Payload,
        Transaction,
    )

# Number of messages that are read together; the search for a batch's end goes backwards.
CHUNK = 500
READ_SECONDS = 30.0
# A Debezium transaction ends with the start of the next one, or after so many quiet seconds.
QUIET_SECONDS = 5.0


class Change(NamedTuple):
    """A message.

    Attributes:
        offset: its offset.
        payload: what it says of its change, or of a transaction.
        milliseconds: its time by Kafka's clock.
    """

    offset: int
    payload: Payload
    milliseconds: int


@dataclass
class Transactions:
    """Finds ends of transactions in the only partition of a topic.

    Attributes:
        consumer: a consumer of Kafka for this object only.
        topic: the topic.
        message_format: `debezium` or `maxwell`.
        payloads: reads what the messages say.
    """

    consumer: Consumer
    topic: str
    message_format: str
    payloads: PayloadReader

    def last_end(self, begin: int, upper: int, last: int) -> int:
        """Return the end of the last whole transaction in `[begin, upper)`.

        Args:
            begin: offset at which the batch starts.
            upper: offset at which it should end.
            last: the end offset of the partition.

        Returns:
            The end; without a whole transaction, the end of the first one in `[begin, last)`, or
            `begin` if that is not complete.

        Raises:
            StreamError: the messages cannot be read.
        """
        high = upper
        while high > begin:
            low = max(begin, high - CHUNK)
            # The message after the range shows whether a transaction ends before it.
            if ends := [end for end in self._ends(low, high + 1, last) if end <= upper]:
                return ends[-1]
            high = low
        low = upper
        while low < last:
            high = min(last, low + CHUNK)
            if ends := [end for end in self._ends(low - 1, high + 1, last) if end > upper]:
                return ends[0]
            low = high
        return begin

    def _ends(self, low: int, high: int, last: int) -> list[int]:
        changes = list(
            read_changes(self.consumer, self.payloads, self.topic, 0, low, min(high, last))
        )
        following: Sequence[Change | None] = [*changes[1:], None]
        if changes and high <= last:
            # The message after the last one is not known.
            changes, following = changes[:-1], following[:-1]
        ends_after = ENDS[self.message_format]
        return [
            change.offset + 1
            for change, after in zip(changes, following, strict=True)
            if ends_after(change, after)
        ]


def read_changes(
    consumer: Consumer, payloads: PayloadReader, topic: str, partition: int, low: int, high: int
) -> Generator[Change, None, None]:
    """Yield the changes in `[low, high)`, without messages that have no value (tombstones).

    Close the generator before the consumer reads another partition.

    Args:
        consumer: a consumer of Kafka.
        payloads: reads what the messages say.
        topic: the topic.
        partition: the number of the partition.
        low: the first offset.
        high: the end offset.

    Raises:
        StreamError: the messages cannot be read.
    """
    with closing(read_messages(consumer, topic, partition, low, high)) as chunks:
        for messages in chunks:
            parsed = payloads.parse([message.value() or b"" for message in messages])
            for message, payload in zip(messages, parsed, strict=True):
                if payload is not None:
                    yield Change(message.offset() or 0, payload, message.timestamp()[1])


def read_messages(
    consumer: Consumer, topic: str, partition: int, low: int, high: int
) -> Generator[list[Message], None, None]:
    """Yield the messages in `[low, high)` in lists, without those that have no value (tombstones).

    Close the generator before the consumer reads another partition.

    Args:
        consumer: a consumer of Kafka.
        topic: the topic.
        partition: the number of the partition.
        low: the first offset.
        high: the end offset.

    Raises:
        StreamError: the messages cannot be read.
    """
    from confluent_kafka import TopicPartition

    if low >= high:
        return
    consumer.assign([TopicPartition(topic, partition, low)])
    deadline, at = time.monotonic() + READ_SECONDS, low
    try:
        while at < high:
            taken = consumer.consume(min(CHUNK, high - at), timeout=0.1)
            messages = [message for message in taken if message.error() is None]
            if messages:
                at = _offset(messages[-1]) + 1
                if at > high:
                    messages = [message for message in messages if _offset(message) < high]
                if with_value := [message for message in messages if message.value() is not None]:
                    yield with_value
            if len(messages) < len(taken) and _is_end_reported(topic, taken):
                return
            if taken:
                deadline = time.monotonic() + READ_SECONDS
            elif time.monotonic() > deadline:
                raise StreamError(
                    f"Kafka returned no message of {topic} from offset {at} on for "
                    f"{READ_SECONDS:.0f} seconds. Check that its brokers are healthy, and retry."
                )
    finally:
        consumer.unassign()


def _offset(message: Message) -> int:
    return int(message.offset() or 0)


def _is_end_reported(topic: str, messages: Sequence[Message]) -> bool:
    """Return whether Kafka reports the end of the partition; raise StreamError for an error."""
    from confluent_kafka import KafkaError

    errors = [(message, error) for message in messages if (error := message.error()) is not None]
    for message, error in errors:
        if error.code() != KafkaError._PARTITION_EOF and message.topic() is not None:
            raise StreamError(f"The topic {topic} cannot be read: {error.str()}.")
    return any(error.code() == KafkaError._PARTITION_EOF for _, error in errors)


def transaction_id(message: Transaction | Payload | None) -> str | None:
    """Return the id in a change's `transaction`, or in a message of the transaction topic.

    Debezium appends the LSN of each change to the ids of PostgreSQL's transactions.

    Args:
        message: the `transaction`, or the message; None if the change has none.
    """
    if message is None or message.id is None:
        return None
    text = str(message.id)
    # `txID:LSN`. Other ids with a colon, such as GTIDs, have more than digits around it.
    transaction, _, lsn = text.partition(":")
    return transaction if lsn.isdecimal() and transaction.isdecimal() else text


def _debezium_ends(change: Change, after: Change | None) -> bool:
    ours = transaction_id(change.payload.transaction)
    if ours is None:
        return True
    if after is None:
        return time.time() - change.milliseconds / 1000 > QUIET_SECONDS
    return transaction_id(after.payload.transaction) != ours


def _maxwell_ends(change: Change, after: Change | None) -> bool:
    return bool(change.payload.commit) or change.payload.xid is None


ENDS: dict[str, Callable[[Change, Change | None], bool]] = {
    "debezium": _debezium_ends,
    "maxwell": _maxwell_ends,
}
