"""A batch whose files are written, and wait to be committed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dbt.adapters.iceberg_stream.stream.positions import Positions
from dbt.adapters.iceberg_stream.stream.progress import Frontier
from dbt.adapters.iceberg_stream.stream.row_delta import Delta
from dbt.adapters.iceberg_stream.stream.sub_batch import SubBatch


@dataclass(frozen=True)
class Located:
    """Rows of the table that a batch deletes: their positions, and the snapshot they are of."""

    positions: Positions
    snapshot_id: int | None


@dataclass(frozen=True)
class WrittenBatch:
    """A batch whose files are written: `[lower, upper)` of the source, and what each task made."""

    upper: Frontier
    deltas: Sequence[Delta]
    watermark: Any = None
    truncates: bool = False
    located: Located | None = None

    @property
    def changes(self) -> int:
        return sum(delta.changes for delta in self.deltas)

    @property
    def files(self) -> list[str]:
        """Locations of all its files."""
        subs = [sub for delta in self.deltas for sub in delta.sub_batches]
        data = [made.file.location for sub in subs for made in sub.data]
        return data + [file.location for sub in subs for file, _ in sub.equality_deletes]

    @property
    def equality_deletes(self) -> list[str]:
        """Locations of its equality deletes."""
        subs = [sub for delta in self.deltas for sub in delta.sub_batches]
        return [file.location for sub in subs for file, _ in sub.equality_deletes]

    def by_position(self, located: Located) -> WrittenBatch:
        """The same, with positions in place of equality deletes."""
        deltas = [
            replace(delta, sub_batches=[replace(s, equality_deletes=[]) for s in delta.sub_batches])
            for delta in self.deltas
        ]
        return replace(self, deltas=deltas, located=located)

    def sub_batches(self) -> Iterator[SubBatch]:
        """Tasks have different keys: their n-th sub-batches share a data sequence number."""
        for together in itertools.zip_longest(*(delta.sub_batches for delta in self.deltas)):
            merged = SubBatch()
            for one in together:
                if one is not None:
                    merged.data += one.data
                    merged.equality_deletes += one.equality_deletes
            yield merged
