"""Convert Arrow's arrays, and tell which of their values cannot be converted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Nullable,
    Scalar,
    Struct,
)

# The form of texts that may not be UTF-8.
# Which values are bad; None if none are.
Bad = npt.NDArray[np.bool_] | None
# Converts the values of a type without parts, and tells which are bad.
Convert = Callable[[pa.Array, Scalar], tuple[pa.Array, Bad]]


def any_of(*masks: Bad) -> Bad:
    """Return which values are bad by any of some masks."""
    present = [mask for mask in masks if mask is not None]
    return np.logical_or.reduce(present) if present else None


def as_mask(condition: pa.Array) -> Bad:
    """Return for which values a condition is true."""
    mask = condition.fill_null(False).to_numpy(zero_copy_only=False)
    return mask if mask.any() else None


def of_items(bad: Bad, lengths: npt.NDArray[np.int64]) -> Bad:
    """Return which lists have bad items.

    Args:
        bad: which items are bad.
        lengths: numbers of items of each list.
    """
    if bad is None:
        return None
    rows = np.repeat(np.arange(len(lengths)), lengths)
    mask = np.zeros(len(lengths), np.bool_)
    mask[rows[bad]] = True
    return mask


def convert_each(
    array: pa.Array, kind: pa.DataType, convert: Callable[[pa.Array], pa.Array]
) -> tuple[pa.Array, Bad]:
    """Convert values, of which each that cannot be converted becomes null.

    Args:
        array: the values.
        kind: the type to convert them to.
        convert: converts values; raises pa.ArrowInvalid if one of them cannot be converted.

    Returns:
        The values, and which of them are bad.
    """
    try:
        return convert(array), None
    except (pa.ArrowInvalid, OverflowError):  # Python's times have years from 1 to 9999
        if len(array) == 1:
            return pa.nulls(1, kind), np.ones(1, np.bool_)
    half = len(array) // 2
    parts = [convert_each(part, kind, convert) for part in (array[:half], array[half:])]
    masks = [np.zeros(len(part), np.bool_) if bad is None else bad for part, bad in parts]
    return pa.concat_arrays([part for part, _ in parts]), np.concatenate(masks)


def converted(array: pa.Array, node: Node, convert: Convert) -> tuple[pa.Array, Bad]:
    """Return values as a column takes them, whatever they are nested in, and which are bad.

    Args:
        array: the values as they are read; fields of structs have names of their positions.
        node: their type.
        convert: converts values without parts.
    """
    if isinstance(node, Nullable):
        return converted(array, node.node, convert)
    absent = array.is_null() if array.null_count else None
    if isinstance(node, Struct):
        if not node.parts:
            return array, None
        pairs = [
            converted(part, kind, convert)
            for part, (_, kind) in zip(array.flatten(), node.parts, strict=True)
        ]
        children = [child for child, _ in pairs]
        struct = pa.StructArray.from_arrays(children, fields=list(node.column), mask=absent)
        return struct, any_of(*(bad for _, bad in pairs))
    if isinstance(node, Items):
        lengths, offsets = list_bounds(array)
        if node.is_map:
            keys, items = map_entries(array)
            items, bad = converted(items, node.node, convert)
            maps = pa.MapArray.from_arrays(offsets, keys, items, type=node.column, mask=absent)
            return maps, of_items(bad, lengths)
        items, bad = converted(array.flatten(), node.node, convert)
        lists = pa.ListArray.from_arrays(offsets, items, type=node.column, mask=absent)
        return lists, of_items(bad, lengths)
    return convert(array, node)


def list_bounds(array: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Int32Array]:
    """Return the lengths of lists or maps, and the offsets of their items.

    Args:
        array: the lists or maps; those that are null have no items.
    """
    if pa.types.is_map(array.type):
        raw = np.diff(array.offsets.to_numpy())
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        lengths = np.where(valid, raw, 0).astype(np.int64)
    else:
        lengths = pc.list_value_length(array).fill_null(0).to_numpy().astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return lengths, pa.array(offsets)


def map_entries(array: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of maps that are not null."""
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])
    entries = pa.ListArray.from_arrays(
        array.offsets,
        pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"]),
        mask=array.is_null() if array.null_count else None,
    ).flatten()
    return entries.field("key"), entries.field("value")


def repeated_keys(array: pa.MapArray) -> Bad:
    """Return which maps have a key twice.

    Args:
        array: the maps.
    """
    lengths, _ = list_bounds(array)
    keys, _ = map_entries(array)
    if not len(keys):
        return None
    encoded = keys.dictionary_encode()
    numbers = encoded.indices.to_numpy().astype(np.int64)
    numbers += np.repeat(np.arange(len(lengths)), lengths) * len(encoded.dictionary)
    _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    repeated = counts[places] > 1
    return of_items(repeated, lengths) if repeated.any() else None


def maps_with_repeated_keys(array: pa.Array, node: Node) -> Bad:
    """Return which values have a map, at any depth, that has a key twice.

    Args:
        array: the values as they are read.
        node: their type.
    """
    if isinstance(node, Nullable):
        return maps_with_repeated_keys(array, node.node)
    if isinstance(node, Struct):
        parts = zip(array.flatten(), node.parts, strict=True)
        return any_of(*(maps_with_repeated_keys(part, kind) for part, (_, kind) in parts))
    if isinstance(node, Items):
        lengths, _ = list_bounds(array)
        items = map_entries(array)[1] if node.is_map else array.flatten()
        inner = of_items(maps_with_repeated_keys(items, node.node), lengths)
        return any_of(inner, repeated_keys(array) if node.is_map else None)
    return None


def spread(values: pa.Array, present: Sequence[bool] | npt.NDArray[np.bool_]) -> pa.Array:
    """Return values at some places, and null at the others.

    Args:
        values: the values, in their order.
        present: which places have one.
    """
    mask = np.asarray(present, np.bool_)
    if mask.all():
        return values
    return values.take(pa.array(np.cumsum(mask) - 1, pa.int64(), mask=~mask))
