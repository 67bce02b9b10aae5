"""Keeps the rows of both versions in memory, or in partitions on the local disk if they are many.

Rows of equal keys are in the same partition (a Grace hash join), so that memory holds one partition
at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import ceil
from pathlib import Path

import numpy as np
import pyarrow as pa

from dbt.adapters.iceberg_stream.diff.matching import THREADS, RowSet
from dbt.adapters.iceberg_stream.diff.values import flat, hash_rows
from dbt.adapters.iceberg_stream.tables.files.reader import no_rows
from dbt.adapters.iceberg_stream.tables.files.temporary_folder import TemporaryFolder
from dbt.adapters.iceberg_stream.tables.keys.codes import Codes, mix

MIB = 1024 * 1024
# Bytes of rows that stay in memory, and the share of a partition if there are more.
MEMORY, SHARE = 512 * MIB, 0.25
# Each partition has two open files.
MAX_PARTITIONS = 256
CODE = "code"


class Partitions:
    """The rows of two versions. Close it to remove its files.

    Args:
        schema: of the compared columns, without extension types.
        keys: positions of the key columns.
        rows: how many rows will be added, of both versions.
        memory: bytes of rows that stay in memory.
    """

    def __init__(
        self, schema: pa.Schema, keys: Sequence[int], rows: int, memory: int = MEMORY
    ) -> None:
        self._schema = schema.append(pa.field(CODE, pa.uint64()))
        self._keys = keys
        self._rows = rows
        self._memory = memory
        self._added = 0
        self._bytes = 0
        self._parts: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        self._files: _Files | None = None
        self._resources = ExitStack()

    def __enter__(self) -> Partitions:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def add(self, rows: pa.Table, is_before: bool) -> None:
        """Add rows.

        Args:
            rows: the compared columns.
            is_before: whether they are of the older version.
        """
        columns = [flat(column) for column in rows.columns]
        codes = hash_rows([columns[key] for key in self._keys])
        coded = pa.Table.from_arrays([*columns, pa.array(codes)], schema=self._schema)
        side = 0 if is_before else 1
        if self._files is not None:
            self._files.write(coded, side)
            return
        self._parts[side].append(coded)
        self._added += len(codes)
        self._bytes += coded.nbytes
        if self._bytes > self._memory:
            self._spill()

    def _spill(self) -> None:
        total = self._bytes * max(self._rows / self._added, 1.0)
        count = min(MAX_PARTITIONS, ceil(total / (self._memory * SHARE)))
        self._files = self._resources.enter_context(_Files(self._schema, count))
        for side, parts in enumerate(self._parts):
            for part in parts:
                self._files.write(part, side)
            parts.clear()

    def row_sets(self) -> Iterator[tuple[RowSet, RowSet]]:
        """Yield rows of both versions; equal keys are in the same pair."""
        if self._files is not None:
            yield from self._files.row_sets()
        else:
            yield self._row_set(0), self._row_set(1)

    def _row_set(self, side: int) -> RowSet:
        rows = _row_set(self._parts[side], self._schema)
        # The row set is a copy.
        self._parts[side].clear()
        return rows


class _Files:
    """Partitions on the local disk, each with a file of either version."""

    def __init__(self, schema: pa.Schema, count: int) -> None:
        self._schema = schema
        self._count = count
        self._folder = TemporaryFolder("diff")
        self._open = ExitStack()
        self._writers = [[self._writer(number, side) for side in (0, 1)] for number in range(count)]

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._folder.close()

    def write(self, rows: pa.Table, side: int) -> None:
        """Write rows of a version to their partitions."""
        numbers = _partition_of(np.asarray(rows[CODE]), self._count)
        ordered = rows.take(pa.array(np.argsort(numbers, kind="stable")))
        ends = np.cumsum(np.bincount(numbers, minlength=self._count))
        for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if begin < end:
                self._writers[number][side].write_table(ordered.slice(begin, end - begin))

    def row_sets(self) -> Iterator[tuple[RowSet, RowSet]]:
        """Read one partition after the other."""
        self._open.close()
        for number in range(self._count):
            before, after = (self._read(number, side) for side in (0, 1))
            yield before, after

    def _path(self, number: int, side: int) -> Path:
        return self._folder.path / f"{number}-{side}.arrow"

    def _writer(self, number: int, side: int) -> pa.RecordBatchFileWriter:
        path = str(self._path(number, side))
        return self._open.enter_context(pa.ipc.new_file(path, self._schema))

    def _read(self, number: int, side: int) -> RowSet:
        with pa.OSFile(str(self._path(number, side))) as file, pa.ipc.open_file(file) as reader:
            return _row_set([reader.read_all()], self._schema)


def _partition_of(codes: Codes, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    high = mix(codes) >> np.uint64(32)
    return ((high * np.uint64(count)) >> np.uint64(32)).astype(np.int64)


def _row_set(parts: Sequence[pa.Table], schema: pa.Schema) -> RowSet:
    rows = pa.concat_tables(parts) if parts else no_rows(schema)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="diff") as pool:
        columns = list(pool.map(flat, rows.columns))
    return RowSet(np.asarray(columns[-1]), columns[:-1])
