"""The topics that a stream follows, and the names that their partitions have in a frontier.

Of a single topic a frontier has the number of a partition, as text. Where there are several topics,
and for the transaction topic, it has topic and number: `shop.public.orders/0`. Partitions of topics
that a source no longer lists stay in the frontier under another name, so that their progress is not
lost when they are listed again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka_transactions import ENDS
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

# Stands before a partition whose topic is not followed at present.
UNFOLLOWED = "not read: "


@dataclass(frozen=True)
class FollowedTopics:
    """Which topics a source has.

    Attributes:
        topic: whose messages are read; None for those of all topics.
        topics: of the source, where there are several.
        transaction_topic: where Debezium reports transactions; None if it is not used.
    """

    topic: str | None
    topics: tuple[str, ...] = ()
    transaction_topic: str | None = None

    @property
    def followed(self) -> tuple[str, ...]:
        """Topics of changes whose offsets a frontier has."""
        return self.topics or (str(self.topic),)

    @property
    def read(self) -> tuple[str, ...]:
        """Topics whose messages become rows."""
        return self.followed if self.topic is None else (self.topic,)

    @property
    def transaction_partition(self) -> str:
        """The only partition of the transaction topic."""
        return f"{self.transaction_topic}/0"

    def partition(self, topic: str, number: int) -> str:
        """The name of a partition in a frontier."""
        alone = not self.topics and topic == self.topic
        return str(number) if alone else f"{topic}/{number}"

    def place(self, partition: str) -> tuple[str, int]:
        """The topic and the number of a partition that a frontier names."""
        topic, _, number = partition.rpartition("/")
        return topic or str(self.topic), int(number)

    def is_followed(self, partition: str) -> bool:
        return self.place(partition)[0] in (*self.followed, self.transaction_topic)

    def is_read(self, partition: str) -> bool:
        return not partition.startswith(UNFOLLOWED) and self.place(partition)[0] in self.read

    def is_transactions(self, partition: str) -> bool:
        return self.place(partition)[0] == self.transaction_topic

    def followed_offsets(self, frontier: Frontier) -> dict[str, int]:
        """Offsets of a frontier, of the partitions that are followed now."""
        names = {name: name.removeprefix(UNFOLLOWED) for name in frontier}
        # While the transaction topic was not followed, changes were read past its messages.
        return {
            partition: int(frontier[name])
            for name, partition in names.items()
            if self.is_followed(partition)
            and (name == partition or partition != self.transaction_partition)
        }

    def with_unfollowed(self, lower: Frontier | None, upper: Frontier) -> Frontier:
        """The upper frontier, with offsets of the lower one whose topics are not followed now."""
        names = {name.removeprefix(UNFOLLOWED): at for name, at in (lower or {}).items()}
        others = {UNFOLLOWED + p: at for p, at in names.items() if not self.is_followed(p)}
        return {**others, **upper}

    def lacks_transactions(self, lower: Frontier | None) -> bool:
        """Whether a stream has read its topics without the transaction topic until now."""
        if lower is None or self.transaction_topic is None:
            return False
        return self.transaction_partition not in lower

    def spark_offsets(self, offsets: Mapping[str, int], topics: Collection[str]) -> str:
        """Offsets of some topics, as Spark's Kafka source takes them."""
        by_topic: dict[str, dict[str, int]] = {}
        for partition, offset in offsets.items():
            topic, number = self.place(partition)
            if topic in topics:
                by_topic.setdefault(topic, {})[str(number)] = int(offset)
        return json.dumps(by_topic)

    def check(self, message_format: str, transactions: bool) -> None:
        """Check that the topics fit together.

        Args:
            message_format: the source's `format`.
            transactions: its `transactions`.

        Raises:
            StreamError: with the option that is wrong.
        """
        if self.transaction_topic is not None:
            self._check_transaction_topic(message_format)
        elif transactions and message_format not in ENDS:
            raise StreamError(
                f"`transactions: true` needs a `format` that has transactions: {', '.join(ENDS)}."
            )
        elif transactions and self.topics:
            raise StreamError(
                "`transactions: true` needs one topic of one partition: the order of transactions "
                "between several is not known. Name the topic in which Debezium reports "
                "transactions by `transaction_topic`."
            )
        if self.topics and self.topic is not None and self.topic not in self.topics:
            raise StreamError(
                f"{must_be_one_of('topic', self.topic, self.topics)}. These are the `topics` that "
                "the stream reads."
            )

    def _check_transaction_topic(self, message_format: str) -> None:
        if message_format == "maxwell":
            raise StreamError(
                "`transaction_topic` needs `format: debezium`. Maxwell marks the last change of a "
                "transaction: use `transactions: true` with a topic of one partition."
            )
        if self.transaction_topic in self.followed:
            raise StreamError(
                f"`transaction_topic: {self.transaction_topic}` is one of the topics whose changes "
                "are read. Name the topic in which Debezium reports transactions, "
                "`<topic.prefix>.transaction`."
            )
