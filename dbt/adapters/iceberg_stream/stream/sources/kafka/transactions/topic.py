"""Read whole transactions from several topics and partitions, by Debezium's transaction topic.

Debezium writes one transaction after the other into the partitions of its tables. For each it
writes an END with the number of changes of each table (`event_count` of `data_collections`) into a
topic of one partition (`provide.transaction.metadata`). So the changes in a partition are in the
order of the ENDs, but messages become visible at different times in different partitions.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import KeptMessages
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.ends import (
    CHUNK,
    Change,
    read_changes,
    transaction_id,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.log import (
    AFTER,
    BEFORE,
    Part,
    ReadParts,
    TransactionEnd,
    TransactionLog,
    parse_end,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payloads import PayloadReader
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.runs import ChangeRun, read_runs

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import Origin

# Highest number of transactions in a batch, because memory holds their ids.
MAX_ENDS = 100_000
# Messages about transactions of other tables after which an empty batch records the progress.
RECORD_AFTER = 1000


@dataclass
class _Tail:
    """The changes at the end of what is read of a partition, whose transactions have no END yet.

    Attributes:
        length: their number.
        is_later: whether they follow a change whose END was read, so that theirs is later.
        unsure: time of the oldest change that may have an older END.
    """

    length: int = 0
    is_later: bool = False
    unsure: float = math.inf

    def pass_by(self, order: float) -> None:
        """Begin anew after changes of a transaction whose END was read."""
        self.is_later, self.length = True, 0
        if order > BEFORE:
            self.unsure = math.inf

    def add(self, order: float, change: Change) -> None:
        """Add a change whose transaction has no END that was read, or that has none."""
        if order != AFTER:
            self.length = 0
            return
        self.length += 1
        if not self.is_later:
            self.unsure = min(self.unsure, change.milliseconds)


@dataclass
class TransactionTopic:
    """Finds ends of batches that have only whole transactions.

    Attributes:
        consumer: a consumer of Kafka for this object only.
        topic: the topic to which Debezium reports transactions.
        topics: the topics of changes.
        place: returns topic and number of a partition in a frontier.
        payloads: reads what the messages say.
        kept: takes the changes that were read, for their batch.
    """

    consumer: Consumer
    topic: str
    topics: Sequence[str]
    place: Callable[[str], tuple[str, int]]
    payloads: PayloadReader
    kept: KeptMessages = field(default_factory=KeptMessages)
    # Data collections by topic, from the `source` blocks of the changes.
    _tables: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    # Partitions whose last messages were read for their tables.
    _sampled: set[str] = field(default_factory=set)
    # Topics by data collection, until `_tables` has more.
    _topics: dict[str, str | None] = field(default_factory=dict)
    # Topic, connector and table of changes that `_tables` includes.
    _origins: set[tuple[Any, ...]] = field(default_factory=set)
    _connector: str | None = None

    def last_whole(
        self,
        begin: Mapping[str, int],
        limit: Mapping[str, int],
        first: Mapping[str, int],
        rows: int,
        whole: bool = False,
    ) -> dict[str, int]:
        """Return the end of the last of the whole transactions in `[begin, limit)`.

        The batch has about `rows` rows, or those of one transaction. If no transaction is whole,
        the batch ends at the start of the first one: changes of snapshots are in no transaction.

        Args:
            begin: offsets at which the batch starts.
            limit: end offsets of what may be read.
            first: first offsets of Kafka.
            rows: the wanted number of rows.
            whole: whether all transactions with an END before the limit count as whole.

        Raises:
            StreamError: the messages cannot be read, or are of several connectors.
        """
        if all(limit[p] <= begin[p] for p in begin):
            return dict(begin)
        self._sample_tables(limit, first)
        own = f"{self.topic}/0"
        changes = [p for p in begin if p != own]
        log = self._read_ends(first[own], begin[own], limit[own], rows)
        if whole:
            log.ends = [end._replace(is_certain=False) for end in log.ends]
        unread = sum(limit[p] - begin[p] for p in changes)
        most = rows
        while True:
            share = min(1.0, most / max(1, unread))
            reach = {p: begin[p] + math.ceil(share * (limit[p] - begin[p])) for p in changes}
            read = self._read_parts(begin, reach, limit, log)
            while self._read_older_ends(log, first[own]):
                read = self._read_parts(begin, reach, limit, log)
            self._check_named(log.ends, read)
            order = self._last_whole(log.ends, read)
            upper = {p: part.end_of(order) for p, part in read.parts.items()}
            upper[own] = begin[own] if order == BEFORE else log.ends[order].after
            if any(upper[p] > begin[p] for p in changes) or upper[own] >= begin[own] + RECORD_AFTER:
                self.kept.finish()
                return {p: upper[p] for p in begin}
            if share == 1.0:
                return dict(begin)
            most *= 4

    def _read_changes(
        self, topic: str, number: int, low: int, high: int
    ) -> Generator[Change, None, None]:
        return read_changes(self.consumer, self.payloads, topic, number, low, high)

    def _read_runs(
        self, topic: str, number: int, low: int, high: int
    ) -> Generator[ChangeRun, None, None]:
        return read_runs(self.consumer, self.payloads, topic, number, low, high, self.kept)

    def _read_ends(self, first: int, begin: int, limit: int, rows: int) -> TransactionLog:
        """Read ENDs for about `rows` rows from an offset, and the ids of some before it."""
        log, count = TransactionLog(max(first, begin - CHUNK)), 0
        begins: dict[str, int] = {}
        if 0 < first == limit:
            log.since = time.time() * 1000  # all messages have expired
        with closing(self._read_changes(self.topic, 0, log.low, limit)) as messages:
            for message in messages:
                transaction = transaction_id(message.payload)
                if transaction is None:
                    continue
                log.oldest = min(log.oldest, message.milliseconds)
                if message.offset < begin or log.since == -math.inf:
                    log.since = message.milliseconds
                is_end = message.payload.status == "END"
                if message.offset < begin:
                    if is_end:
                        log.order[transaction] = BEFORE
                elif not is_end:
                    begins[transaction] = message.milliseconds
                else:
                    end = parse_end(message, begins.get(transaction))
                    log.order[transaction] = len(log.ends)
                    log.ends.append(end)
                    count += sum(self._of_topics(end).values())
                if count >= rows or len(log.ends) >= MAX_ENDS:
                    break
        log.mark_expired(first)
        return log

    def _read_older_ends(self, log: TransactionLog, first: int) -> bool:
        """Read older ENDs if a change may belong to one; return whether there were any to read.

        A partition that is read from its first offset has much older changes than the others.
        """
        if log.low <= first or not log.is_unsure:
            return False
        count = CHUNK
        while log.low > first and log.is_unsure:
            high, log.low = log.low, max(first, log.low - count)
            with closing(self._read_changes(self.topic, 0, log.low, high)) as messages:
                for message in messages:
                    if (transaction := transaction_id(message.payload)) is None:
                        continue
                    log.oldest = min(log.oldest, message.milliseconds)
                    if message.payload.status == "END":
                        log.order.setdefault(transaction, BEFORE)
            count *= 2
        log.mark_expired(first)
        log.unsure = math.inf
        return True

    def _read_parts(
        self,
        begin: Mapping[str, int],
        reach: Mapping[str, int],
        limit: Mapping[str, int],
        log: TransactionLog,
    ) -> ReadParts:
        """Read the order of transactions in each partition, and count their changes."""
        read = ReadParts()
        self.kept.begin()
        for partition, high in reach.items():
            topic, number = self.place(partition)
            part = Part(high, high == limit[partition])
            tail = _Tail()
            low = begin[partition]
            with closing(self._read_runs(topic, number, low, high)) as runs:
                for run in runs:
                    self._learn(topic, run.payload.source)
                    if (transaction := run.transaction) is not None and transaction in log.order:
                        order = log.order[transaction]
                        tail.pass_by(order)
                        part.add(order, run.offset)
                        read.counts[topic, order] += len(run.messages)
                    elif self._add_singly(run, topic, part, log, read, tail):
                        break
            log.unsure = min(log.unsure, tail.unsure)
            read.parts[partition] = part
        return read

    def _add_singly(
        self,
        run: ChangeRun,
        topic: str,
        part: Part,
        log: TransactionLog,
        read: ReadParts,
        tail: _Tail,
    ) -> bool:
        """Add changes without an END, by the time of each; return whether enough are read."""
        for change in run.changes():
            order = log.order_of(change)
            tail.add(order, change)
            part.add(order, change.offset)
            read.counts[topic, order] += 1
            if (unnamed := log.unnamed_order(change)) is not None:
                read.unnamed[topic, unnamed] += 1
            if tail.length == CHUNK:
                return True
        return False

    def _check_named(self, ends: Sequence[TransactionEnd], read: ReadParts) -> None:
        """Check that changes have a `transaction`; those without would look like a snapshot's."""
        named = {topic for topic, order in read.counts if order != BEFORE}
        for (topic, order), count in read.unnamed.items():
            if topic not in named and count >= self._of_topics(ends[order]).get(topic, math.inf):
                raise StreamError(
                    f"Changes in {topic} do not name their transaction, but {self.topic} counts "
                    "them. With `provide.transaction.metadata=true` Debezium adds `transaction` to "
                    "each message, but a transform such as ExtractNewRecordState removes it. "
                    "Remove the transform, or read the topics without `transaction_topic`."
                )

    def _last_whole(self, ends: Sequence[TransactionEnd], read: ReadParts) -> int:
        """Return the last transaction before the first incomplete one; `BEFORE` if none."""
        of_topic: dict[str, list[Part]] = defaultdict(list)
        for partition, part in read.parts.items():
            of_topic[self.place(partition)[0]].append(part)
        for order, end in enumerate(ends):
            for topic, count in self._of_topics(end).items():
                if read.counts.get((topic, order), 0) >= count:
                    continue
                # A partition with a later transaction has all changes of this one.
                open_parts = [part for part in of_topic[topic] if part.last <= order]
                if open_parts and (end.is_certain or not all(part.is_all for part in open_parts)):
                    return order - 1
        return len(ends) - 1

    def _of_topics(self, end: TransactionEnd) -> dict[str, int]:
        """Count the changes of a transaction by topic, which may have several tables."""
        changes: dict[str, int] = {}
        for name, count in end.counts.items():
            if name not in self._topics:
                self._topics[name] = self._topic_of(name)
            if (topic := self._topics[name]) is not None:
                changes[topic] = changes.get(topic, 0) + count
        return changes

    def _topic_of(self, collection: str) -> str | None:
        """Return the topic with a table's changes, by their `source` blocks or by its name."""
        for topic in self.topics:
            if collection in self._tables[topic]:
                return topic
        parts = collection.split(".")
        # Some connectors omit the database in the topic's name.
        names = {collection, ".".join(parts[1:])} if len(parts) == 3 else {collection}
        for topic in self.topics:
            # A topic with changes of another table may also have those of its own one.
            candidates = {collection} if self._tables[topic] else names
            if any(f".{topic}".endswith(f".{name}") for name in candidates):
                return topic
        return None

    def _sample_tables(self, limit: Mapping[str, int], first: Mapping[str, int]) -> None:
        """Read the tables of each topic from its last messages, as soon as it has some."""
        for partition, high in limit.items():
            topic, number = self.place(partition)
            is_known = topic == self.topic or self._tables[topic] or partition in self._sampled
            if is_known or high == first[partition]:
                continue
            self._sampled.add(partition)
            low = max(first[partition], high - CHUNK)
            with closing(self._read_changes(topic, number, low, high)) as changes:
                for change in changes:
                    self._learn(topic, change.payload.source)

    def _learn(self, topic: str, source: Origin | None) -> None:
        if source is None:
            return
        connector, database, schema, table = source.name, source.db, source.schema, source.table
        origin = topic, connector, database, schema, table
        if origin in self._origins:
            return
        self._origins.add(origin)
        names = [name for name in (database, schema, table) if name]
        # Connectors name their collections with or without the database.
        self._tables[topic] |= {".".join(names), ".".join(names[1:])} if table else set()
        self._topics.clear()
        if self._connector is not None and connector not in (None, self._connector):
            raise StreamError(
                f"The topics {', '.join(self.topics)} have changes of several connectors, "
                f"{self._connector} and {connector}, and {self.topic} reports the transactions of "
                "one. Make one source for the topics of each connector."
            )
        self._connector = self._connector or connector
