"""A batch whose files are written, and wait to be committed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile

from dbt.adapters.iceberg_stream.stream.row_deltas.positions import Positions
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import Delta
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import NewData, SubBatch
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile

NO_ROWS = pa.array([], pa.int64())


@dataclass(frozen=True)
class BatchRange:
    """A batch, `[lower, upper)` of the source: what is needed to write it, and to do so again."""

    lower: Frontier | None
    upper: Frontier | None


@dataclass(frozen=True)
class RewrittenFile:
    """A data file of the table that has lost rows, and what is in its place, if a row is left."""

    old: DataFile
    made: WrittenFile | None


@dataclass(frozen=True)
class TargetDeletes:
    """Rows of the table that a batch deletes.

    Attributes:
        snapshot_id: where they were found.
        positions: where they are to be deleted.
        replaced: files that have lost them already.
    """

    snapshot_id: int | None
    positions: Positions = field(default_factory=dict)
    replaced: Sequence[RewrittenFile] = ()


@dataclass(frozen=True)
class WrittenBatch:
    """A batch whose files are written.

    Attributes:
        batch_range: which part of the source it is.
        deltas: what each task has made.
        first, last: bounds of what orders its changes, as JSON; None where nothing does.
        watermark: the highest value of it, of this batch and all before.
        bad: records that could not be read.
        truncates: whether all rows go before this batch's come.
        not_late: whether changes that are older than their rows were left out.
        target_deletes: rows of the table that it deletes, where that is not told by their keys.
    """

    batch_range: BatchRange
    deltas: Sequence[Delta]
    first: Any = None
    last: Any = None
    watermark: Any = None
    bad: int = 0
    truncates: bool = False
    not_late: bool = False
    target_deletes: TargetDeletes | None = None

    @property
    def changes(self) -> int:
        return sum(delta.changes for delta in self.deltas)

    @property
    def files(self) -> list[str]:
        """Locations of all its files."""
        subs = [sub for delta in self.deltas for sub in delta.sub_batches]
        data = [made.file.location for sub in subs for made in sub.data]
        replaced = self.target_deletes.replaced if self.target_deletes is not None else ()
        data += [one.made.location for one in replaced if one.made is not None]
        return data + self.equality_deletes

    @property
    def equality_deletes(self) -> list[str]:
        """Locations of its equality deletes."""
        subs = [sub for delta in self.deltas for sub in delta.sub_batches]
        return [file.location for sub in subs for file, _ in sub.equality_deletes]

    def by_position(self, target_deletes: TargetDeletes) -> WrittenBatch:
        """The same, with rows that were found in place of equality deletes."""
        found = self._with(lambda sub: replace(sub, equality_deletes=[]))
        return replace(found, target_deletes=target_deletes)

    def with_files(self, instead: Mapping[str, WrittenFile | None]) -> WrittenBatch:
        """The same with files without dead rows in place of some, known by their locations."""

        def changed(sub: SubBatch) -> SubBatch:
            data = []
            for new in sub.data:
                file = instead.get(new.file.location, new.file)
                if file is not None:
                    dead = new.dead if file is new.file else NO_ROWS
                    data.append(NewData(file, new.partition, dead))
            return replace(sub, data=data)

        return self._with(changed)

    def _with(self, change: Callable[[SubBatch], SubBatch]) -> WrittenBatch:
        deltas = [
            replace(delta, sub_batches=[change(sub) for sub in delta.sub_batches])
            for delta in self.deltas
        ]
        return replace(self, deltas=deltas)

    def sub_batches(self) -> Iterator[SubBatch]:
        """Tasks have different keys: their n-th sub-batches share a data sequence number."""
        for together in itertools.zip_longest(*(delta.sub_batches for delta in self.deltas)):
            merged = SubBatch()
            for one in together:
                if one is not None:
                    merged.data += one.data
                    merged.equality_deletes += one.equality_deletes
            if merged.data or merged.equality_deletes:
                yield merged
