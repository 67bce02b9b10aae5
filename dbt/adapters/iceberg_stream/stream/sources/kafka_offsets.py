"""Which range of offsets comes next, and whether Kafka still has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka_client import KafkaClient
from dbt.adapters.iceberg_stream.stream.sources.kafka_frontiers import shares
from dbt.adapters.iceberg_stream.stream.sources.kafka_topics import FollowedTopics
from dbt.adapters.iceberg_stream.stream.sources.kafka_transaction_topic import TransactionTopic
from dbt.adapters.iceberg_stream.stream.sources.kafka_transactions import Transactions
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

# For each partition, by its name in a frontier.
Offsets = Mapping[str, int]


@dataclass
class OffsetPlanner:
    """Plans ranges of offsets; frontiers here have no ids of topics.

    Attributes:
        topics: that are followed.
        client: which is asked for offsets.
        starting: `earliest` or `latest`, for a stream without progress.
        transactions: whether a batch of a single topic holds whole transactions.
        message_format: `debezium` or `maxwell`, where there are transactions.
    """

    topics: FollowedTopics
    client: KafkaClient
    starting: str
    transactions: bool
    message_format: str

    # Both have a consumer of their own: threads that ask for offsets would take its messages.

    @cached_property
    def single_topic(self) -> Transactions:
        """Ends of transactions in the only topic."""
        return Transactions(self.client.connect(), str(self.topics.topic), self.message_format)

    @cached_property
    def transaction_topic(self) -> TransactionTopic:
        """Ends of transactions in the topic in which Debezium reports them."""
        return TransactionTopic(
            self.client.connect(much=True),
            str(self.topics.transaction_topic),
            self.topics.followed,
            self.topics.place,
        )

    def bounds(self, lower: Frontier | None) -> tuple[dict[str, int], dict[str, int]]:
        """The first offset, and the one behind the last, of each partition that is followed.

        Raises:
            StreamError: the frontier is of other topics, or Kafka does not answer.
        """
        topics = list(self.topics.followed)
        if self.topics.transaction_topic is not None:
            # A transaction's changes are sent before its end. A stream that begins with the latest
            # asks for ends after changes, so that it knows in the midst of which it begins.
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
                    f"`transaction_topic: {topic}` has {len(bounds)} partitions, and must have "
                    "one: the order of transactions between several is not known."
                )
            for number, (low, high) in bounds.items():
                partition = self.topics.partition(topic, number)
                first[partition], last[partition] = low, high
        return first, last

    def _check_same_topics(self, lower: Frontier | None, first: Offsets) -> None:
        changes = [p for p in first if not self.topics.is_transactions(p)]
        followed = self.topics.followed_offsets(lower or {})
        if lower and not any(p in followed for p in changes):  # one topic became several, or back
            raise StreamError(
                f"The stream's progress is that of other topics, {', '.join(lower)}, and it reads "
                f"{', '.join(changes)} now. Rebuild the table with --full-refresh."
            )

    def begin(self, lower: Frontier | None, first: Offsets, last: Offsets) -> dict[str, int]:
        """Where to read on; partitions that are new begin at their first offset.

        Raises:
            StreamError: Kafka no longer has what comes next.
        """
        if lower is None:
            return dict(last if self.starting == "latest" else first)
        followed = self.topics.followed_offsets(lower)
        begin = {**first, **{p: at for p, at in followed.items() if p in first}}
        for partition, offset in begin.items():
            if self.topics.is_transactions(partition):
                # Ends that are gone cost less than changes. A stream that was without them takes
                # those that are still to come.
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
            f"{topic}: they are older than its retention, and lost to this stream. Rebuild the "
            "table with --full-refresh if the topic holds all rows, else load them from where they "
            "come from."
        )

    def begin_of_batch(self, lower: Frontier | None, upper: Frontier) -> dict[str, int]:
        """Where a batch begins in the topics whose messages are read.

        Raises:
            StreamError: Kafka no longer has it.
        """
        first, last = self._bounds_of(self.topics.read)
        begin = self.begin(lower, first, last)
        # A stream that begins with the latest was planned when that was an earlier offset.
        read = [p for p in upper if self.topics.is_read(p)]
        return {p: min(begin.get(p, 0), int(upper[p])) for p in read}

    def waiting(self, lower: Frontier | None) -> int:
        """Messages that are not read yet, those of the transaction topic left out."""
        first, last = self.bounds(lower)
        begin = self.begin(lower, first, last)
        return sum(last[p] - begin[p] for p in last if not self.topics.is_transactions(p))

    def plan(
        self, lower: Frontier | None, rows: int, until: Frontier | None, whole: bool
    ) -> Frontier | None:
        """The end of a batch of about so many rows.

        Args:
            lower: where the batch begins; None for a stream without progress.
            rows: that it should have.
            until: that it must not go beyond; None for what Kafka has now.
            whole: whether it goes up to `until`, in the midst of a transaction if need be.

        Returns:
            The end; None if there is nothing to read.
        """
        first, last = self.bounds(lower)
        begin = self.begin(lower, first, last)
        limit = last
        if until is not None:
            # Partitions that are newer than `until` begin at their first offset, later.
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
            upper = shares(begin, limit, rows)
            if self.transactions and upper != begin:
                # What comes after the limit tells whether a transaction ends before it.
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
        """Up to what Kafka has now the transaction topic plays no part; behind that it does."""
        own = self.topics.transaction_partition
        begin = {p: offset for p, offset in begin.items() if p != own}
        limit = {p: max(offset, begin.get(p, 0)) for p, offset in limit.items()}
        upper = shares(begin, limit, rows)
        if all(upper[p] == limit[p] for p in begin) and (until is None or own in until):
            return self.topics.with_unfollowed(lower, {**upper, own: limit[own]})
        return self.topics.with_unfollowed(lower, upper) if upper != begin else None

    def _whole_transactions(self, begin: Offsets, upper: Offsets, last: Offsets) -> dict[str, int]:
        if len(upper) > 1:
            raise StreamError(
                f"`transactions: true` needs a topic of one partition, and {self.topics.topic} has "
                f"{len(upper)}: the order of transactions between them is not known. With "
                "Debezium, set `transaction_topic`."
            )
        return {p: self.single_topic.last_end(begin[p], upper[p], last[p]) for p in upper}
