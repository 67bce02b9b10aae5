"""Sorted runs of keys on the local disk, looked up through memory maps.

Like the runs of a log-structured merge tree: immutable, sorted by code, merged by size. An entry
is a key and the place of its row, packed into 64 bits: a number for the data file, and the row's
position in it.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dbt.adapters.iceberg_stream.tables.keys.codes import (
    SUFFIX_BITS,
    Codes,
    Keys,
    Mask,
    begins_with,
    binary_buffers,
    equal,
)

Rows = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
POSITION_BITS = np.uint64(32)
POSITION_MASK = np.uint64((1 << 32) - 1)
# Whether the key of an entry is null, for keys that are their own code.
NULL = np.uint64(1 << 63)
CODES, ROWS, OFFSETS, VALUES = "codes", "rows", "offsets", "values"
# Look-ups between which pages of a large run are given back, and the size of a large run.
LOOKUPS_AT_ONCE = 1024
LARGE_BYTES = 32 * 1024 * 1024
# Entries that are merged at once.
MERGED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Entries:
    """Keys and the places of their rows, sorted by code.

    Attributes:
        keys: the keys.
        rows: the packed place of each row.
    """

    keys: Keys
    rows: Rows

    @classmethod
    def of(cls, keys: Keys, file: int, begin: int) -> Entries:
        """Return entries of consecutive rows of a file.

        Args:
            keys: of the rows, in their order.
            file: number of the data file.
            begin: position of the first row.
        """
        return cls.at(keys, pack(file, np.arange(begin, begin + len(keys), dtype=np.uint64)))

    @classmethod
    def at(cls, keys: Keys, rows: Rows) -> Entries:
        """Return entries of rows.

        Args:
            keys: of the rows, in any order.
            rows: the packed place of each row.
        """
        if keys.nulls is not None:
            rows = rows | np.where(keys.nulls, NULL, np.uint64(0))
        in_order, order = keys.sorted()
        return cls(Keys(in_order.codes, None, in_order.values), rows[order])

    def lookup_keys(self) -> Keys:
        """Return the keys with their nulls, which `rows` has."""
        return Keys(self.keys.codes, (self.rows & NULL) != 0, self.keys.values)

    def where(self, mask: Mask) -> Entries:
        """Return the entries that a mask selects.

        Args:
            mask: true for the entries to return.
        """
        if mask.all():
            return self
        kept = np.flatnonzero(mask)
        return Entries(self.keys.take(kept), self.rows[kept])


def pack(file: int | npt.NDArray[np.int64], positions: Rows) -> Rows:
    """Return the packed places of rows.

    Args:
        file: number of the data file, or of each row's data file.
        positions: of the rows in their files.
    """
    return (np.asarray(file, np.uint64) << POSITION_BITS) | positions


def unpack(rows: Rows) -> tuple[Indices, npt.NDArray[np.uint32]]:
    """Return the data files' numbers, and the positions of rows.

    Args:
        rows: packed places.
    """
    files = ((rows & ~NULL) >> POSITION_BITS).astype(np.int64)
    return files, (rows & POSITION_MASK).astype(np.uint32)


@dataclass(frozen=True)
class Run:
    """A sorted run in a folder of its own.

    Attributes:
        folder: has a file for each column of the entries; of a stored run, the file itself.
        count: of the entries.
    """

    folder: Path
    count: int

    def find(self, keys: Keys, by_prefix: bool = False) -> tuple[Indices, Rows]:
        """Find the entries of keys.

        Args:
            keys: sorted by code.
            by_prefix: whether `keys` are only the first columns of the entries' keys.

        Returns:
            Positions in `keys`, and the packed place of each row that has that key.
        """
        indices: list[Indices] = []
        rows: list[Rows] = []
        if not self.count:
            return np.empty(0, np.int64), np.empty(0, np.uint64)
        suffix = _suffix(by_prefix)
        begin = int(np.searchsorted(keys.codes, self._codes[0] & ~suffix, "left"))
        end = int(np.searchsorted(keys.codes, self._codes[-1], "right"))
        # Look-ups in a small run cannot map many pages.
        step = LOOKUPS_AT_ONCE if self._codes.nbytes >= LARGE_BYTES else max(len(keys), 1)
        for first in range(begin, end, step):
            last = min(first + step, end)
            for index, at in self._equal_codes(keys.codes[first:last], first, suffix):
                match = self._is_match(keys, index, at, by_prefix)
                indices.append(index[match])
                rows.append(self._rows[at[match]])
            self.release_pages(LARGE_BYTES)
        if not rows:
            return np.empty(0, np.int64), np.empty(0, np.uint64)
        return np.concatenate(indices), np.concatenate(rows)

    def count_of(self, keys: Keys, by_prefix: bool = False) -> int:
        """Return how many entries `find` compares with keys, at least as many as it returns.

        Args:
            keys: as for `find`.
            by_prefix: as for `find`.
        """
        begins = np.searchsorted(self._codes, keys.codes, "left")
        ends = np.searchsorted(self._codes, keys.codes | _suffix(by_prefix), "right")
        return int((ends - begins).sum())

    def _equal_codes(
        self, codes: Codes, first: int, suffix: np.uint64
    ) -> Iterator[tuple[Indices, Indices]]:
        """Yield pairs of equal codes: positions among all look-ups, and in the run."""
        index, begins = np.arange(len(codes)), np.searchsorted(self._codes, codes, "left")
        if not suffix:
            # Nearly all codes are in the run once at most: only others are looked up again.
            index, at = self._matches(codes, begins)
            yield index + first, at
            again, begins = self._matches(codes[index], at + 1)
            index = index[again]
        if not len(index):
            return
        counts = np.searchsorted(self._codes, codes[index] | suffix, "right") - begins
        # The position of each pair among those of its own look-up.
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        yield np.repeat(index, counts) + first, np.repeat(begins, counts) + within

    def _matches(self, codes: Codes, at: Indices) -> tuple[Indices, Indices]:
        """Return which codes are those of some entries, and the positions of the entries."""
        index = np.flatnonzero(at < self.count)
        index = index[self._codes[at[index]] == codes[index]]
        return index, at[index]

    def _is_match(self, keys: Keys, index: Indices, at: Indices, by_prefix: bool) -> Mask:
        if keys.values is not None:
            if by_prefix:
                return begins_with(self._values, at, keys.values, index)
            return equal(keys.values, index, self._values, at)
        is_null = (self._rows[at] & NULL) != 0
        if keys.nulls is None:
            return np.logical_not(is_null)
        return np.asarray(keys.nulls[index] == is_null)

    def slice(self, begin: int, end: int) -> Entries:
        """Return a copy of some entries, which stays good when the run is removed.

        Args:
            begin: position of the first entry.
            end: position after the last entry.
        """
        values = None
        if self.has_values:
            positions = pa.arange(begin, end)
            values = self._values.take(positions)
        codes, rows = self._codes[begin:end].copy(), self._rows[begin:end].copy()
        return Entries(Keys(codes, None, values), rows)

    def position_after(self, code: np.uint64) -> int:
        """Return the position of the first entry whose code is greater.

        Args:
            code: the code.
        """
        return int(np.searchsorted(self._codes, code, "right"))

    def code_at(self, position: int) -> np.uint64:
        """Return the code of an entry."""
        code: np.uint64 = self._codes[position]
        return code

    def remove(self) -> None:
        """Remove the run's files; memory maps that are open stay readable."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def columns(self) -> dict[str, memoryview]:
        """Return the content of the run's files by the names of their columns."""
        return dict(self._maps)

    @property
    def has_values(self) -> bool:
        """Return whether the entries have the bytes of their keys."""
        return OFFSETS in self._maps

    @cached_property
    def _codes(self) -> Codes:
        return np.frombuffer(self._maps[CODES], np.uint64)

    @cached_property
    def _rows(self) -> Rows:
        return np.frombuffer(self._maps[ROWS], np.uint64)

    @cached_property
    def _values(self) -> pa.LargeBinaryArray:
        content = self._maps.get(VALUES, b"")
        buffers = [None, pa.py_buffer(self._maps[OFFSETS]), pa.py_buffer(content)]
        return pa.Array.from_buffers(pa.large_binary(), self.count, buffers)

    @cached_property
    def _maps(self) -> dict[str, memoryview]:
        return {name: memoryview(mapped) for name, mapped in self._mapped.items()}

    @cached_property
    def _mapped(self) -> dict[str, mmap.mmap]:
        paths = [path for path in self.folder.iterdir() if path.stat().st_size]
        return {path.name: _map(path) for path in paths}

    def release_pages(self, large: int = 0) -> None:
        """Give memory-mapped pages back to the system, which caches them while it can.

        Args:
            large: bytes from which on a column is released.
        """
        for mapped in self._mapped.values():
            if len(mapped) >= large:
                mapped.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class StoredRun(Run):
    """A run whose columns are in one file.

    Attributes:
        sections: offset and length of each column.
    """

    sections: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def remove(self) -> None:
        """Leave the file, which is not the run's own."""

    @cached_property
    def _maps(self) -> dict[str, memoryview]:
        content = memoryview(self._mapped["file"])
        return {
            name: content[offset : offset + length]
            for name, (offset, length) in self.sections.items()
        }

    @cached_property
    def _mapped(self) -> dict[str, mmap.mmap]:
        return {"file": _map(self.folder)}


def _suffix(by_prefix: bool) -> np.uint64:
    return SUFFIX_BITS if by_prefix else np.uint64(0)


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class RunWriter:
    """Writes entries, in the order of their codes, to a new run.

    Args:
        folder: of the run; must not exist.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._open = ExitStack()
        self._count = 0
        self._bytes = 0

    def append(self, entries: Entries) -> None:
        """Write entries whose codes are not less than those before."""
        entries.keys.codes.tofile(self._file(CODES))
        entries.rows.tofile(self._file(ROWS))
        if entries.keys.values is not None:
            self._append_values(entries.keys.values)
        self._count += len(entries.rows)

    def close(self) -> Run:
        """Finish the files, and return the run."""
        self._open.close()
        return Run(self._folder, self._count)

    def abort(self) -> None:
        """Remove the files."""
        self._open.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _append_values(self, values: pa.LargeBinaryArray) -> None:
        offsets, content = binary_buffers(values)
        if not self._count:
            self._file(OFFSETS).write(np.zeros(1, np.int64).tobytes())
        moved = offsets[1:] - offsets[0] + self._bytes
        self._file(OFFSETS).write(moved.tobytes())
        self._file(VALUES).write(content[offsets[0] : offsets[-1]].tobytes())
        self._bytes += int(offsets[-1] - offsets[0])

    def _file(self, name: str) -> IO[bytes]:
        if name not in self._files:
            self._files[name] = self._open.enter_context((self._folder / name).open("wb"))
        return self._files[name]


def merge_runs(runs: Sequence[Run], folder: Path, keep: Callable[[Entries], Mask]) -> Run:
    """Merge runs into a new one, a part at a time.

    Args:
        runs: the runs, which stay.
        folder: of the new run; must not exist.
        keep: returns which entries stay.
    """
    writer = RunWriter(folder)
    with ExitStack() as undo:
        undo.callback(writer.abort)
        for parts in _parts(runs):
            entries = merge_entries(parts)
            entries = entries.where(keep(entries))
            if len(entries.rows):
                writer.append(entries)
        undo.pop_all()
    return writer.close()


def _parts(runs: Sequence[Run]) -> Iterator[list[Entries]]:
    """Yield slices of all runs with the same range of codes, in ascending order."""
    begins = [0] * len(runs)
    step = max(1, MERGED_AT_ONCE // len(runs))
    while any(begin < run.count for begin, run in zip(begins, runs, strict=True)):
        # Equal codes stay together, so that a part may be longer than its bound.
        bounds = [
            run.code_at(begin + step)
            for begin, run in zip(begins, runs, strict=True)
            if begin + step < run.count
        ]
        ends = [run.position_after(min(bounds)) if bounds else run.count for run in runs]
        pieces = zip(runs, begins, ends, strict=True)
        yield [run.slice(begin, end) for run, begin, end in pieces if begin < end]
        for run in runs:
            run.release_pages()
        begins = ends


def merge_entries(parts: Sequence[Entries]) -> Entries:
    """Return all entries, sorted by code.

    Args:
        parts: entries that are sorted by code.
    """
    if not parts:
        return Entries(Keys(np.empty(0, np.uint64)), np.empty(0, np.uint64))
    if len(parts) == 1:
        return parts[0]
    values = [part.keys.values for part in parts if part.keys.values is not None]
    keys = Keys(
        np.concatenate([part.keys.codes for part in parts]),
        None,
        pa.concat_arrays(values) if values else None,
    )
    in_order, order = keys.sorted(is_partly_sorted=True)
    return Entries(in_order, np.concatenate([part.rows for part in parts])[order])


def by_file(
    numbers: Indices, positions: npt.NDArray[np.uint32]
) -> dict[int, npt.NDArray[np.uint32]]:
    """Group the positions of rows by their data file.

    Args:
        numbers: the data file of each row.
        positions: of the rows in their files.
    """
    if not len(numbers):
        return {}
    # Numbers of 16 bits are sorted in linear time.
    is_small = int(numbers.max()) < 1 << 16
    order = np.argsort(numbers.astype(np.uint16) if is_small else numbers, kind="stable")
    unique, begins = np.unique(numbers[order], return_index=True)
    parts = np.split(positions[order], begins[1:])
    return {int(number): part for number, part in zip(unique, parts, strict=True)}
