"""Order changes by the messages of a transaction topic."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.ends import (
    Change,
    transaction_id,
)

# Older changes are visible in all partitions, or a transform or Kafka's compaction dropped them.
SETTLED_SECONDS = 600.0
# Clocks of brokers differ, and those of the machines that a connector moves to.
SKEW_SECONDS = 1.0
# Orders of changes that belong to the batch in any case, and of those after all known ENDs.
BEFORE, AFTER = -1, math.inf


class TransactionEnd(NamedTuple):
    """The end of a transaction.

    Attributes:
        after: the offset after the END in the transaction topic.
        counts: numbers of changes by data collection.
        is_certain: whether the stream will find all these changes after its frontier.
        began: time of the BEGIN in milliseconds; infinite if the BEGIN is unknown.
        ended: time of the END in milliseconds.
    """

    after: int
    counts: Mapping[str, int]
    is_certain: bool
    began: float
    ended: int


@dataclass
class TransactionLog:
    """The ENDs that a batch may include, in their order. Times are in milliseconds.

    Attributes:
        low: the first offset of the transaction topic that was read.
        ends: the ENDs.
        order: orders of transactions by id; `BEFORE` for those that ended before the batch.
        since: time of the last message before the batch.
        oldest: time of the oldest message that was read.
        expired: changes before this time have no END in Kafka any more.
        unsure: time of the oldest change without a known END, which may be before `low`.
    """

    low: int
    ends: list[TransactionEnd] = field(default_factory=list)
    order: dict[str, int] = field(default_factory=dict)
    since: float = -math.inf
    oldest: float = math.inf
    expired: float = -math.inf
    unsure: float = math.inf

    def order_of(self, change: Change) -> float:
        """Return the order of the change's transaction; `BEFORE` if it has none.

        Args:
            change: the change.
        """
        transaction = transaction_id(change.payload.transaction)
        if transaction is None:
            return BEFORE
        if transaction in self.order:
            return self.order[transaction]
        # Its END expired, or came before the stream started.
        is_old = change.milliseconds < max(self.since - SETTLED_SECONDS * 1000, self.expired)
        return BEFORE if is_old else AFTER

    def unnamed_order(self, change: Change) -> int | None:
        """Return the order of the transaction during which a change without an id was sent.

        Args:
            change: the change.

        Returns:
            The order; None if the change has an id or needs none, as those of snapshots.
        """
        payload = change.payload
        if transaction_id(payload.transaction) is not None or payload.op in ("r", "m"):
            return None
        order = bisect_left(self.ends, change.milliseconds, key=lambda end: end.ended)
        is_during = order < len(self.ends) and self.ends[order].began <= change.milliseconds
        return order if is_during else None

    @property
    def is_unsure(self) -> bool:
        """Return whether a change without a known END may belong to an older transaction."""
        return self.unsure <= self.oldest + SKEW_SECONDS * 1000

    def mark_expired(self, first: int) -> None:
        """Set `expired` once the transaction topic is read from its first offset.

        Args:
            first: the first offset of the topic.
        """
        if self.low == first and self.oldest < math.inf:
            self.expired = self.oldest - (0 if first else SKEW_SECONDS * 1000)


@dataclass
class Part:
    """The messages of a partition from the batch's start up to `reach`.

    Attributes:
        reach: the end offset.
        is_all: whether the partition has no more messages now.
        first: the orders of its changes, each with the offset of the first change.
    """

    reach: int
    is_all: bool
    first: list[tuple[float, int]] = field(default_factory=list)

    def add(self, order: float, offset: int) -> None:
        """Add a change.

        Args:
            order: the order of its transaction.
            offset: its offset.
        """
        if self.first and self.first[-1][0] == AFTER and BEFORE < order < AFTER:
            # The changes before this one are older, although their END is unknown.
            self.first.pop()
        if order > self.last:
            self.first.append((order, offset))

    @property
    def last(self) -> float:
        """The order of the last transaction."""
        return self.first[-1][0] if self.first else BEFORE

    def end_of(self, order: int) -> int:
        """Return the offset of the first later transaction.

        Args:
            order: the order of a transaction.
        """
        return next((offset for later, offset in self.first if later > order), self.reach)


@dataclass
class ReadParts:
    """The changes of all partitions.

    Attributes:
        parts: parts by partition.
        counts: numbers of changes by topic and order.
        unnamed: numbers of changes without the id of a transaction, by topic and the order of the
            transaction during which they were sent.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    counts: dict[tuple[str, float], int] = field(default_factory=lambda: defaultdict(int))
    unnamed: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))


def parse_end(message: Change, began: int | None) -> TransactionEnd:
    """Parse an END message.

    Args:
        message: the message.
        began: time of the BEGIN in milliseconds; None if the stream started after it.
    """
    counts: dict[str, int] = {}
    for item in message.payload.data_collections or ():
        name = str(item.get("data_collection"))
        counts[name] = counts.get(name, 0) + int(item.get("event_count") or 0)
    is_old = message.milliseconds < (time.time() - SETTLED_SECONDS) * 1000
    is_certain = began is not None and not is_old
    since = math.inf if began is None else began
    return TransactionEnd(message.offset + 1, counts, is_certain, since, message.milliseconds)
