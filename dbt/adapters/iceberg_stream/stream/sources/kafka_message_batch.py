"""Collect Kafka's messages as Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Bytes of messages that become one batch.
BATCH_BYTES = 2 * 1024 * 1024


@dataclass
class MessageBatch:
    """Messages as Arrow arrays.

    Attributes:
        values: their values.
        offsets: their offsets.
        nbytes: bytes of both.
    """

    values: list[pa.Array] = field(default_factory=list)
    offsets: list[pa.Array] = field(default_factory=list)
    nbytes: int = 0

    def add(self, values: Sequence[bytes | None], offsets: npt.NDArray[np.int64]) -> None:
        """Add messages; those that have no value (tombstones) are left out.

        Args:
            values: the values of the messages.
            offsets: their offsets.
        """
        array = pa.array(values, pa.binary())
        if array.null_count:
            offsets = offsets[array.is_valid().to_numpy(zero_copy_only=False)]
            array = array.drop_null()
        self.values.append(array)
        self.offsets.append(pa.array(offsets))
        self.nbytes += array.nbytes + offsets.nbytes

    def finish(self) -> pa.RecordBatch:
        """Return all messages, with the columns `value` (binary) and `offset` (int64)."""
        arrays = [pa.concat_arrays(self.values), pa.concat_arrays(self.offsets)]
        return pa.record_batch(arrays, names=["value", "offset"])
