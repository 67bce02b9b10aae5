"""Matches the rows of two versions, by key or as whole rows.

Rows are sorted by a hash of their key. Where each version has one row with a hash, their keys are
compared. Other rows with equal hashes are matched by the exact bytes of their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dbt.adapters.iceberg_stream.diff.values import differs, encoded_rows
from dbt.adapters.iceberg_stream.tables.keys.codes import Codes, Mask

Rows = npt.NDArray[np.int64]
THREADS = 4


@dataclass(frozen=True)
class RowSet:
    """Rows of one version.

    Attributes:
        codes: a hash of each row's key; see `values.hash_rows`.
        columns: the compared columns.
    """

    codes: Codes
    columns: Sequence[pa.Array]

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class Matches:
    """Matched rows, by their positions in the row sets.

    Attributes:
        before: rows of the older version that have a partner.
        after: their partners in the newer version, in the same order.
        removed: rows of the older version without a partner.
        added: rows of the newer version without a partner.
    """

    before: Rows
    after: Rows
    removed: Rows
    added: Rows


class NotUnique(Exception):
    """Several rows of one version have the same key.

    Args:
        is_before: whether it is the older version.
        row: one of the rows, by its position in the row set.
        count: how many rows have its key.
    """

    def __init__(self, is_before: bool, row: int, count: int) -> None:
        super().__init__(is_before, row, count)
        self.is_before = is_before
        self.row = row
        self.count = count


def match_rows(before: RowSet, after: RowSet, keys: Sequence[int], unique: bool) -> Matches:
    """Match rows whose keys are equal, each with one partner at most.

    Args:
        before: rows of the older version.
        after: rows of the newer version.
        keys: positions of the key columns.
        unique: whether each version has a key once at most.

    Raises:
        NotUnique: a version has a key more than once, and `unique` is set.
    """
    with ThreadPoolExecutor(THREADS, thread_name_prefix="diff") as pool:
        one, other = pool.map(_Sorted, (before.codes, after.codes))
        places = pool.map(_Sorted.find_in, (one, other), (other, one))
        (other_of_one, is_in_other), (_, is_in_one) = places
    # Rows whose hash both versions have once, and only in the other row of the pair.
    at = np.flatnonzero(is_in_other & one.is_single)
    at = at[other.is_single[other_of_one[at]]]
    left, right = one.order[at], other.order[other_of_one[at]]
    same = _are_equal(before, after, left, right, keys)
    lone_before = [one.order[~is_in_other & one.is_single], left[~same]]
    lone_after = [other.order[~is_in_one & other.is_single], right[~same]]
    rest_before = _rest(len(before), left, *lone_before)
    rest_after = _rest(len(after), right, *lone_after)
    exact = _match_exactly(before, after, rest_before, rest_after, keys, unique)
    return Matches(
        np.concatenate([left[same], exact.before]),
        np.concatenate([right[same], exact.after]),
        np.sort(np.concatenate([*lone_before, exact.removed])),
        np.sort(np.concatenate([*lone_after, exact.added])),
    )


class _Sorted:
    """Hashes in their order.

    Attributes:
        order: positions of the hashes in their order.
        codes: the hashes.
        is_single: which of them occur once.
    """

    def __init__(self, codes: Codes) -> None:
        in_order = len(codes) < 2 or bool(np.all(codes[1:] >= codes[:-1]))
        self.order: Rows = np.arange(len(codes)) if in_order else np.argsort(codes)
        self.codes = codes if in_order else codes[self.order]
        same = self.codes[1:] == self.codes[:-1]
        no = np.zeros(min(1, len(codes)), np.bool_)
        self.is_single: Mask = ~(np.concatenate([same, no]) | np.concatenate([no, same]))

    def find_in(self, other: _Sorted) -> tuple[Rows, Mask]:
        """Return the place of each hash among other ones, and which are there."""
        if not len(other.codes):
            return np.zeros(len(self.codes), np.int64), np.zeros(len(self.codes), np.bool_)
        if len(self.codes) == len(other.codes) and bool(np.all(self.codes == other.codes)):
            return np.arange(len(self.codes)), np.ones(len(self.codes), np.bool_)
        places = np.searchsorted(other.codes, self.codes)
        places[places == len(other.codes)] = 0
        return places, np.asarray(other.codes[places] == self.codes)


def _rest(count: int, *parts: Rows) -> Rows:
    rest = np.ones(count, np.bool_)
    for part in parts:
        rest[part] = False
    return np.flatnonzero(rest)


def _are_equal(
    before: RowSet, after: RowSet, left: Rows, right: Rows, columns: Sequence[int]
) -> Mask:
    equal = np.ones(len(left), np.bool_)
    for mask in differences(before, after, left, right, columns):
        equal &= ~mask
    return equal


def differences(
    before: RowSet, after: RowSet, left: Rows, right: Rows, columns: Sequence[int]
) -> list[Mask]:
    """Return which pairs of rows differ in each of some columns.

    Args:
        before: rows of the older version.
        after: rows of the newer version.
        left: positions in `before`.
        right: positions in `after`, as many.
        columns: positions of the columns.
    """
    takes = _taker(left, len(before)), _taker(right, len(after))

    def compare(column: int) -> Mask:
        return differs(takes[0](before.columns[column]), takes[1](after.columns[column]))

    with ThreadPoolExecutor(THREADS, thread_name_prefix="diff") as pool:
        return list(pool.map(compare, columns))


def _taker(rows: Rows, count: int) -> Callable[[pa.Array], pa.Array]:
    if len(rows) == count and bool(np.all(rows == np.arange(count))):
        return lambda column: column
    indices = pa.array(rows)
    return lambda column: column.take(indices)


def _match_exactly(
    before: RowSet,
    after: RowSet,
    rest_before: Rows,
    rest_after: Rows,
    keys: Sequence[int],
    unique: bool,
) -> Matches:
    """Match rows by the bytes of their keys; equal keys have partners as far as there are some."""
    indices = pa.array(rest_before), pa.array(rest_after)
    one = encoded_rows([before.columns[key].take(indices[0]) for key in keys])
    other = encoded_rows([after.columns[key].take(indices[1]) for key in keys])
    numbers = np.asarray(pa.concat_arrays([one, other]).dictionary_encode().indices)
    left, right = numbers[: len(one)], numbers[len(one) :]
    if unique:
        _require_unique(left, rest_before, True)
        _require_unique(right, rest_after, False)
    kinds = int(numbers.max()) + 1 if len(numbers) else 0
    pairs = np.minimum(np.bincount(left, minlength=kinds), np.bincount(right, minlength=kinds))
    matched, order = _first_of_each(left, pairs)
    matched_other, order_other = _first_of_each(right, pairs)
    return Matches(
        rest_before[order[matched]],
        rest_after[order_other[matched_other]],
        rest_before[order[~matched]],
        rest_after[order_other[~matched_other]],
    )


def _require_unique(numbers: npt.NDArray[np.int32], rows: Rows, is_before: bool) -> None:
    counts = np.bincount(numbers)
    if len(counts) and (highest := int(counts.max())) > 1:
        row = int(rows[np.flatnonzero(numbers == int(counts.argmax()))[0]])
        raise NotUnique(is_before, row, highest)


def _first_of_each(
    numbers: npt.NDArray[np.int32], limits: npt.NDArray[np.int64]
) -> tuple[Mask, Rows]:
    """Return which rows are within the limit of their number, and the order by number.

    The mask is in that order, so that the masks of both versions pair rows of the same number.
    """
    order = np.argsort(numbers, kind="stable")
    in_order = numbers[order]
    begins = np.searchsorted(in_order, in_order)
    return np.arange(len(order)) - begins < limits[in_order], order
