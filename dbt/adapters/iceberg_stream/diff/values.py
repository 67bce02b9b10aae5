"""Compares values of columns exactly: null equals null, NaN equals NaN, and 0.0 equals -0.0.

This is how Spark and DuckDB compare values with `is not distinct from`. Maps are equal if they have
the same entries, in whatever order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.tables.files.casting import list_offsets
from dbt.adapters.iceberg_stream.tables.keys.codes import (
    BASE,
    MIX_1,
    SIGN,
    Codes,
    Mask,
    binary_buffers,
    is_own_code,
    mix,
    value_bytes,
)

EMPTY = pa.scalar(b"", pa.large_binary())
NULL = np.uint64(0xA5A5A5A5A5A5A5A5)
# Words of 8 bytes of a text that its hash takes into account.
WORDS = 8


def flat(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, UUIDs as bytes."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # PyArrow returns several if a text column is too long
        raise pa.ArrowCapacityError("a column has more than 2 GiB of text in one comparison")
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def differs(before: pa.Array, after: pa.Array) -> Mask:
    """Return which values of two arrays of the same type differ.

    Args:
        before: the values before.
        after: the values after, as many.
    """
    if pa.types.is_nested(before.type):
        before, after = encoded(before), encoded(after)
    different = pc.fill_null(pc.not_equal(before, after), False)
    if pa.types.is_floating(before.type):
        is_nan = pc.and_(pc.is_nan(before), pc.is_nan(after))
        different = pc.and_not(different, pc.fill_null(is_nan, False))
    if before.null_count or after.null_count:
        different = pc.or_(different, pc.xor(before.is_null(), after.is_null()))
    return np.asarray(different.to_numpy(zero_copy_only=False), np.bool_)


def encoded(values: pa.Array) -> pa.LargeBinaryArray:
    """Return values as bytes: equal ones for equal values only, and none a prefix of another.

    Args:
        values: of any type.
    """
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind = values.type
    if pa.types.is_map(kind):
        return _lists(values, _entries(values))
    if pa.types.is_list(kind):
        return _lists(values, encoded(values.flatten()))
    if pa.types.is_struct(kind):
        children = [encoded(child) for child in values.flatten()]
        return pc.binary_join_element_wise(_present(values), *children, EMPTY)
    if pa.types.is_floating(kind):
        # 0.0 is added because -0.0 + 0.0 is 0.0.
        values = pc.add(values, pa.scalar(0.0, kind))
    return value_bytes(values)


def encoded_rows(columns: Sequence[pa.Array]) -> pa.LargeBinaryArray:
    """Return rows as bytes: equal ones for equal rows only.

    Args:
        columns: the columns of the rows, at least one.
    """
    return pc.binary_join_element_wise(*(encoded(column) for column in columns), EMPTY)


def _present(values: pa.Array) -> pa.LargeBinaryArray:
    """Return a byte for each value that says whether it is null."""
    return value_bytes(values.is_valid())


def _lists(lists: pa.Array, elements: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return the bytes of lists: whether null, how many elements, and those of the elements."""
    lengths = value_bytes(pc.list_value_length(_as_list(lists)))
    places = np.asarray(list_offsets(_as_list(lists)))
    offsets, content = binary_buffers(elements)
    joined = pa.Array.from_buffers(
        pa.large_binary(),
        len(lists),
        [None, pa.py_buffer(np.ascontiguousarray(offsets[places])), pa.py_buffer(content)],
    )
    return pc.binary_join_element_wise(lengths, joined, EMPTY)


def _entries(maps: pa.MapArray) -> pa.LargeBinaryArray:
    """Return the bytes of all entries, those of each map in the order of their keys."""
    listed = _as_list(maps)
    keys, values = listed.flatten().flatten()
    key_bytes = encoded(keys)
    lengths = pc.fill_null(pc.list_value_length(listed), 0)
    owners = np.repeat(np.arange(len(maps)), np.asarray(lengths))
    ranks = np.asarray(pc.rank(key_bytes, tiebreaker="dense"))
    entries = pc.binary_join_element_wise(key_bytes, encoded(values), EMPTY)
    return entries.take(pa.array(np.lexsort((ranks, owners))))


def _as_list(array: pa.Array) -> pa.Array:
    if not pa.types.is_map(array.type):
        return array
    key, value = array.type.key_field.with_name("key"), array.type.item_field.with_name("value")
    return array.cast(pa.list_(pa.struct([key, value])))


def hash_rows(columns: Sequence[pa.Array]) -> Codes:
    """Return a number for each row: equal rows have equal numbers, others rarely do.

    Args:
        columns: the columns of the rows, at least one.
    """
    schema = pa.schema([pa.field("", column.type) for column in columns])
    if is_own_code(schema):
        # In the order of the keys: rows that are in this order need not be sorted.
        return _without_nulls(_words(columns[0]) ^ SIGN, columns[0])
    codes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        codes = mix(codes * BASE + _hash(column))
    return codes


def _hash(column: pa.Array) -> Codes:
    kind = column.type
    if pa.types.is_nested(kind):
        return _hash_bytes(encoded(column))
    if _has_variable_length(kind):
        hashes = _hash_bytes(column.cast(pa.large_binary()))
    elif pa.types.is_decimal(kind):
        wide = column.cast(pa.decimal128(38, kind.scale))
        content = np.frombuffer(wide.buffers()[1], np.uint64)[2 * wide.offset :]
        words = content[: 2 * len(wide)].reshape(-1, 2)
        hashes = mix(words[:, 0]) + words[:, 1]
    else:
        hashes = _words(column)
    return _without_nulls(hashes, column)


def _without_nulls(hashes: Codes, column: pa.Array) -> Codes:
    if not column.null_count:
        return hashes
    return np.where(column.is_null().to_numpy(zero_copy_only=False), NULL, hashes)


def _has_variable_length(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return bool(is_text or pa.types.is_fixed_size_binary(kind))


def _words(column: pa.Array) -> Codes:
    """Return values of at most 64 bits as words; any word for null."""
    kind = column.type
    if pa.types.is_floating(kind):
        wide = pc.add(column.cast(pa.float64()), 0.0)
        numbers = np.array(pc.fill_null(wide, 0.0))
        numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.uint64)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not pa.types.is_integer(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    numbers = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
    return numbers.view(np.uint64)


def _hash_bytes(values: pa.Array) -> Codes:
    """Hash byte strings by their length, their first words and their last one."""
    values = pc.fill_null(values, b"")
    offsets, content = binary_buffers(values)
    # Words may begin at any byte, and end behind the last one.
    padded = np.append(content, np.zeros(8, np.uint8))
    words: Codes = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    begins, lengths = offsets[:-1], np.diff(offsets)
    hashes = lengths.astype(np.uint64)
    for number in range(WORDS):
        rows = np.flatnonzero(lengths > 8 * number)
        if not len(rows):
            break
        at = begins[rows] + 8 * number
        word = _first_bytes(words[at], lengths[rows] - 8 * number)
        hashes[rows] = mix(hashes[rows] * MIX_1 + word)
    long = np.flatnonzero(lengths > 8 * WORDS)
    hashes[long] = mix(hashes[long] * MIX_1 + words[offsets[1:][long] - 8])
    return hashes


def _first_bytes(words: Codes, counts: npt.NDArray[np.int64]) -> Codes:
    """Return words without the bytes behind the first ones (little endian)."""
    missing = np.clip(8 - counts, 0, 7).astype(np.uint64) * np.uint64(8)
    return words & (np.uint64(2**64 - 1) >> missing)
