"""Group Debezium's changes by transaction: most follow others of the same one."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import KeptMessages
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.ends import (
    Change,
    read_messages,
    transaction_id,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payloads import PayloadReader

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import Payload

# No id begins with it.
NO_PREFIX = "\0"


class ChangeRun(NamedTuple):
    """Consecutive changes of one table in one transaction, or a change in no transaction.

    Attributes:
        payload: that of the first message.
        messages: the messages.
        transaction: the id of the transaction; None if the changes have none.
    """

    payload: Payload
    messages: list[Message]
    transaction: str | None

    @property
    def offset(self) -> int:
        """The offset of the first change."""
        return int(self.messages[0].offset() or 0)

    def changes(self) -> Iterator[Change]:
        """Yield the changes one by one."""
        for message in self.messages:
            yield Change(message.offset() or 0, self.payload, message.timestamp()[1])


def read_runs(
    consumer: Consumer,
    payloads: PayloadReader,
    topic: str,
    partition: int,
    low: int,
    high: int,
    kept: KeptMessages,
) -> Generator[ChangeRun, None, None]:
    """Yield the changes in `[low, high)` as `read_changes` does, but grouped.

    Args:
        consumer: a consumer of Kafka.
        payloads: reads what the messages say.
        topic: the topic.
        partition: the number of the partition.
        low: the first offset.
        high: the end offset.
        kept: takes the messages, if batches read them from there.

    Raises:
        StreamError: the messages cannot be read.
    """
    place = topic, partition
    is_kept = kept.start(place, low)
    with closing(read_messages(consumer, topic, partition, low, high)) as chunks:
        for messages in chunks:
            values = [message.value() or b"" for message in messages]
            yield from _group(messages, payloads.parse(values))
            if is_kept:
                is_kept = kept.add(place, values, [message.offset() or 0 for message in messages])


def _group(messages: Sequence[Message], payloads: Iterable[Payload | None]) -> Iterator[ChangeRun]:
    run: ChangeRun | None = None
    last, prefix, transaction, table = None, NO_PREFIX, None, None
    for message, payload in zip(messages, payloads, strict=True):
        if payload is None:
            continue
        block, source = payload.transaction, payload.source
        id = None if block is None else block.id
        # Most ids of PostgreSQL differ from the last one only in the LSN behind the colon.
        if not isinstance(id, str) or not (
            id == last or (id.startswith(prefix) and id[len(prefix) :].isdecimal())
        ):
            last, transaction = id, transaction_id(block)
            prefix = NO_PREFIX if transaction in (None, id) else f"{transaction}:"
        name = source and (source.name, source.db, source.schema, source.table)
        if run is None or transaction is None or transaction != run.transaction or name != table:
            if run is not None:
                yield run
            run, table = ChangeRun(payload, [], transaction), name
        run.messages.append(message)
    if run is not None:
        yield run
