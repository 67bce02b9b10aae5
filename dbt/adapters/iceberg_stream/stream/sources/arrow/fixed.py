"""Bytes of Avro's `fixed`, which are read as a record of numbers of the same size."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

# Avro's numbers of a fixed size, by their bytes.
NUMBERS = {8: "double", 4: "float"}
DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
# Places of the digits in a UUID as text.
PLACES = [place for place in range(36) if place not in (8, 13, 18, 23)]


def numbers_of(size: int) -> list[str] | None:
    """Return Avro's types of numbers that have a size together.

    Args:
        size: in bytes.

    Returns:
        The types; None if there are none: no number has less than four bytes.
    """
    if size <= 0 or size % 4:
        return None
    return [NUMBERS[8]] * (size // 8) + [NUMBERS[4]] * (size % 8 // 4)


def fixed_bytes(numbers: pa.StructArray) -> pa.BinaryArray:
    """Return the bytes of numbers.

    Args:
        numbers: as `numbers_of` describes them.
    """
    count = len(numbers)
    if numbers.null_count == count:
        return pa.nulls(count, pa.binary())
    parts = [child.fill_null(0).to_numpy().view(np.uint8) for child in numbers.flatten()]
    octets = np.hstack([part.reshape(count, -1) for part in parts])
    return _array(octets, pa.binary(octets.shape[1]), numbers).cast(pa.binary())


def uuids(octets: pa.BinaryArray) -> pa.StringArray:
    """Return UUIDs as text.

    Args:
        octets: their 16 bytes each.
    """
    count = len(octets)
    if octets.null_count == count:
        return pa.nulls(count, pa.string())
    data = octets.fill_null(bytes(16)).cast(pa.binary(16))
    values = np.frombuffer(data.buffers()[1], np.uint8, 16 * count, 16 * data.offset)
    digits = DIGITS[np.stack([values >> 4, values & 15], axis=1).reshape(count, 32)]
    text = np.full((count, 36), ord("-"), np.uint8)
    text[:, PLACES] = digits
    return _array(text, pa.binary(36), octets).cast(pa.binary()).view(pa.string())


def _array(octets: np.ndarray, kind: pa.DataType, like: pa.Array) -> pa.FixedSizeBinaryArray:
    """Return rows of bytes as values, which are null where others are."""
    valid = pa.array(like.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]
    data = pa.py_buffer(np.ascontiguousarray(octets))
    return pa.Array.from_buffers(kind, len(like), [valid, data])
