"""The messages of a transaction topic, and the order that they give to changes."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.stream.sources.kafka_transactions import Change, transaction_id

# What is older is visible to all, or has been left out: by a transform, or by Kafka's compaction.
SETTLED_SECONDS = 600.0
# Clocks of brokers differ, and a connector moves to another machine.
SKEW_SECONDS = 1.0
# Of a partition's order: what belongs to the batch in any case, and what comes after all ends.
BEFORE, AFTER = -1, math.inf


@dataclass(frozen=True)
class TransactionEnd:
    """The end of a transaction.

    Attributes:
        after: offset in the topic of transactions, behind the end.
        counts: of changes, by data collection.
        is_certain: whether the changes that the stream has not read yet are so many.
        began: when, in milliseconds, as its end; never, if its BEGIN is not known.
    """

    after: int
    counts: Mapping[str, int]
    is_certain: bool
    began: float
    ended: int


@dataclass
class TransactionLog:
    """Ends of transactions in their order, as far as a batch may go.

    Attributes:
        low: the offset of the transaction topic from which on they were read.
        order: of transactions, by id; `BEFORE` for those that ended before the batch.
        since: the time, in milliseconds, of the last message before the batch.
        oldest: of the messages from `low` on.
        gone: what is older has no end that Kafka still has.
        unsure: the oldest change whose end is not known, though it may have come before `low`.
    """

    low: int
    ends: list[TransactionEnd] = field(default_factory=list)
    order: dict[str, int] = field(default_factory=dict)
    since: float = -math.inf
    oldest: float = math.inf
    gone: float = -math.inf
    unsure: float = math.inf

    def order_of(self, change: Change) -> float:
        """Where the change's transaction stands; `BEFORE` if it has none."""
        transaction = transaction_id(change.payload.get("transaction"))
        if transaction is None:
            return BEFORE
        if transaction in self.order:
            return self.order[transaction]
        # Its end may be gone, or was before the stream began.
        is_old = change.milliseconds < max(self.since - SETTLED_SECONDS * 1000, self.gone)
        return BEFORE if is_old else AFTER

    def knows(self, change: Change) -> bool:
        """Whether the end of the change's transaction is known."""
        return transaction_id(change.payload.get("transaction")) in self.order

    def during(self, change: Change) -> int | None:
        """The transaction in whose time a change was sent that should name one, and does not."""
        if (
            not change.payload
            or change.payload.get("transaction")
            or change.payload.get("op") in ("r", "m")
        ):
            return None
        order = bisect_left(self.ends, change.milliseconds, key=lambda end: end.ended)
        is_amid = order < len(self.ends) and self.ends[order].began <= change.milliseconds
        return order if is_amid else None

    @property
    def is_unsure(self) -> bool:
        """Whether what is taken to come after all ends may have come before them."""
        return self.unsure <= self.oldest + SKEW_SECONDS * 1000

    def reach_back(self, first: int) -> None:
        """Once the topic is read from its first offset on, nothing can be found before it."""
        if self.low == first and self.oldest < math.inf:
            self.gone = self.oldest - (0 if first else SKEW_SECONDS * 1000)


@dataclass
class Part:
    """A part of a partition, `[begin, reach)`.

    Attributes:
        is_all: whether nothing more is visible behind it.
        first: orders that come up in it, each with the offset of the first change.
    """

    reach: int
    is_all: bool
    first: list[tuple[float, int]] = field(default_factory=list)

    def add(self, order: float, offset: int) -> None:
        if self.first and self.first[-1][0] == AFTER and BEFORE < order < AFTER:
            # What came up between is older, then; only its end is not known.
            self.first.pop()
        if order > self.last:
            self.first.append((order, offset))

    @property
    def last(self) -> float:
        return self.first[-1][0] if self.first else BEFORE

    def end_of(self, order: int) -> int:
        """The offset at which transactions begin that are later."""
        return next((offset for later, offset in self.first if later > order), self.reach)


@dataclass
class Read:
    """What partitions hold.

    Attributes:
        counts: of changes, by topic and order.
        unnamed: of changes that name no transaction, by topic and the one that they came amid.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    counts: Counter[tuple[str, float]] = field(default_factory=Counter)
    unnamed: Counter[tuple[str, int]] = field(default_factory=Counter)


def end_of(message: Change, began: int | None) -> TransactionEnd:
    """The end that an END message reports.

    Without its BEGIN it is of a transaction in whose midst the stream began.
    """
    counts = Counter[str]()
    for one in message.payload.get("data_collections") or ():
        counts[str(one.get("data_collection"))] += int(one.get("event_count") or 0)
    is_old = message.milliseconds < (time.time() - SETTLED_SECONDS) * 1000
    is_certain = began is not None and not is_old
    since = math.inf if began is None else began
    return TransactionEnd(message.offset + 1, counts, is_certain, since, message.milliseconds)
