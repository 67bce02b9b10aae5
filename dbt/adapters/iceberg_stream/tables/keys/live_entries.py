"""Which of many entries are of live rows, asked for all of them at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.tables.keys.codes import Mask
from dbt.adapters.iceberg_stream.tables.keys.runs import Rows, unpack


class LiveEntries:
    """Entries of live rows; it takes a bit for each row of a file up to the last deleted one.

    Args:
        files: numbers of the files.
        deleted: positions of deleted rows, by the number of their file.
    """

    def __init__(self, files: Collection[int], deleted: Mapping[int, BitMap]) -> None:
        self._size = max(files, default=-1) + 1
        # One more, for numbers of other files.
        self._is_file = np.zeros(self._size + 1, np.bool_)
        self._is_file[list(files)] = True
        self._begins = np.zeros(self._size + 1, np.int64)
        self._counts = np.zeros(self._size + 1, np.int64)
        parts: list[npt.NDArray[np.uint8]] = []
        size = 0
        for number, positions in deleted.items():
            if positions and number < self._size:
                bits = _bits(positions)
                self._begins[number], self._counts[number] = 8 * size, 8 * len(bits)
                parts.append(bits)
                size += len(bits)
        self._bits = np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def has(self, rows: Rows) -> Mask:
        """Return which rows are live.

        Args:
            rows: packed places of rows.
        """
        numbers, positions = unpack(rows)
        numbers = np.minimum(numbers, self._size)
        mask = self._is_file[numbers]
        may_be_deleted = np.flatnonzero(positions < self._counts[numbers])
        if len(may_be_deleted):
            at = self._begins[numbers[may_be_deleted]] + positions[may_be_deleted]
            is_deleted = (self._bits[at >> 3] >> (at & 7).astype(np.uint8)) & 1
            mask[may_be_deleted] &= is_deleted == 0
        return mask


def _bits(positions: BitMap) -> npt.NDArray[np.uint8]:
    """Return a bit for each position up to the last one, the lowest bit of a byte first."""
    mask = np.zeros(positions.max() + 1, np.bool_)
    mask[np.frombuffer(positions.to_array(), np.uint32)] = True
    return np.packbits(mask, bitorder="little")
