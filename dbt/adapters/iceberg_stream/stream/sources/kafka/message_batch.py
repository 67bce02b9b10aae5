"""Messages of Kafka that are decoded together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.message_metadata import TYPES

if TYPE_CHECKING:
    from confluent_kafka import Message

# Bytes of messages that become one batch.
BATCH_BYTES = 2 * 1024 * 1024
NO_METADATA: Mapping[str, pa.Array] = {}
Offsets = npt.NDArray[np.int64]


@dataclass
class MessageBatch:
    """Messages of one topic, in the order of each partition.

    Attributes:
        topic: the topic.
        values: their values; None for a message without one.
        offsets: their offsets.
        partitions: numbers of partitions, each with how many messages of it follow.
        metadata: other fields, by their names.
        nbytes: bytes of all values and offsets.
    """

    topic: str
    values: list[bytes | None] = field(default_factory=list)
    offsets: list[Offsets] = field(default_factory=list)
    partitions: list[tuple[int, int]] = field(default_factory=list)
    metadata: dict[str, list[pa.Array]] = field(default_factory=dict)
    nbytes: int = 0

    def add(
        self,
        partition: int,
        values: Sequence[bytes | None],
        offsets: Offsets,
        metadata: Mapping[str, pa.Array] = NO_METADATA,
    ) -> None:
        """Add messages.

        Args:
            partition: the number of their partition.
            values: the values of the messages.
            offsets: their offsets.
            metadata: other fields of the messages, by name; the same ones each time.
        """
        self.values.extend(values)
        self.offsets.append(offsets)
        self.partitions.append((partition, len(values)))
        self.nbytes += len(b"".join(filter(None, values))) + offsets.nbytes
        for name, column in metadata.items():
            self.metadata.setdefault(name, []).append(column)
            self.nbytes += column.nbytes

    def places(self) -> npt.NDArray[np.int32]:
        """Return the number of each message's partition."""
        numbers, counts = zip(*self.partitions, strict=True)
        return np.repeat(np.array(numbers, np.int32), counts)

    def all_offsets(self) -> Offsets:
        """Return the offset of each message."""
        return self.offsets[0] if len(self.offsets) == 1 else np.concatenate(self.offsets)

    def column(self, name: str) -> pa.Array:
        """Return a field of each message.

        Args:
            name: one of `message_metadata.TYPES`.
        """
        count = len(self.values)
        if name == "topic":
            return pa.repeat(pa.scalar(self.topic), count)
        if name == "partition":
            return pa.array(self.places())
        if name == "offset":
            return pa.array(self.all_offsets())
        if name == "value":
            return pa.array(self.values, TYPES[name])
        return pa.concat_arrays(self.metadata[name])


def read_metadata(messages: Sequence[Message], fields: Sequence[str]) -> dict[str, pa.Array]:
    """Return fields of messages that batches do not have anyway.

    Args:
        messages: the messages.
        fields: the fields that are wanted.
    """
    return {name: READERS[name](messages) for name in fields if name in READERS}


def _timestamps(messages: Sequence[Message]) -> pa.Array:
    milliseconds = pa.array([message.timestamp()[1] for message in messages], pa.int64())
    return milliseconds.cast(pa.timestamp("ms", "UTC")).cast(TYPES["timestamp"])


def _headers(messages: Sequence[Message]) -> pa.Array:
    lists: Iterable[Any] = (message.headers() for message in messages)
    # A message without headers has null.
    pairs = [
        [{"key": key, "value": value} for key, value in headers] if headers else None
        for headers in lists
    ]
    return pa.array(pairs, TYPES["headers"])


READERS: dict[str, Callable[[Sequence[Message]], pa.Array]] = {
    "key": lambda messages: pa.array([message.key() for message in messages], TYPES["key"]),
    "timestamp": _timestamps,
    "headers": _headers,
}
