"""Whole transactions over several topics and partitions, by Debezium's transaction topic.

Debezium writes transactions one after the other, each into the partitions of its tables, and an
END with the number of its changes of each table (`event_count` of `data_collections`) into a topic
of one partition (`provide.transaction.metadata`). So the changes in a partition are in the order
of the ENDs, but partitions become visible at different times.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka_transaction_log import (
    AFTER,
    BEFORE,
    Part,
    Read,
    TransactionEnd,
    TransactionLog,
    end_of,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka_transactions import (
    CHUNK,
    Change,
    read_changes,
    transaction_id,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer

# Transactions of a batch, at most: their ids are held in memory.
MOST_ENDS = 100_000
# Progress among transactions of other tables is recorded so often: each time costs an empty batch.
FOREIGN = 1000


@dataclass
class TransactionTopic:
    """Where batches end, so that they hold whole transactions.

    Attributes:
        consumer: of Kafka, used by nobody else.
        topic: in which Debezium reports transactions.
        topics: of changes.
        place: returns topic and number of a partition that a frontier names.
    """

    consumer: Consumer
    topic: str
    topics: Sequence[str]
    place: Callable[[str], tuple[str, int]]
    # What the changes in each topic say of their table, and of their connector.
    _tables: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _asked: set[str] = field(default_factory=set)
    _learned: set[tuple[Any, ...]] = field(default_factory=set)
    _connector: Any = None

    def last_whole(
        self,
        begin: Mapping[str, int],
        limit: Mapping[str, int],
        first: Mapping[str, int],
        rows: int,
        whole: bool = False,
    ) -> dict[str, int]:
        """The end of the last transaction that is whole in `[begin, limit)`, and of all before it.

        The batch has about so many rows, or those of one transaction. If none is whole it goes to
        where the first one begins: what a snapshot reads belongs to none. With `whole` all that
        have ended before the limit are.

        Raises:
            StreamError: the messages cannot be read, or are of several connectors.
        """
        if all(limit[p] <= begin[p] for p in begin):
            return dict(begin)
        self._ask_for_tables(limit, first)
        own = f"{self.topic}/0"
        changes = [p for p in begin if p != own]
        log = self._read_ends(first[own], begin[own], limit[own], rows)
        if whole:
            log.ends = [replace(end, is_certain=False) for end in log.ends]
        most = rows
        while True:
            waiting = sum(limit[p] - begin[p] for p in changes)
            share = min(1.0, most / max(1, waiting))
            reach = {p: begin[p] + math.ceil(share * (limit[p] - begin[p])) for p in changes}
            read = self._read_parts(begin, reach, limit, log)
            while self._look_back(log, first[own]):
                read = self._read_parts(begin, reach, limit, log)
            self._check_named(log.ends, read)
            order = self._last_whole(log.ends, read)
            upper = {p: part.end_of(order) for p, part in read.parts.items()}
            upper[own] = begin[own] if order == BEFORE else log.ends[order].after
            if any(upper[p] > begin[p] for p in changes) or upper[own] >= begin[own] + FOREIGN:
                return {p: upper[p] for p in begin}
            if share == 1.0:
                return dict(begin)
            most *= 4

    def _read_ends(self, first: int, begin: int, limit: int, rows: int) -> TransactionLog:
        """Ends from an offset on, until they have so many rows, and the last ones before it."""
        log, count = TransactionLog(max(first, begin - CHUNK)), 0
        begun: dict[str, int] = {}
        if 0 < first == limit:
            log.since = time.time() * 1000  # all of them are older than Kafka's retention
        with closing(read_changes(self.consumer, self.topic, 0, log.low, limit)) as messages:
            for message in messages:
                transaction = transaction_id(message.payload)
                if transaction is None:
                    continue
                log.oldest = min(log.oldest, message.milliseconds)
                if message.offset < begin or log.since == -math.inf:
                    log.since = message.milliseconds
                is_end = message.payload.get("status") == "END"
                if message.offset < begin:
                    log.order |= {transaction: BEFORE} if is_end else {}
                elif not is_end:
                    begun[transaction] = message.milliseconds
                else:
                    end = end_of(message, begun.get(transaction))
                    log.order[transaction] = len(log.ends)
                    log.ends.append(end)
                    count += self._of_topics(end).total()
                if count >= rows or len(log.ends) >= MOST_ENDS:
                    break
        log.reach_back(first)
        return log

    def _look_back(self, log: TransactionLog, first: int) -> bool:
        """Read ends of before, if they may be of a change that is not known; whether there are.

        A partition that is read from its first offset has changes of long before.
        """
        if log.low <= first or not log.is_unsure:
            return False
        count = CHUNK
        while log.low > first and log.is_unsure:
            high, log.low = log.low, max(first, log.low - count)
            with closing(read_changes(self.consumer, self.topic, 0, log.low, high)) as messages:
                for message in messages:
                    if (transaction := transaction_id(message.payload)) is None:
                        continue
                    log.oldest = min(log.oldest, message.milliseconds)
                    if message.payload.get("status") == "END":
                        log.order.setdefault(transaction, BEFORE)
            count *= 2
        log.reach_back(first)
        log.unsure = math.inf
        return True

    def _read_parts(
        self,
        begin: Mapping[str, int],
        reach: Mapping[str, int],
        limit: Mapping[str, int],
        log: TransactionLog,
    ) -> Read:
        """The order of transactions in each partition, and their changes in each topic."""
        read = Read()
        for partition, high in reach.items():
            topic, number = self.place(partition)
            part = Part(high, high == limit[partition])
            after, is_later, unsure = 0, False, math.inf
            with closing(
                read_changes(self.consumer, topic, number, begin[partition], high)
            ) as changes:
                for change in changes:
                    self._learn(topic, change)
                    order = log.order_of(change)
                    # Behind one that is known it comes later, and before one that does not.
                    is_later = is_later or log.knows(change)
                    if order == AFTER and not is_later:
                        unsure = min(unsure, change.milliseconds)
                    elif BEFORE < order < AFTER:
                        unsure = math.inf
                    part.add(order, change.offset)
                    read.counts[topic, order] += 1
                    if (amid := log.during(change)) is not None:
                        read.unnamed[topic, amid] += 1
                    after = after + 1 if order == AFTER else 0
                    if after == CHUNK:
                        break
            log.unsure = min(log.unsure, unsure)
            read.parts[partition] = part
        return read

    def _check_named(self, ends: Sequence[TransactionEnd], read: Read) -> None:
        """Changes without the block would pass for those of a snapshot, and their ends for open."""
        named = {topic for topic, order in read.counts if order != BEFORE}
        for (topic, order), count in read.unnamed.items():
            if topic not in named and count >= self._of_topics(ends[order]).get(topic, math.inf):
                raise StreamError(
                    f"Changes in {topic} do not name their transaction, though {self.topic} counts "
                    "them. Debezium puts `transaction` into each message with "
                    "`provide.transaction.metadata=true`, and a transform such as "
                    "ExtractNewRecordState removes it: remove that transform, or read the topics "
                    "without `transaction_topic`."
                )

    def _last_whole(self, ends: Sequence[TransactionEnd], read: Read) -> int:
        """The last of the transactions that are whole, as are all before it; or `BEFORE`."""
        of_topic: dict[str, list[Part]] = defaultdict(list)
        for partition, part in read.parts.items():
            of_topic[self.place(partition)[0]].append(part)
        for order, end in enumerate(ends):
            for topic, count in self._of_topics(end).items():
                if read.counts[topic, order] >= count:
                    continue
                # A partition that has a later one has all of this.
                open_parts = [part for part in of_topic[topic] if part.last <= order]
                if open_parts and (end.is_certain or not all(part.is_all for part in open_parts)):
                    return order - 1
        return len(ends) - 1

    def _of_topics(self, end: TransactionEnd) -> Counter[str]:
        """Count the changes of a transaction by topic; a topic may have those of several tables."""
        changes = Counter[str]()
        for name, count in end.counts.items():
            if (topic := self._topic_of(name)) is not None:
                changes[topic] += count
        return changes

    def _topic_of(self, collection: str) -> str | None:
        """The topic that has a table's changes: as they say themselves, or else by its name."""
        for topic in self.topics:
            if collection in self._tables[topic]:
                return topic
        parts = collection.split(".")
        # Some connectors leave the database out of the topic's name.
        names = {collection, ".".join(parts[1:])} if len(parts) == 3 else {collection}
        for topic in self.topics:
            # A topic whose changes are of another table may have its own ones, too.
            candidates = {collection} if self._tables[topic] else names
            if any(f".{topic}".endswith(f".{name}") for name in candidates):
                return topic
        return None

    def _ask_for_tables(self, limit: Mapping[str, int], first: Mapping[str, int]) -> None:
        """Read the tables of each topic from its last messages, once there are any."""
        for partition, high in limit.items():
            topic, number = self.place(partition)
            is_known = topic == self.topic or self._tables[topic] or partition in self._asked
            if is_known or high == first[partition]:
                continue
            self._asked.add(partition)
            low = max(first[partition], high - CHUNK)
            with closing(read_changes(self.consumer, topic, number, low, high)) as changes:
                for change in changes:
                    self._learn(topic, change)

    def _learn(self, topic: str, change: Change) -> None:
        source = change.payload.get("source")
        if not isinstance(source, dict):
            return
        connector, database, schema, table = map(source.get, ("name", "db", "schema", "table"))
        origin = topic, connector, database, schema, table
        if origin in self._learned:
            return
        self._learned.add(origin)
        names = [str(name) for name in (database, schema, table) if name]
        # A connector names its collections with the database or without.
        self._tables[topic] |= {".".join(names), ".".join(names[1:])} if table else set()
        if self._connector is not None and connector not in (None, self._connector):
            raise StreamError(
                f"The topics {', '.join(self.topics)} have changes of several connectors, "
                f"{self._connector} and {connector}, and {self.topic} reports the transactions of "
                "one: make a source of the topics of each."
            )
        self._connector = self._connector or connector
