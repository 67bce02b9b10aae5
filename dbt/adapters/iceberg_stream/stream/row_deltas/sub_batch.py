"""Write the files of one data sequence number.

Article on the streaming sink, "The Delete Problem".

Worker code: it imports the standard library, PyArrow and other worker code only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs

from dbt.adapters.iceberg_stream.stream.row_deltas.changes import (
    DELETED,
    ORDER,
    PARTITION,
    Partition,
    last_changes,
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
from dbt.adapters.iceberg_stream.tables.merge.rows import Matches, Source, later

FILE, POS = "__file", "__pos"
# Files that are open at once; with more partitions, all files are finished and new ones started.
MAX_OPEN = 64
# Changes of a sub-batch for each key that it may have: positions of dead rows take memory, too.
ROWS_PER_KEY = 16


@dataclass(frozen=True)
class DeltaPlan:
    """How the files of one batch are written.

    Attributes:
        filesystem: where the files are.
        location: folder of new files, in the table's metadata.
        path: the same folder on the filesystem.
        schema: of the table's files, with field ids.
        keys: columns that identify a row; none where rows are only appended.
        options: Parquet options of new files.
        write_id: of the write, in the files' names.
        chunk_bytes: bytes of changes that are collected, so that only the last change of each key
            in them is written.
        max_keys: keys whose position in a sub-batch's files is remembered; with 0 each chunk is a
            sub-batch.
        ordered: whether changes of a key come in their order.
        sequence_by: columns of the table that order the changes.
        deletes_by_partition: whether all rows of a key are in the change's own partition.
        keeps_keys: whether sub-batches have their changed keys, for a key index, in place of
            equality deletes.
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
    keeps_keys: bool = False

    def new_location(self) -> str:
        """Return the location of a new file; unique, because a task may run twice."""
        return f"{self.location}/stream-{self.write_id}-{uuid.uuid4().hex[:12]}.parquet"

    def path_of(self, location: str) -> str:
        """Return the path on the filesystem of a new file.

        Args:
            location: of the file, in the table's metadata.
        """
        return f"{self.path}/{location.rsplit('/', 1)[1]}"

    def writer(self, schema: pa.Schema, uploads: Uploads | None = None) -> RollingWriter:
        """Return a writer of new files with a schema."""
        return RollingWriter(
            self.filesystem, schema, self.options, self.new_location, self.path_of, uploads
        )


@dataclass
class NewData:
    """A new data file of a sub-batch.

    Attributes:
        file: the file.
        partition: stored values of its partition.
        dead: positions of its rows that a later change of the sub-batch deletes.
    """

    file: WrittenFile
    partition: Partition
    dead: pa.Int64Array


@dataclass
class SubBatch:
    """Files that share a data sequence number.

    Attributes:
        data: the data files.
        equality_deletes: the equality delete files, with the stored values of their partitions.
        changed_keys: each changed key with its `sequence_by` columns, the position in `data` of
            the file that has its row (FILE, -1 for a deleted key) and the row's position (POS);
            None without a key index.
        deletes: other deleted keys with their `sequence_by` columns, which later changes are
            compared with: all without a key index, otherwise those that a newer change of the
            sub-batch has brought back; None for none.
    """

    data: list[NewData] = field(default_factory=list)
    equality_deletes: list[tuple[WrittenFile, Partition]] = field(default_factory=list)
    changed_keys: pa.Table | None = None
    deletes: pa.Table | None = None


class OpenSubBatch:
    """Writes the files of one data sequence number; they are complete after the uploads finish.

    Args:
        plan: how the files are written.
        uploads: uploads the files.
    """

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
        # The last change of each key: key, order columns, and the file and position of its row.
        self._last: pa.Table | None = None
        self._overtaken: list[pa.Table] = []
        # Keys that have all columns of the order cannot be changed late.
        self._has_order = not set(plan.sequence_by) <= set(plan.keys)
        self._change_count = 0

    def is_full(self) -> bool:
        """Return whether another chunk of changes could take too much memory."""
        last = self._last
        most = self._plan.max_keys
        return last is not None and (
            last.num_rows >= most or self._change_count >= most * ROWS_PER_KEY
        )

    def append(self, rows: pa.Table) -> None:
        """Write rows without keys."""
        self._write(rows)

    def apply(self, changes: pa.Table, overtaken: pa.Table | None = None) -> tuple[int, int]:
        """Write changes.

        Args:
            changes: at most one of each key.
            overtaken: deletes of their keys that are older; None for none.

        Returns:
            How many rows were written, and how many keys are deleted.
        """
        self._change_count += changes.num_rows
        if overtaken is not None:
            self._add_overtaken(self._not_late(overtaken))
        if self._last is not None:
            changes = self._replace_last(changes)
        deleted = pc.fill_null(changes[DELETED], False)
        live = changes.filter(pc.invert(deleted))
        deletes = changes.filter(deleted)
        written, file, pos = self._write(live)
        columns = [*self._plan.keys, *order_columns(changes), *_partition_columns(changes)]
        last = [
            _with_positions(written.select(columns), file, pos),
            _with_positions(deletes.select(columns), *_no_positions(deletes.num_rows)),
        ]
        earlier = [] if self._last is None else [self._last]
        self._last = pa.concat_tables([*earlier, *last]).combine_chunks()
        return live.num_rows, deletes.num_rows

    def close(self) -> SubBatch:
        """Finish the data files, and write the equality deletes, if there are any."""
        self._finish_data()
        finished = {file.location: file for w in self._closed for file in w.finished}
        data = [
            NewData(finished[location], partition, self._dead_rows(number))
            for number, (location, partition) in enumerate(
                zip(self._files, self._partitions, strict=True)
            )
        ]
        sub_batch = SubBatch(data)
        if self._last is not None:
            deletes = [self._overtaken_deletes()] if self._overtaken else []
            if self._plan.keeps_keys:
                sub_batch.changed_keys = _with_names(self._plan, self._last, (FILE, POS))
            else:
                sub_batch.equality_deletes = list(self._write_equality_deletes(self._last))
                if self._has_order:
                    deletes.append(self._last.filter(pc.less(self._last[POS], 0)))
            if deletes:
                named = [_with_names(self._plan, part) for part in deletes]
                sub_batch.deletes = deleted_keys(self._plan, pa.concat_tables(named))
        self._last = None
        return sub_batch

    def abort(self) -> None:
        """Remove all files."""
        for writer in [*self._open.values(), *self._closed, *self._deletes]:
            writer.abort()

    def _replace_last(self, changes: pa.Table) -> pa.Table:
        """Mark the rows of earlier changes as dead; return the changes without late ones."""
        assert self._last is not None
        matches = Source(self._last, self._plan.keys).match(changes.select(self._plan.keys))
        if not self._plan.ordered:
            late = self._late(changes, matches)
            changes = without(changes, matches.in_file.filter(late))
            matches = matches.only(pc.invert(late))
        replaced = self._last.take(matches.in_source)
        self._add_overtaken(replaced.filter(pc.less(replaced[POS], 0)))
        replaced = replaced.filter(pc.greater_equal(replaced[POS], 0))
        for number in pc.unique(replaced[FILE]).to_pylist():
            of_file = replaced.filter(pc.equal(replaced[FILE], number))
            self._dead.setdefault(number, []).append(of_file[POS].combine_chunks())
        self._last = without(self._last, matches.in_source)
        return changes

    def _not_late(self, changes: pa.Table) -> pa.Table:
        """Return changes without those that are older than the last change of their key."""
        if self._plan.ordered or self._last is None:
            return changes
        matches = Source(self._last, self._plan.keys).match(changes.select(self._plan.keys))
        return without(changes, matches.in_file.filter(self._late(changes, matches)))

    def _late(self, changes: pa.Table, matches: Matches) -> pa.BooleanArray:
        """Return which matches are of changes that are older than the last one of their key."""
        assert self._last is not None
        return later(
            [self._last[name].take(matches.in_source) for name in order_columns(changes)],
            [changes[name].take(matches.in_file) for name in order_columns(changes)],
        )

    def _add_overtaken(self, deletes: pa.Table) -> None:
        if self._has_order and deletes.num_rows:
            self._overtaken.append(deletes.select([*self._plan.keys, *order_columns(deletes)]))

    def _overtaken_deletes(self) -> pa.Table:
        """Return the newest delete of each key that has a row now."""
        assert self._last is not None
        rows = self._last.filter(pc.greater_equal(self._last[POS], 0))
        deletes = last_changes(pa.concat_tables(self._overtaken), self._plan.keys)
        matches = Source(deletes, self._plan.keys).match(rows.select(self._plan.keys))
        return deletes.take(matches.in_source)

    def _write(self, rows: pa.Table) -> tuple[pa.Table, pa.Array, pa.Array]:
        """Write rows; return them in the order of their files, with files and positions."""
        parts, files, positions = [rows.slice(0, 0)], [], []
        for partition, part in split(rows):
            number, begin = self._write_part(partition, part)
            parts.append(part)
            files.append(pa.repeat(pa.scalar(number, pa.int32()), part.num_rows))
            positions.append(row_positions(part.num_rows, begin))
        return (
            pa.concat_tables(parts),
            pa.chunked_array(files, pa.int32()).combine_chunks(),
            pa.chunked_array(positions, pa.int64()).combine_chunks(),
        )

    def _write_part(self, partition: Partition, rows: pa.Table) -> tuple[int, int]:
        """Write rows of a partition; return the number of their file, and their first position."""
        if partition not in self._open:
            if len(self._open) >= MAX_OPEN:
                self._finish_data()
            self._open[partition] = self._plan.writer(self._plan.schema, self._uploads)
        writer = self._open[partition]
        schema = self._plan.schema
        # Columns of the table that the query does not return are null.
        columns = rows.select([name for name in schema.names if name in rows.column_names])
        batches = [conform(batch, schema) for batch in columns.to_batches()]
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

    def _write_equality_deletes(self, last: pa.Table) -> Iterator[tuple[WrittenFile, Partition]]:
        """Write all changed keys: each may have a row in an earlier sub-batch or commit."""
        schema = pa.schema([self._plan.schema.field(key) for key in self._plan.keys])
        parts: Iterable[tuple[Partition, pa.Table]] = [((), last)]
        if self._plan.deletes_by_partition:
            parts = split(last)
        for partition, part in parts:
            keys = part.select(self._plan.keys).combine_chunks()
            batches = [conform(batch, schema) for batch in keys.to_batches()]
            writer = self._plan.writer(schema, self._uploads)
            self._deletes.append(writer)
            writer.write(pa.Table.from_batches(batches, schema), may_roll=False)
            for file in writer.close():
                yield file, partition

    def _dead_rows(self, number: int) -> pa.Int64Array:
        positions = pa.chunked_array(self._dead.get(number, []), pa.int64())
        return positions.combine_chunks().sort()


def deleted_schema(plan: DeltaPlan) -> pa.Schema:
    """Return the schema of deleted keys: the columns that identify and order changes."""
    names = dict.fromkeys((*plan.keys, *plan.sequence_by))
    return pa.schema([plan.schema.field(name).with_nullable(True) for name in names])


def deleted_keys(plan: DeltaPlan, rows: pa.Table) -> pa.Table:
    """Return the deleted keys of some rows, as files have them.

    Args:
        plan: how the files are written.
        rows: with the columns of `deleted_schema`, and others.
    """
    schema = deleted_schema(plan)
    batches = rows.select(schema.names).combine_chunks().to_batches()
    return pa.Table.from_batches([conform(batch, schema) for batch in batches], schema)


def _with_names(plan: DeltaPlan, rows: pa.Table, others: Sequence[str] = ()) -> pa.Table:
    """Return keys, order and other columns of changes, with the names that the table has."""
    orders = {f"{ORDER}{n}": name for n, name in enumerate(plan.sequence_by)}
    new = {order: name for order, name in orders.items() if name not in plan.keys}
    columns = [*plan.keys, *new, *others]
    return rows.select(columns).rename_columns([new.get(name, name) for name in columns])


def _with_positions(rows: pa.Table, file: pa.Array, pos: pa.Array) -> pa.Table:
    return rows.append_column(FILE, file).append_column(POS, pos)


def _no_positions(count: int) -> tuple[pa.Array, pa.Array]:
    return pa.repeat(pa.scalar(-1, pa.int32()), count), pa.repeat(pa.scalar(-1, pa.int64()), count)


def _partition_columns(rows: pa.Table) -> list[str]:
    return [PARTITION] if PARTITION in rows.column_names else []
