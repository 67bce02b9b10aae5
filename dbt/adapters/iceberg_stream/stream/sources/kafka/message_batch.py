"""Collect Kafka's messages as Arrow arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Bytes of messages that become one batch.
BATCH_BYTES = 2 * 1024 * 1024
NO_METADATA: Mapping[str, pa.Array] = {}


@dataclass
class MessageBatch:
    """Messages as Arrow arrays.

    Attributes:
        values: their values.
        offsets: their offsets.
        metadata: other columns, by their names.
        nbytes: bytes of all.
    """

    values: list[pa.Array] = field(default_factory=list)
    offsets: list[pa.Array] = field(default_factory=list)
    metadata: dict[str, list[pa.Array]] = field(default_factory=dict)
    nbytes: int = 0

    def add(
        self,
        values: Sequence[bytes | None],
        offsets: npt.NDArray[np.int64],
        metadata: Mapping[str, pa.Array] = NO_METADATA,
    ) -> None:
        """Add messages; those that have no value (tombstones) are left out.

        Args:
            values: the values of the messages.
            offsets: their offsets.
            metadata: other columns of the messages, by name; the same ones each time.
        """
        array = pa.array(values, pa.binary())
        has_value = None
        if array.null_count:
            has_value = array.is_valid()
            offsets = offsets[has_value.to_numpy(zero_copy_only=False)]
            array = array.drop_null()
        self.values.append(array)
        self.offsets.append(pa.array(offsets))
        self.nbytes += array.nbytes + offsets.nbytes
        for name, column in metadata.items():
            kept = column if has_value is None else column.filter(has_value)
            self.metadata.setdefault(name, []).append(kept)
            self.nbytes += kept.nbytes

    def finish(self) -> pa.RecordBatch:
        """Return all messages: `value` (binary), `offset` (int64), and the other columns."""
        columns = {"value": self.values, "offset": self.offsets, **self.metadata}
        return pa.record_batch({name: pa.concat_arrays(own) for name, own in columns.items()})
