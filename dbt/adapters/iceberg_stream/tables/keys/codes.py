"""Encode the keys of rows as numbers that can be sorted and looked up with NumPy.

A key of one column of at most 64 bits is its own code. Other keys have a 64-bit hash as their
code, and are compared byte by byte where codes are equal: a hash that collides is not a match.

Where keys are looked up by their first columns, too, the upper half of the code is the hash of
these columns, so that such keys are neighbours in the order of codes.

Equal keys are those that Iceberg's equality deletes match: null equals null, NaN equals NaN, and
0.0 differs from -0.0 (Iceberg spec, "Equality Delete Files").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Codes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
# Bytes of keys that are hashed at once, which bounds the memory of intermediate arrays.
BYTES_AT_ONCE = 4 * 1024 * 1024
# Odd numbers with well-spread bits: the base of the polynomial, and splitmix64's two factors.
BASE = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SIGN = np.uint64(1 << 63)
NULL_CODE = np.uint64((1 << 64) - 1)
# Bits in which codes may differ of keys whose first columns are equal.
SUFFIX_BITS = np.uint64((1 << 32) - 1)


@dataclass(frozen=True)
class Keys:
    """Keys of rows, in the order of the rows.

    Attributes:
        codes: a number for each key; equal keys have equal codes.
        nulls: whether the key is null, for keys that are their own code; None if none is null.
        values: the keys' bytes; None for keys that are their own code.
    """

    codes: Codes
    nulls: Mask | None = None
    values: pa.LargeBinaryArray | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, order: npt.NDArray[np.int64]) -> Keys:
        """Return the keys at some positions.

        Args:
            order: the positions.
        """
        return Keys(
            self.codes[order],
            None if self.nulls is None else self.nulls[order],
            None if self.values is None else self.values.take(pa.array(order)),
        )

    def sorted(self, is_partly_sorted: bool = False) -> tuple[Keys, npt.NDArray[np.int64]]:
        """Return the keys in the order of their codes, and their positions before.

        Args:
            is_partly_sorted: whether the keys are a few parts, each in order.
        """
        if len(self) < 2 or bool(np.all(self.codes[1:] >= self.codes[:-1])):
            return self, np.arange(len(self))
        # Timsort merges parts; for others, NumPy's default is five times as fast.
        order = np.argsort(self.codes, kind="stable" if is_partly_sorted else None)
        return self.take(order), order


def is_own_code(schema: pa.Schema) -> bool:
    """Return whether keys are their own codes, so that they need not be compared.

    Args:
        schema: of the key columns.
    """
    return len(schema) == 1 and _is_number(schema.field(0).type)


def encode(rows: pa.Table, prefix: int = 0) -> Keys:
    """Encode keys.

    Args:
        rows: the key columns only, with the types that the table has.
        prefix: how many first columns `encode_prefix` can look the keys up by; 0 for none.
    """
    if is_own_code(rows.schema):
        column = rows.column(0).combine_chunks()
        codes = _number(column) ^ SIGN
        if not column.null_count:
            return Keys(codes)
        # Not the code of 0: a column that was added later may be null in very many rows.
        nulls = _is_null(column)
        return Keys(np.where(nulls, NULL_CODE, codes), nulls)
    joined = _joined(rows)
    codes = _hash(joined)
    if prefix:
        codes = encode_prefix(rows.select(range(prefix))).codes | (codes & SUFFIX_BITS)
    return Keys(codes, None, joined)


def encode_prefix(rows: pa.Table) -> Keys:
    """Encode the first columns of keys, as the lowest codes that keys with them can have.

    Args:
        rows: these columns only, with the types that the table has.
    """
    joined = _joined(rows)
    return Keys(_hash(joined) & ~SUFFIX_BITS, None, joined)


def _joined(rows: pa.Table) -> pa.LargeBinaryArray:
    values = [value_bytes(_column(column)) for column in rows.columns]
    if len(values) == 1:
        return values[0]
    return pc.binary_join_element_wise(*values, pa.scalar(b"", pa.large_binary()))


def _is_number(kind: pa.DataType) -> bool:
    """Whether values of a type are integers of at most 64 bits."""
    return (
        pa.types.is_integer(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_timestamp(kind)
    )


def _column(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _is_null(column: pa.Array) -> Mask:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _number(column: pa.Array) -> Codes:
    """Return integers as 64-bit words; 0 for nulls."""
    kind = column.type
    wide = pa.int32() if kind.bit_width == 32 and not pa.types.is_integer(kind) else pa.int64()
    numbers = column if pa.types.is_integer(kind) else column.view(wide)
    filled = pc.fill_null(numbers.cast(pa.int64()), 0)
    return np.asarray(filled.to_numpy(zero_copy_only=False)).view(np.uint64)


def value_bytes(column: pa.Array) -> pa.LargeBinaryArray:
    """Return values as bytes that no other value of the column, or prefix of one, has.

    The first byte says whether the value is null; values of variable length have their length.

    Args:
        column: values that are not nested, and of no extension type.
    """
    kind = column.type
    nulls = _is_null(column)
    if _is_number(kind):
        return _fixed(nulls, _number(column).view(np.uint8).reshape(-1, 8))
    if pa.types.is_boolean(kind):
        flags = pc.fill_null(column.cast(pa.uint8()), 0)
        return _fixed(nulls, np.asarray(flags).reshape(-1, 1))
    if pa.types.is_floating(kind):
        return _fixed(nulls, _float_bits(column).view(np.uint8).reshape(-1, 8))
    if pa.types.is_decimal(kind):
        return _fixed(nulls, _decimal_bytes(column))
    return _variable(nulls, column)


def _float_bits(column: pa.Array) -> npt.NDArray[np.float64]:
    numbers = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False).copy()
    numbers[np.isnan(numbers)] = np.nan
    return np.asarray(numbers)


def _decimal_bytes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return unscaled values as 16 bytes; a wider precision does not change them."""
    wide = column.cast(pa.decimal128(38, column.type.scale))
    content = np.frombuffer(wide.buffers()[1], np.uint8)[16 * wide.offset :]
    values = content[: 16 * len(wide)].reshape(-1, 16).copy()
    values[_is_null(column)] = 0
    return values


def _fixed(nulls: Mask, values: npt.NDArray[np.uint8]) -> pa.LargeBinaryArray:
    width = values.shape[1] + 1
    content = np.empty((len(nulls), width), np.uint8)
    content[:, 0] = ~nulls
    content[:, 1:] = values
    content[nulls, 1:] = 0
    offsets = np.arange(0, width * (len(nulls) + 1), width, dtype=np.int64)
    return _binary(offsets, content.reshape(-1))


def _variable(nulls: Mask, column: pa.Array) -> pa.LargeBinaryArray:
    """Return a flag and the length of each value, then the value."""
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    values = pc.fill_null(column.cast(pa.large_binary()), b"")
    lengths = np.asarray(pc.binary_length(values)).astype("<u4")
    prefix = _fixed(nulls, lengths.view(np.uint8).reshape(-1, 4))
    return pc.binary_join_element_wise(prefix, values, pa.scalar(b"", pa.large_binary()))


def _binary(offsets: npt.NDArray[np.int64], content: npt.NDArray[np.uint8]) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _hash(values: pa.LargeBinaryArray) -> Codes:
    """Hash byte strings: a polynomial in their bytes, mixed like splitmix64's output."""
    offsets, content = binary_buffers(values)
    hashes = np.empty(len(values), np.uint64)
    begin = 0
    while begin < len(values):
        limit = offsets[begin] + BYTES_AT_ONCE
        end = max(begin + 1, int(np.searchsorted(offsets, limit, "right")) - 1)
        hashes[begin:end] = _hash_part(offsets[begin : end + 1], content)
        begin = end
    return hashes


def binary_buffers(
    values: pa.LargeBinaryArray,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the offsets of byte strings, and the bytes that they are offsets of.

    Args:
        values: the byte strings, none null.
    """
    _, offsets, content = values.buffers()
    begin = values.offset
    positions = np.frombuffer(offsets, np.int64)[begin : begin + len(values) + 1]
    return positions, np.frombuffer(content if content is not None else b"", np.uint8)


def _hash_part(offsets: npt.NDArray[np.int64], content: npt.NDArray[np.uint8]) -> Codes:
    lengths = np.diff(offsets)
    total = int(offsets[-1] - offsets[0])
    if not total:
        return np.zeros(len(lengths), np.uint64)
    powers = _powers(int(lengths.max()))
    starts = offsets[:-1] - offsets[0]
    within = np.arange(total) - np.repeat(starts, lengths)
    terms = (content[offsets[0] : offsets[-1]].astype(np.uint64) + np.uint64(1)) * powers[within]
    sums = np.zeros(len(lengths), np.uint64)
    nonempty = lengths > 0
    sums[nonempty] = np.add.reduceat(terms, starts[nonempty])
    return mix(sums)


def _powers(count: int) -> Codes:
    with np.errstate(over="ignore"):
        return np.cumprod(np.full(count, BASE, np.uint64), dtype=np.uint64)


def mix(values: Codes) -> Codes:
    """Return numbers with well-spread bits, equal ones for equal numbers only."""
    values = (values ^ (values >> np.uint64(30))) * MIX_1
    values = (values ^ (values >> np.uint64(27))) * MIX_2
    return values ^ (values >> np.uint64(31))


def equal(
    one: pa.LargeBinaryArray,
    one_rows: Sequence[int] | npt.NDArray[np.int64],
    other: pa.LargeBinaryArray,
    other_rows: Sequence[int] | npt.NDArray[np.int64],
) -> Mask:
    """Return which pairs of keys have the same bytes.

    Args:
        one: keys.
        one_rows: a position in `one` for each pair.
        other: keys.
        other_rows: a position in `other` for each pair.
    """
    same = pc.equal(one.take(pa.array(one_rows)), other.take(pa.array(other_rows)))
    return np.asarray(same.to_numpy(zero_copy_only=False), dtype=np.bool_)


def begins_with(
    one: pa.LargeBinaryArray,
    one_rows: npt.NDArray[np.int64],
    prefixes: pa.LargeBinaryArray,
    prefix_rows: npt.NDArray[np.int64],
) -> Mask:
    """Return in which pairs the key begins with the bytes of the other one.

    Args:
        one: keys.
        one_rows: a position in `one` for each pair.
        prefixes: the first columns of keys.
        prefix_rows: a position in `prefixes` for each pair.
    """
    offsets, content = binary_buffers(one)
    prefix_offsets, _ = binary_buffers(prefixes)
    lengths = np.diff(prefix_offsets)[prefix_rows]
    # Of these rows only: the keys may be a memory map that is larger than the memory.
    begins = offsets[one_rows]
    mask = np.asarray(offsets[one_rows + 1] - begins >= lengths)
    begins, lengths = begins[mask], lengths[mask]
    ends = np.cumsum(lengths)
    at = np.arange(int(lengths.sum())) + np.repeat(begins - (ends - lengths), lengths)
    first = _binary(np.concatenate([[0], ends]), content[at])
    mask[mask] = equal(first, np.arange(len(ends)), prefixes, prefix_rows[mask])
    return mask
