"""Batches whose files are written and not committed yet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile

from dbt.adapters.iceberg_stream.stream.key_index.changed_keys import ChangedKeys, IndexedBatch
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import Positions
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import Delta
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import FILE, POS, NewData, SubBatch
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile

NO_ROWS = pa.array([], pa.int64())


@dataclass(frozen=True)
class BatchRange:
    """The range `[lower, upper)` of the source that a batch reads, and can read again.

    Attributes:
        lower: the frontier that the batch begins at; None for the source's beginning.
        upper: the frontier that it ends at; None for a batch without any records.
    """

    lower: Frontier | None
    upper: Frontier | None


@dataclass(frozen=True)
class RewrittenFile:
    """A data file of the table that was rewritten without some of its rows.

    Attributes:
        old: the data file.
        new: the file that replaces it; None if no row is left.
    """

    old: DataFile
    new: WrittenFile | None


@dataclass(frozen=True)
class TargetDeletes:
    """Rows of the table that a batch deletes by position or by copy-on-write.

    Attributes:
        snapshot_id: the snapshot that they were located in; None for a table without snapshots.
        positions: positions of rows to delete, by the location of their data file.
        replaced: data files that were rewritten without the rows.
    """

    snapshot_id: int | None
    positions: Positions = field(default_factory=dict)
    replaced: Sequence[RewrittenFile] = ()


@dataclass(frozen=True)
class EarlyDeletes:
    """Deletes whose rows may still come.

    Attributes:
        keys: the deleted keys, each with the time of its delete.
        days: days for which they are kept.
    """

    keys: pa.Table
    days: float


# In the place of a snapshot's id.
NOTHING_READ = -1


@dataclass(frozen=True)
class WrittenBatch:
    """A batch whose files are written.

    Attributes:
        batch_range: the range of the source that it has read.
        deltas: the files of each task.
        first: lowest value of the first `sequence_by` column, as JSON; None without one.
        last: highest value of that column, as JSON; None without one.
        watermark: highest value of that column in this batch and all before, as JSON.
        bad: records that could not be read.
        skipped: records of other types than that which the stream reads.
        truncates: whether all rows of the table are deleted before this batch's are added.
        not_late: whether changes that are older than their rows were left out.
        target_deletes: rows of the table that it deletes; None if equality deletes do.
        indexed: its rows and deletes in the key index; None without one.
        read_from: the table's snapshot with whose rows the changes were computed; None for a table
            without one, NOTHING_READ if they do not depend on rows.
        early_deletes: deletes that are kept for later batches; None if there are none.
    """

    batch_range: BatchRange
    deltas: Sequence[Delta]
    first: Any = None
    last: Any = None
    watermark: Any = None
    bad: int = 0
    skipped: int = 0
    truncates: bool = False
    not_late: bool = False
    target_deletes: TargetDeletes | None = None
    indexed: IndexedBatch | None = None
    read_from: int | None = NOTHING_READ
    early_deletes: EarlyDeletes | None = None

    @property
    def changes(self) -> int:
        """Changes that were read, in all tasks."""
        return sum(delta.changes for delta in self.deltas)

    @property
    def files(self) -> list[str]:
        """Locations of all its files."""
        subs = [sub for delta in self.deltas for sub in delta.sub_batches]
        data = [new.file.location for sub in subs for new in sub.data]
        replaced = self.target_deletes.replaced if self.target_deletes is not None else ()
        data += [file.new.location for file in replaced if file.new is not None]
        return data + self.equality_deletes

    @property
    def equality_deletes(self) -> list[str]:
        """Locations of its equality deletes."""
        subs = [sub for delta in self.deltas for sub in delta.sub_batches]
        return [file.location for sub in subs for file, _ in sub.equality_deletes]

    def by_position(self, target_deletes: TargetDeletes) -> WrittenBatch:
        """Return the batch with deletes by position or copy-on-write in place of equality deletes.

        Args:
            target_deletes: the table's rows that the equality deletes would delete.
        """
        batch = self._map_sub_batches(lambda sub: replace(sub, equality_deletes=[]))
        return replace(batch, target_deletes=target_deletes)

    def with_early_deletes(self, days: float) -> WrittenBatch:
        """Return the batch with the deletes of its sub-batches to keep for later batches.

        Args:
            days: for which they are kept.
        """
        subs = [sub for delta in self.deltas for sub in delta.sub_batches]
        deletes = [sub.deletes for sub in subs if sub.deletes is not None and sub.deletes.num_rows]
        if not deletes:
            return self
        batch = self._map_sub_batches(lambda sub: replace(sub, deletes=None))
        return replace(batch, early_deletes=EarlyDeletes(pa.concat_tables(deletes), days))

    def changed_keys(self) -> list[ChangedKeys]:
        """Return the changed keys of all sub-batches, in their order."""
        changes = []
        for sub in (sub for delta in self.deltas for sub in delta.sub_batches):
            if sub.deletes is not None and sub.deletes.num_rows:
                changes.append(ChangedKeys.of_deletes(sub.deletes))
            if sub.changed_keys is not None:
                changes.append(
                    ChangedKeys(
                        sub.changed_keys.drop_columns([FILE, POS]),
                        sub.changed_keys[FILE].combine_chunks(),
                        sub.changed_keys[POS].combine_chunks(),
                        [new.file.location for new in sub.data],
                        [new.dead for new in sub.data],
                    )
                )
        return changes

    def with_index(self, indexed: IndexedBatch) -> WrittenBatch:
        """Return the batch without its changed keys, which a key index has.

        Args:
            indexed: the batch in the index.
        """
        batch = self._map_sub_batches(lambda sub: replace(sub, changed_keys=None, deletes=None))
        return replace(batch, indexed=indexed)

    def with_files(self, replacements: Mapping[str, WrittenFile | None]) -> WrittenBatch:
        """Return the batch with some of its data files replaced by files without dead rows.

        Args:
            replacements: the new files by the locations of the old ones; None if no row is left.
        """

        def with_replacements(sub: SubBatch) -> SubBatch:
            data = []
            for new in sub.data:
                file = replacements.get(new.file.location, new.file)
                if file is not None:
                    dead = new.dead if file is new.file else NO_ROWS
                    data.append(NewData(file, new.partition, dead))
            return replace(sub, data=data)

        return self._map_sub_batches(with_replacements)

    def _map_sub_batches(self, change: Callable[[SubBatch], SubBatch]) -> WrittenBatch:
        deltas = [
            replace(delta, sub_batches=[change(sub) for sub in delta.sub_batches])
            for delta in self.deltas
        ]
        return replace(self, deltas=deltas)

    def sub_batches(self) -> Iterator[SubBatch]:
        """Yield the files of each data sequence number, in order.

        Tasks have different keys, so that their n-th sub-batches share a data sequence number.
        """
        for group in itertools.zip_longest(*(delta.sub_batches for delta in self.deltas)):
            merged = SubBatch()
            for sub_batch in group:
                if sub_batch is not None:
                    merged.data += sub_batch.data
                    merged.equality_deletes += sub_batch.equality_deletes
            if merged.data or merged.equality_deletes:
                yield merged
