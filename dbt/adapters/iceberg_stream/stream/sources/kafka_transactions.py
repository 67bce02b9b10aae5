"""Where transactions of a database end in a topic, so that a batch holds whole ones.

Debezium puts the id of its transaction into each change (`provide.transaction.metadata`), and
Maxwell marks the last change of one (`commit`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from dbt.adapters.iceberg_stream.stream.errors import StreamError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

# Messages that are looked at together; a batch's end is looked for backwards.
CHUNK = 500
READ_SECONDS = 30.0
# The end of a Debezium transaction is known by the next one, or when nothing has come for so long.
QUIET_SECONDS = 5.0
# `txID:LSN`. GTIDs and others that have a colon have more than digits around it.
POSTGRES_ID = re.compile(r"(\d+):\d+")


@dataclass(frozen=True)
class Change:
    """A message: its offset, its value as JSON, and its time by Kafka's clock."""

    offset: int
    payload: Any
    milliseconds: int


@dataclass
class Transactions:
    """Ends of transactions in the only partition of a topic.

    Attributes:
        consumer: of Kafka, used by nobody else.
        form: `debezium` or `maxwell`.
    """

    consumer: Consumer
    topic: str
    form: str

    def last_end(self, begin: int, upper: int, last: int) -> int:
        """The end of the last transaction that is whole in `[begin, upper)`.

        If there is none, the end of the first one in `[begin, last)`; if it goes on, `begin`.

        Raises:
            StreamError: the messages cannot be read.
        """
        high = upper
        while high > begin:
            low = max(begin, high - CHUNK)
            # One more, which tells whether a transaction ends before it.
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
        changes = list(read_changes(self.consumer, self.topic, 0, low, min(high, last)))
        following: Sequence[Change | None] = [*changes[1:], None]
        if changes and high <= last:
            # What comes after the last of these is not known.
            changes, following = changes[:-1], following[:-1]
        ends_after = ENDS[self.form]
        return [
            change.offset + 1
            for change, after in zip(changes, following, strict=True)
            if ends_after(change, after)
        ]


def read_changes(
    consumer: Consumer, topic: str, partition: int, low: int, high: int
) -> Generator[Change, None, None]:
    """Changes in `[low, high)`; messages without value are none, such as tombstones.

    Close it, for its consumer reads one partition at a time.

    Raises:
        StreamError: the messages cannot be read.
    """
    from confluent_kafka import KafkaError, TopicPartition

    if low >= high:
        return
    consumer.assign([TopicPartition(topic, partition, low)])
    until, at = time.monotonic() + READ_SECONDS, low
    try:
        while at < high:
            for message in consumer.consume(min(CHUNK, high - at), timeout=0.1):
                error, offset = message.error(), int(message.offset() or 0)
                if error is None:
                    at, until = offset + 1, time.monotonic() + READ_SECONDS
                    yield from _changes(message, offset) if offset < high else []
                elif error.code() == KafkaError._PARTITION_EOF:
                    at = high
                else:
                    raise StreamError(f"The topic {topic} cannot be read: {error.str()}.")
            if time.monotonic() > until:
                raise StreamError(
                    f"Kafka has given no message of {topic} from offset {at} on for "
                    f"{READ_SECONDS:.0f} seconds."
                )
    finally:
        consumer.unassign()


def transaction_id(block: Any) -> str | None:
    """The id in a change's `transaction`, or in a message of the transaction topic.

    Debezium appends the place of each single change to the ids of PostgreSQL's transactions.
    """
    number = block.get("id") if isinstance(block, dict) else None
    if number is None:
        return None
    with_place = POSTGRES_ID.fullmatch(str(number))
    return with_place[1] if with_place else str(number)


def _changes(message: Message, offset: int) -> list[Change]:
    value = message.value()
    if value is None:
        return []
    try:
        payload = orjson.loads(value)
    except orjson.JSONDecodeError:
        return []  # a bad record, which belongs to no transaction
    payload = payload.get("payload") or payload if isinstance(payload, dict) else {}
    payload = payload if isinstance(payload, dict) else {}
    return [Change(offset, payload, message.timestamp()[1])]


def _debezium_ends(change: Change, after: Change | None) -> bool:
    ours = transaction_id(change.payload.get("transaction"))
    if ours is None:
        return True
    if after is None:
        return time.time() - change.milliseconds / 1000 > QUIET_SECONDS
    return transaction_id(after.payload.get("transaction")) != ours


def _maxwell_ends(change: Change, after: Change | None) -> bool:
    return bool(change.payload.get("commit")) or change.payload.get("xid") is None


ENDS: dict[str, Callable[[Change, Change | None], bool]] = {
    "debezium": _debezium_ends,
    "maxwell": _maxwell_ends,
}
