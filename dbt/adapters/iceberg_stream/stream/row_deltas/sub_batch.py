"""The files of one data sequence number, while they are written.

Article on the streaming sink, "The Delete Problem".

Worker code: the standard library, PyArrow and other worker code.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs

from dbt.adapters.iceberg_stream.stream.row_deltas.changes import (
    DELETED,
    ORDER,
    PARTITION,
    Partition,
    later,
    order_columns,
    row_positions,
    split,
    without,
)
from dbt.adapters.iceberg_stream.tables.files.casting import conform
from dbt.adapters.iceberg_stream.tables.files.parquet import (
    ParquetOptions,
    RollingWriter,
    WrittenFile,
)
from dbt.adapters.iceberg_stream.tables.files.uploads import Uploads
from dbt.adapters.iceberg_stream.tables.merge.rows import Source

FILE, POS = "__file", "__pos"
# Files that are open at once; of more partitions all are finished and others begun.
MAX_OPEN = 64
# Rows of a sub-batch for each key of its map: the positions of dead rows take memory, too.
ROWS_PER_KEY = 16


@dataclass(frozen=True)
class DeltaPlan:
    """What is made of the changes of one batch.

    Attributes:
        filesystem: where the files are.
        location: folder of new files, as the table names it; `path` is the same on the filesystem.
        schema: of the table's files, with field ids.
        keys: columns that tell a row; none where rows are only appended.
        options: of new files.
        write_id: of the write, in the files' names.
        chunk_bytes: rows that are held, so that of each key only the last change is written.
        max_keys: keys of a sub-batch whose place is remembered; with 0 each chunk is a sub-batch.
        ordered: whether changes of a key come in their order.
        sequence_by: columns of the table that order the changes. Equality deletes have them, too: a
            key that is gone is remembered with them.
        deletes_by_partition: whether a key's row can be in the change's own partition only.
    """

    filesystem: fs.FileSystem
    location: str
    path: str
    schema: pa.Schema
    keys: tuple[str, ...]
    options: ParquetOptions
    write_id: str
    chunk_bytes: int = 64 * 1024 * 1024
    max_keys: int = 0
    ordered: bool = True
    sequence_by: tuple[str, ...] = ()
    deletes_by_partition: bool = False

    def new_location(self) -> str:
        # A name of its own each time: a task may run twice.
        return f"{self.location}/stream-{self.write_id}-{uuid.uuid4().hex[:12]}.parquet"

    def path_of(self, location: str) -> str:
        return f"{self.path}/{location.rsplit('/', 1)[1]}"

    def writer(self, schema: pa.Schema, uploads: Uploads) -> RollingWriter:
        return RollingWriter(
            self.filesystem, schema, self.options, self.new_location, self.path_of, uploads
        )


@dataclass
class NewData:
    """A data file, and the positions of its rows that a later change of the sub-batch deletes."""

    file: WrittenFile
    partition: Partition
    dead: pa.Int64Array


@dataclass
class SubBatch:
    """Files that share a data sequence number; `equality_deletes` with their partitions."""

    data: list[NewData] = field(default_factory=list)
    equality_deletes: list[tuple[WrittenFile, Partition]] = field(default_factory=list)


class OpenSubBatch:
    """Files of one data sequence number while they are written; they are there when the uploads
    have finished."""

    def __init__(self, plan: DeltaPlan, uploads: Uploads) -> None:
        self._plan = plan
        self._uploads = uploads
        self._open: dict[Partition, RollingWriter] = {}
        self._closed: list[RollingWriter] = []
        self._deletes: list[RollingWriter] = []
        self._files: list[str] = []
        self._partitions: list[Partition] = []
        self._rows: dict[str, int] = {}
        self._dead: dict[int, list[pa.Array]] = {}
        self._places: pa.Table | None = None
        self._taken = 0

    def is_full(self) -> bool:
        places = self._places
        most = self._plan.max_keys
        return places is not None and (
            places.num_rows >= most or self._taken >= most * ROWS_PER_KEY
        )

    def append(self, rows: pa.Table) -> None:
        self._write(rows)

    def apply(self, changes: pa.Table) -> tuple[int, int]:
        """Changes of different keys: rows that are written, and keys that are deleted."""
        self._taken += changes.num_rows
        if self._places is not None:
            changes = self._against_places(changes)
        deleted = pc.fill_null(changes[DELETED], False)
        live = changes.filter(pc.invert(deleted))
        gone = changes.filter(deleted)
        written, file, pos = self._write(live)
        remembered = [*self._plan.keys, *order_columns(changes), *_partition_columns(changes)]
        places = [
            _with_places(written.select(remembered), file, pos),
            _with_places(gone.select(remembered), *_nowhere(gone.num_rows)),
        ]
        known = [] if self._places is None else [self._places]
        self._places = pa.concat_tables([*known, *places]).combine_chunks()
        return live.num_rows, gone.num_rows

    def close(self) -> SubBatch:
        self._finish_data()
        finished = {file.location: file for w in self._closed for file in w.finished}
        data = [
            NewData(finished[location], partition, self._dead_rows(number))
            for number, (location, partition) in enumerate(
                zip(self._files, self._partitions, strict=True)
            )
        ]
        made = SubBatch(data, list(self._write_equality_deletes()))
        self._places = None
        return made

    def abort(self) -> None:
        for writer in [*self._open.values(), *self._closed, *self._deletes]:
            writer.abort()

    def _against_places(self, changes: pa.Table) -> pa.Table:
        """The changes without those that come too late; rows that others replace are dead."""
        assert self._places is not None
        matches = Source(self._places, self._plan.keys).match(changes.select(self._plan.keys))
        if not self._plan.ordered:
            late = later(
                [self._places[name].take(matches.in_source) for name in order_columns(changes)],
                [changes[name].take(matches.in_file) for name in order_columns(changes)],
            )
            changes = without(changes, matches.in_file.filter(late))
            matches = matches.only(pc.invert(late))
        replaced = self._places.take(matches.in_source)
        replaced = replaced.filter(pc.greater_equal(replaced[POS], 0))
        for number in pc.unique(replaced[FILE]).to_pylist():
            here = replaced.filter(pc.equal(replaced[FILE], number))
            self._dead.setdefault(number, []).append(here[POS].combine_chunks())
        self._places = without(self._places, matches.in_source)
        return changes

    def _write(self, rows: pa.Table) -> tuple[pa.Table, pa.Array, pa.Array]:
        """Write rows; the rows in the order they were written in, with their files and places."""
        parts, files, places = [rows.slice(0, 0)], [], []
        for partition, part in split(rows):
            number, begin = self._write_part(partition, part)
            parts.append(part)
            files.append(pa.repeat(pa.scalar(number, pa.int32()), part.num_rows))
            places.append(row_positions(part.num_rows, begin))
        return (
            pa.concat_tables(parts),
            pa.chunked_array(files, pa.int32()).combine_chunks(),
            pa.chunked_array(places, pa.int64()).combine_chunks(),
        )

    def _write_part(self, partition: Partition, rows: pa.Table) -> tuple[int, int]:
        """Write rows of a partition: the number of their file, and their first place in it."""
        if partition not in self._open:
            if len(self._open) >= MAX_OPEN:
                self._finish_data()
            self._open[partition] = self._plan.writer(self._plan.schema, self._uploads)
        writer = self._open[partition]
        schema = self._plan.schema
        # Columns that the query does not give, or no longer, are null.
        given = rows.select([name for name in schema.names if name in rows.column_names])
        batches = [conform(batch, schema) for batch in given.to_batches()]
        writer.write(pa.Table.from_batches(batches, schema), may_roll=False)
        location = writer.location
        if location not in self._rows:
            self._rows[location] = 0
            self._files.append(location)
            self._partitions.append(partition)
        begin = self._rows[location]
        self._rows[location] += rows.num_rows
        number = self._files.index(location)
        writer.roll_if_full()
        return number, begin

    def _finish_data(self) -> None:
        for writer in self._open.values():
            writer.close()
            self._closed.append(writer)
        self._open = {}

    def _write_equality_deletes(self) -> Iterator[tuple[WrittenFile, Partition]]:
        """Each key that was changed may have a row in an earlier sub-batch or commit."""
        if self._places is None:
            return
        orders = {f"{ORDER}{n}": name for n, name in enumerate(self._plan.sequence_by)}
        stored = {key: key for key in self._plan.keys}
        stored |= {order: name for order, name in orders.items() if name not in self._plan.keys}
        columns, names = list(stored), list(stored.values())
        schema = pa.schema([self._plan.schema.field(name) for name in names])
        parts: Iterable[tuple[Partition, pa.Table]] = [((), self._places)]
        if self._plan.deletes_by_partition:
            parts = split(self._places)
        for partition, part in parts:
            keys = part.select(columns).rename_columns(names).combine_chunks()
            batches = [conform(batch, schema) for batch in keys.to_batches()]
            writer = self._plan.writer(schema, self._uploads)
            self._deletes.append(writer)
            writer.write(pa.Table.from_batches(batches, schema), may_roll=False)
            for file in writer.close():
                yield file, partition

    def _dead_rows(self, number: int) -> pa.Int64Array:
        found = pa.chunked_array(self._dead.get(number, []), pa.int64())
        return found.combine_chunks().sort()


def _with_places(rows: pa.Table, file: pa.Array, pos: pa.Array) -> pa.Table:
    return rows.append_column(FILE, file).append_column(POS, pos)


def _nowhere(count: int) -> tuple[pa.Array, pa.Array]:
    return pa.repeat(pa.scalar(-1, pa.int32()), count), pa.repeat(pa.scalar(-1, pa.int64()), count)


def _partition_columns(rows: pa.Table) -> list[str]:
    return [PARTITION] if PARTITION in rows.column_names else []
