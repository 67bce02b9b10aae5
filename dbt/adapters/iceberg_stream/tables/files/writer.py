"""Writes Arrow data to data files of a table, with bounded memory."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionKey

from dbt.adapters.iceberg_stream.engines.arrow_offsets import with_offsets
from dbt.adapters.iceberg_stream.tables.files.casting import conform
from dbt.adapters.iceberg_stream.tables.files.data_files import Describer
from dbt.adapters.iceberg_stream.tables.files.parquet import RollingWriter
from dbt.adapters.iceberg_stream.tables.files.partitions import StoredPartition, split
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.write_defaults import with_write_defaults

# Files that are open at once; beyond it, the least recently used partition is finished.
MAX_OPEN = 64
LANES = max(1, min(4, os.cpu_count() or 1))


@dataclass
class _Lane:
    """A sequence of files, written by one thread at a time."""

    writer: RollingWriter
    work: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Return whether a thread is writing."""
        return self.work is not None and not self.work.done()

    def wait(self) -> None:
        """Wait until the last row group is written, and raise its error, if any."""
        if self.work is not None:
            self.work.result()


@dataclass
class _Partition:
    """Rows of one partition that wait to become a row group, and the partition's files."""

    key: PartitionKey | None
    pending: pa.Table | None = None
    lanes: list[_Lane] = field(default_factory=list)
    used: int = 0

    @property
    def pending_bytes(self) -> int:
        """Size of the waiting rows in memory."""
        return self.pending.nbytes if self.pending is not None else 0


@dataclass
class DataFileWriter:
    """Writes rows to new data files of a table, which a commit must add to the table.

    Not thread-safe: one thread writes rows, others encode and upload them. Memory holds a few row
    groups, independent of the number of rows.

    Attributes:
        target: the table.
        origin: first word of the files' names: `ctas`, `insert`, `ingest`, `merge`, …
        write_id: id of the write, in the files' names.
        rows: how many rows were written so far.
    """

    target: WriteTarget
    origin: str
    write_id: str
    rows: int = 0
    _open: dict[object, _Partition] = field(default_factory=dict)
    _finished: list[_Partition] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _clock: Iterator[int] = field(default_factory=itertools.count)
    _pending_bytes: int = 0

    def __post_init__(self) -> None:
        self._filesystem = self.target.filesystem()
        self._pool = ThreadPoolExecutor(LANES, thread_name_prefix="files")
        self._free = threading.Semaphore(LANES)

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove all files after an error, Ctrl-C included."""
        if kind is not None:
            self.abort()

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows; they are in files after `close`.

        Args:
            batches: the rows, in any types that can be cast to the table's; see `conform`.

        Raises:
            ColumnError: a column does not fit the table.
            OSError: the storage refuses a file, or is full.
        """
        for batch in map(self._with_defaults, map(with_offsets, batches)):
            for piece in _pieces(batch, self.target.options.row_group_size):
                self._take(conform(piece, self.target.file_schema))

    def _with_defaults(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return with_write_defaults(batch, self.target.schema, self.target.file_schema)

    def close(self) -> list[DataFile]:
        """Finish all files.

        Returns:
            Their descriptors, in the order in which the files were started.
        """
        for partition in self._open.values():
            self._flush(partition)
        for key in list(self._open):
            self._finish(key)
        self._pool.shutdown()
        describer = Describer(
            self.target.schema, dict(self.target.properties), self.target.spec.spec_id
        )
        order = self.target.sort_order.order_id if self.target.sort_columns else None
        files = [
            # If there are several row groups, each is sorted, but not the file.
            describer.describe(file, partition.key, order if file.row_groups == 1 else None)
            for partition in self._finished
            for lane in partition.lanes
            for file in lane.writer.finished
        ]
        return sorted(files, key=lambda f: f.file_path.rsplit("/", 1)[-1])

    def abort(self) -> None:
        """Remove all files."""
        self._pool.shutdown(cancel_futures=True)
        for partition in [*self._open.values(), *self._finished]:
            for lane in partition.lanes:
                lane.writer.abort()

    def _take(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        table = pa.Table.from_batches([batch])
        for key, rows in split(table, self.target.spec, self.target.schema):
            partition = self._partition(key)
            pending = partition.pending
            partition.pending = rows if pending is None else pa.concat_tables([pending, rows])
            self._pending_bytes += rows.nbytes
            if partition.pending_bytes >= self.target.options.row_group_size:
                self._flush(partition)
        while self._pending_bytes > LANES * self.target.options.row_group_size:
            self._flush(max(self._open.values(), key=lambda p: p.pending_bytes))

    def _partition(self, key: StoredPartition | None) -> _Partition:
        values = None if key is None else key.exact
        if values not in self._open:
            if len(self._open) >= MAX_OPEN:
                oldest = min(self._open, key=lambda k: self._open[k].used)
                self._flush(self._open[oldest])
                self._finish(oldest)
            self._open[values] = _Partition(key)
        self._open[values].used = next(self._clock)
        return self._open[values]

    def _flush(self, partition: _Partition) -> None:
        """Hand over a partition's waiting rows to be encoded as one row group."""
        rows, partition.pending = partition.pending, None
        if rows is None:
            return
        self._pending_bytes -= rows.nbytes
        self._free.acquire()
        lane = self._lane(partition)
        lane.wait()
        lane.work = self._pool.submit(self._encode, lane, rows)

    def _lane(self, partition: _Partition) -> _Lane:
        """Return an idle lane. In partitioned tables each partition has one lane only."""
        idle = next((lane for lane in partition.lanes if not lane.busy), None)
        if idle is not None:
            return idle
        if len(partition.lanes) < (LANES if partition.key is None else 1):
            partition.lanes.append(_Lane(self._rolling_writer(partition.key)))
        return partition.lanes[-1]

    def _rolling_writer(self, partition: PartitionKey | None) -> RollingWriter:
        def name_file() -> str:
            name = f"{self.origin}-{self.write_id}-{next(self._numbers):05}.parquet"
            return str(self.target.locations.new_data_location(name, partition))

        return RollingWriter(
            self._filesystem,
            self.target.file_schema,
            self.target.options,
            name_file,
            self.target.path_of,
        )

    def _encode(self, lane: _Lane, rows: pa.Table) -> None:
        try:
            lane.writer.write(sorted_rows(rows, self.target.sort_columns))
        finally:
            self._free.release()

    def _finish(self, key: object) -> None:
        partition = self._open.pop(key)
        self._finished.append(partition)
        for lane in partition.lanes:
            lane.wait()
            lane.writer.close()


def _pieces(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into slices of about `size` bytes."""
    rows = max(1, batch.num_rows * size // max(batch.nbytes, 1))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def sorted_rows(rows: pa.Table, columns: Sequence[tuple[str, str, str]]) -> pa.Table:
    """Return rows in the table's sort order: column, direction, and where nulls go."""
    if not columns:
        return rows
    values, keys = {}, []
    for number, (name, direction, nulls) in enumerate(columns):
        values[f"is_null{number}"] = pc.is_null(rows[name])
        keys.append((f"is_null{number}", "descending" if nulls == "at_start" else "ascending"))
        if pa.types.is_floating(rows[name].type):
            # Iceberg orders NaN behind all numbers (spec, "Sort Orders"), Arrow always at the end.
            values[f"is_nan{number}"] = pc.is_nan(rows[name])
            keys.append((f"is_nan{number}", direction))
        values[f"value{number}"] = rows[name]
        keys.append((f"value{number}", direction))
    return rows.take(pc.sort_indices(pa.table(values), sort_keys=keys))
