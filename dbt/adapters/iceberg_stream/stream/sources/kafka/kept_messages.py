"""Keep messages in memory that the planning of a batch has read, until the batch reads them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from dbt.adapters.iceberg_stream.stream.sources.kafka.message_batch import (
    BATCH_BYTES,
    MessageBatch,
)

# Bytes of all messages that are kept.
MOST_BYTES = 64 * 1024 * 1024
# Batches that may be written while the next one is planned.
PLANS = 2

# Topic and number of a partition.
Place = tuple[str, int]


@dataclass
class KeptRange:
    """Consecutive messages of a partition.

    Attributes:
        begin: the offset that they begin at.
        end: the offset after the last one. What follows may be a gap, or not committed yet: only
            Kafka knows.
        batches: the messages, in order.
    """

    begin: int
    end: int
    batches: list[MessageBatch] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)


class KeptMessages:
    """Messages of the last planned batches; one thread plans, and others read.

    Args:
        most_bytes: of messages, at most; batches read what is beyond from Kafka.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._free = most_bytes
        self._planned: deque[dict[Place, KeptRange]] = deque()
        self._planning: dict[Place, KeptRange] = {}
        # Partitions whose messages no batch takes, because Spark reads them.
        self._unwanted: set[Place] = set()
        self._lock = Lock()

    def begin(self) -> None:
        """Begin to read the messages of a batch, or begin again."""
        with self._lock:
            self._drop(self._planning)
            self._planning = {}

    def start(self, place: Place, offset: int) -> bool:
        """Begin to read a partition; return whether its messages can be kept.

        Args:
            place: the partition.
            offset: the first offset.
        """
        self._planning[place] = KeptRange(offset, offset)
        return place not in self._unwanted and self._free > 0

    def add(self, place: Place, values: Sequence[bytes | None], offsets: Sequence[int]) -> bool:
        """Keep the next messages of a partition; return whether there is memory for more.

        Args:
            place: the partition.
            values: the messages.
            offsets: their offsets.
        """
        kept = self._planning[place]
        if not kept.batches or kept.batches[-1].nbytes >= BATCH_BYTES:
            kept.batches.append(MessageBatch(place[0]))
        batch = kept.batches[-1]
        before = batch.nbytes
        batch.add(place[1], values, np.array(offsets, np.int64))
        kept.end = offsets[-1] + 1
        with self._lock:
            self._free -= batch.nbytes - before
            return self._free > 0

    def finish(self) -> None:
        """Let batches read the messages that were planned last."""
        with self._lock:
            self._planned.append(self._planning)
            self._planning = {}
            while len(self._planned) > PLANS:
                untaken = self._planned.popleft()
                self._unwanted |= untaken.keys()
                self._drop(untaken)

    def take(self, place: Place, begin: int, end: int) -> tuple[Iterator[MessageBatch], int]:
        """Remove and return the messages of a range, as far as they are kept.

        Args:
            place: the partition.
            begin: the first offset.
            end: the offset after the last one.

        Returns:
            The messages, and the offset from which on the others are to be read from Kafka.
        """
        with self._lock:
            self._unwanted.discard(place)
            for plan in self._planned:
                if place in plan and plan[place].begin == begin:
                    kept = plan.pop(place)
                    return self._batches(kept, end), min(kept.end, end)
        return iter(()), begin

    def _batches(self, kept: KeptRange, end: int) -> Iterator[MessageBatch]:
        try:
            while kept.batches:
                batch = kept.batches.pop(0)
                self._release(batch.nbytes)
                if int(batch.offsets[-1][-1]) >= end:
                    yield _before(batch, end)
                    return
                yield batch
        finally:
            self._release(kept.nbytes)

    def _release(self, nbytes: int) -> None:
        with self._lock:
            self._free += nbytes

    def _drop(self, plan: dict[Place, KeptRange]) -> None:
        self._free += sum(kept.nbytes for kept in plan.values())


def _before(batch: MessageBatch, end: int) -> MessageBatch:
    """Return the messages of a partition with lower offsets than `end`."""
    offsets = batch.all_offsets()
    count = int(np.searchsorted(offsets, end))
    begin = MessageBatch(batch.topic)
    begin.add(batch.partitions[0][0], batch.values[:count], offsets[:count])
    return begin
