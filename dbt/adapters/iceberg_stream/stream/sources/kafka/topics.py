"""Name the partitions of a stream's topics in its frontiers.

A frontier of a single topic has the numbers of its partitions, as text. If there are several
topics, and for the transaction topic, it has topic and number: `shop.public.orders/0`. Partitions
of topics that the source no longer lists stay in the frontier under another name, which keeps
their progress in case they are listed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.ends import ENDS
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

# Prefix of partitions whose topics the source does not list now.
UNFOLLOWED = "not read: "


@dataclass(frozen=True)
class FollowedTopics:
    """The topics of a source.

    Attributes:
        topic: the topic to read; None to read all `topics`.
        topics: all topics of the source, if there are several.
        transaction_topic: the topic to which Debezium reports transactions; None without one.
    """

    topic: str | None
    topics: tuple[str, ...] = ()
    transaction_topic: str | None = None

    @property
    def followed(self) -> tuple[str, ...]:
        """The topics of changes whose offsets are in frontiers."""
        return self.topics or (str(self.topic),)

    @property
    def read(self) -> tuple[str, ...]:
        """The topics whose messages become rows."""
        return self.followed if self.topic is None else (self.topic,)

    @property
    def transaction_partition(self) -> str:
        """The only partition of the transaction topic."""
        return f"{self.transaction_topic}/0"

    def partition(self, topic: str, number: int) -> str:
        """Return the name of a partition in a frontier.

        Args:
            topic: the partition's topic.
            number: the partition's number.
        """
        alone = not self.topics and topic == self.topic
        return str(number) if alone else f"{topic}/{number}"

    def place(self, partition: str) -> tuple[str, int]:
        """Return the topic and the number of a partition.

        Args:
            partition: its name in a frontier.
        """
        topic, _, number = partition.rpartition("/")
        return topic or str(self.topic), int(number)

    def is_followed(self, partition: str) -> bool:
        return self.place(partition)[0] in (*self.followed, self.transaction_topic)

    def is_read(self, partition: str) -> bool:
        return not partition.startswith(UNFOLLOWED) and self.place(partition)[0] in self.read

    def is_transactions(self, partition: str) -> bool:
        return self.place(partition)[0] == self.transaction_topic

    def followed_offsets(self, frontier: Frontier) -> dict[str, int]:
        """Return a frontier's offsets of partitions that the source follows now.

        Args:
            frontier: the frontier.
        """
        names = {name: name.removeprefix(UNFOLLOWED) for name in frontier}
        # An old offset of the transaction topic is useless: later changes were read without it.
        return {
            partition: int(frontier[name])
            for name, partition in names.items()
            if self.is_followed(partition)
            and (name == partition or partition != self.transaction_partition)
        }

    def with_unfollowed(self, lower: Frontier | None, upper: Frontier) -> Frontier:
        """Return the upper frontier with the lower one's partitions that are not followed now.

        Args:
            lower: the frontier before the batch.
            upper: the frontier after it.
        """
        names = {name.removeprefix(UNFOLLOWED): at for name, at in (lower or {}).items()}
        others = {UNFOLLOWED + p: at for p, at in names.items() if not self.is_followed(p)}
        return {**others, **upper}

    def lacks_transactions(self, lower: Frontier | None) -> bool:
        """Return whether the stream has read its topics without the transaction topic so far.

        Args:
            lower: the stream's frontier.
        """
        if lower is None or self.transaction_topic is None:
            return False
        return self.transaction_partition not in lower

    def check(self, message_format: str, transactions: bool) -> None:
        """Check that the options of the topics do not contradict each other.

        Args:
            message_format: the source's `format`.
            transactions: its `transactions`.

        Raises:
            StreamError: an option is wrong; names it.
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
                "in several is unknown. Set `transaction_topic` to the topic to which Debezium "
                "reports transactions."
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
                "are read. Set it to the topic to which Debezium reports transactions, "
                "`<topic.prefix>.transaction`."
            )
