"""Plan the range of offsets of the next batch, and check that Kafka still has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.client import (
    LONG_READ_OPTIONS,
    KafkaClient,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.frontiers import limit_rows
from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import KeptMessages
from dbt.adapters.iceberg_stream.stream.sources.kafka.topics import FollowedTopics
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.ends import Transactions
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payloads import PayloadReader
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.topic import TransactionTopic
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

# Offsets by partition, as a frontier names it.
Offsets = Mapping[str, int]


@dataclass
class OffsetPlanner:
    """Plans ranges of offsets; its frontiers have no ids of topics.

    Attributes:
        topics: the topics that the stream follows.
        client: reads offsets.
        starting: `earliest` or `latest`, for a stream without progress.
        transactions: whether a batch of a single topic has only whole transactions.
        message_format: `debezium` or `maxwell`, if the messages have transactions.
        payloads: reads what the messages say of their transactions.
        kept: takes messages that were read, for their batch.
    """

    topics: FollowedTopics
    client: KafkaClient
    starting: str
    transactions: bool
    message_format: str
    payloads: PayloadReader
    kept: KeptMessages

    # Each of the two has its own consumer, because threads that read offsets share the client's.

    @cached_property
    def single_topic(self) -> Transactions:
        """The transactions of the only topic."""
        consumer, topic = self.client.connect(), str(self.topics.topic)
        return Transactions(consumer, topic, self.message_format, self.payloads)

    @cached_property
    def transaction_topic(self) -> TransactionTopic:
        """The transactions that Debezium reports to the transaction topic."""
        consumer = self.client.connect(LONG_READ_OPTIONS)
        for topic in (*self.topics.followed, str(self.topics.transaction_topic)):
            self.client.request_leaders(consumer, topic)
        return TransactionTopic(
            consumer,
            str(self.topics.transaction_topic),
            self.topics.followed,
            self.topics.place,
            self.payloads,
            self.kept,
        )

    def bounds(self, lower: Frontier | None) -> tuple[dict[str, int], dict[str, int]]:
        """Return the first offsets and the end offsets of the followed partitions.

        Args:
            lower: the stream's frontier.

        Raises:
            StreamError: the frontier has other topics, or Kafka does not answer.
        """
        topics = list(self.topics.followed)
        if self.topics.transaction_topic is not None:
            # Changes are sent before the END of their transaction. A stream that starts at the
            # latest offsets reads those of the ENDs last, and so knows which transaction it
            # starts within.
            is_latest = lower is None and self.starting == "latest"
            last = is_latest or self.topics.lacks_transactions(lower)
            topics.insert(len(topics) if last else 0, self.topics.transaction_topic)
        first, last_offsets = self._bounds_of(topics)
        self._check_same_topics(lower, first)
        return first, last_offsets

    def _bounds_of(self, topics: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
        first, last = {}, {}
        for topic in topics:
            bounds = self.client.bounds(topic)
            if topic == self.topics.transaction_topic and len(bounds) > 1:
                raise StreamError(
                    f"`transaction_topic: {topic}` must have one partition, got {len(bounds)}: the "
                    "order of transactions in several partitions is unknown."
                )
            for number, (low, high) in bounds.items():
                partition = self.topics.partition(topic, number)
                first[partition], last[partition] = low, high
        return first, last

    def _check_same_topics(self, lower: Frontier | None, first: Offsets) -> None:
        changes = [p for p in first if not self.topics.is_transactions(p)]
        followed = self.topics.followed_offsets(lower or {})
        # A frontier names the partitions of one topic otherwise than those of several.
        if lower and not any(p in followed for p in changes):
            raise StreamError(
                f"The stream's progress has the partitions {', '.join(lower)}, but the source has "
                f"{', '.join(changes)}. Rebuild the table with --full-refresh."
            )

    def begin(self, lower: Frontier | None, first: Offsets, last: Offsets) -> dict[str, int]:
        """Return the offsets at which the next batch starts.

        New partitions of a topic start at 0: messages that have expired were not read. A topic that
        the stream has not followed before starts at the messages that it has.

        Args:
            lower: the stream's frontier.
            first: the first offsets of Kafka.
            last: the end offsets of Kafka.

        Raises:
            StreamError: Kafka no longer has the next messages.
        """
        if lower is None:
            return dict(last if self.starting == "latest" else first)
        followed = self.topics.followed_offsets(lower)
        known = {self.topics.place(partition)[0] for partition in followed}
        begin = {p: 0 if self.topics.place(p)[0] in known else at for p, at in first.items()}
        begin |= {p: at for p, at in followed.items() if p in first}
        for partition, offset in begin.items():
            if self.topics.is_transactions(partition):
                # Expired ENDs lose no changes. A stream that just got a transaction topic reads
                # only new ENDs.
                begin[partition] = max(offset, first[partition])
                if partition not in lower:
                    begin[partition] = last[partition]
            elif offset < first[partition]:
                raise self._expired(partition, offset, first[partition])
            if offset > last[partition]:
                topic, number = self.topics.place(partition)
                raise StreamError(
                    f"Partition {number} of {topic} ends at {last[partition]}, before the "
                    f"stream's progress {offset}: the topic was created again. Use --full-refresh."
                )
        return begin

    def _expired(self, partition: str, offset: int, first: int) -> StreamError:
        topic, number = self.topics.place(partition)
        return StreamError(
            f"Kafka no longer has the offsets {offset} to {first - 1} of partition {number} of "
            f"{topic}: they are older than its retention, so this stream cannot read them. Rebuild "
            "the table with --full-refresh if the topic has all rows; otherwise load them from the "
            "system that wrote them."
        )

    def begin_of_batch(self, lower: Frontier | None, upper: Frontier) -> dict[str, int]:
        """Return the offsets at which a planned batch starts, of the topics that it reads.

        Args:
            lower: the frontier that the batch starts at.
            upper: the frontier that it ends at.

        Raises:
            StreamError: Kafka no longer has the messages.
        """
        first, last = self._bounds_of(self.topics.read)
        begin = self.begin(lower, first, last)
        # For a stream that starts at the latest offsets, these may be later than in the plan.
        read = [p for p in upper if self.topics.is_read(p)]
        return {p: min(begin.get(p, 0), int(upper[p])) for p in read}

    def count_unread(self, lower: Frontier | None) -> int:
        """Count the messages after a frontier, without those of the transaction topic.

        Args:
            lower: the frontier.
        """
        first, last = self.bounds(lower)
        begin = self.begin(lower, first, last)
        return sum(last[p] - begin[p] for p in last if not self.topics.is_transactions(p))

    def plan(
        self, lower: Frontier | None, rows: int, until: Frontier | None, whole: bool
    ) -> Frontier | None:
        """Plan the end of a batch of about `rows` rows.

        Args:
            lower: the frontier that the batch starts at; None for a stream without progress.
            rows: the wanted number of rows.
            until: the frontier that it must not pass; None for the end of the topics.
            whole: whether the batches end exactly at `until`, even within a transaction.

        Returns:
            The end; None if there is nothing to read.
        """
        first, last = self.bounds(lower)
        begin = self.begin(lower, first, last)
        limit = last
        if until is not None:
            # Partitions that are newer than `until` are read in a later batch.
            ends = self.topics.followed_offsets(until)
            limit = {p: min(offset, ends.get(p, first[p])) for p, offset in last.items()}
        if lower is None:
            begin = {p: min(offset, limit[p]) for p, offset in begin.items()}
        elif self.topics.lacks_transactions(lower):
            return self._plan_without_transactions(lower, begin, limit, until, rows)
        limit = {p: max(offset, begin[p]) for p, offset in limit.items()}
        upper = self._end(begin, limit, first, last, rows, whole)
        if upper == begin and lower is not None:
            return None
        return self.topics.with_unfollowed(lower, upper)

    def _end(
        self, begin: Offsets, limit: Offsets, first: Offsets, last: Offsets, rows: int, whole: bool
    ) -> Offsets:
        upper: Offsets
        if self.topics.transaction_topic is not None:
            upper = self.transaction_topic.last_whole(begin, limit, first, rows, whole)
        else:
            upper = limit_rows(begin, limit, rows)
            if self.transactions and upper != begin:
                # The messages after the limit show whether a transaction ends before it.
                ended = self._whole_transactions(begin, upper, last)
                upper = ended if all(ended[p] <= limit[p] for p in ended) else begin
        return limit if whole and upper == begin else upper

    def _plan_without_transactions(
        self,
        lower: Frontier,
        begin: Offsets,
        limit: Offsets,
        until: Frontier | None,
        rows: int,
    ) -> Frontier | None:
        """Plan without the transaction topic up to its current end, and add it there."""
        own = self.topics.transaction_partition
        begin = {p: offset for p, offset in begin.items() if p != own}
        limit = {p: max(offset, begin.get(p, 0)) for p, offset in limit.items()}
        upper = limit_rows(begin, limit, rows)
        if all(upper[p] == limit[p] for p in begin) and (until is None or own in until):
            return self.topics.with_unfollowed(lower, {**upper, own: limit[own]})
        return self.topics.with_unfollowed(lower, upper) if upper != begin else None

    def _whole_transactions(self, begin: Offsets, upper: Offsets, last: Offsets) -> dict[str, int]:
        if len(upper) > 1:
            raise StreamError(
                f"`transactions: true` needs a topic of one partition, and {self.topics.topic} has "
                f"{len(upper)}: the order of transactions in several is unknown. With Debezium, "
                "set `transaction_topic`."
            )
        return {p: self.single_topic.last_end(begin[p], upper[p], last[p]) for p in upper}
