"""Decimals of numbers in Avro's encoding: integers of a scale, with the highest byte first."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback

# Bytes of a number in Arrow.
WIDTH = 16


def decimals(numbers: pa.BinaryArray, kind: pa.Decimal128Type) -> pa.Decimal128Array:
    """Return decimals.

    Args:
        numbers: their bytes, in two's complement.
        kind: the type, whose scale the numbers have.

    Raises:
        ArrowFallback: a number has no bytes, or more than Arrow's.
        ArrowInvalid: a number has more digits than the type.
    """
    count = len(numbers)
    if numbers.null_count == count:
        return pa.nulls(count, kind)
    _, offsets, data = numbers.buffers()
    ends = np.frombuffer(offsets, np.int32, count + 1, numbers.offset * 4)
    begins, ends = ends[:-1], ends[1:]
    lengths = ends - begins
    valid = numbers.is_valid().to_numpy(zero_copy_only=False)
    if numbers.null_count:
        begins, ends, lengths = begins[valid], ends[valid], lengths[valid]
    longest = int(lengths.max())
    if lengths.min() == 0 or longest > WIDTH:
        raise ArrowFallback
    octets = np.frombuffer(data, np.uint8)
    # Bytes before the highest one are its sign.
    signs = np.where(octets[begins] < 0x80, 0, 0xFF).astype(np.uint8)
    present = np.repeat(signs[:, np.newaxis], WIDTH, axis=1)
    for place in range(longest):
        has_byte = lengths > place
        present[has_byte, place] = octets[ends[has_byte] - 1 - place]
    values = np.zeros((count, WIDTH), np.uint8)
    values[valid] = present
    bits = pa.array(valid).buffers()[1]
    array = pa.Array.from_buffers(kind, count, [bits, pa.py_buffer(values)])
    array.validate(full=True)
    return array
