"""The changed keys of a batch, and the rows that they delete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.stream.key_index.key_partitions import KeyPartition
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import SnapshotFile
from dbt.adapters.iceberg_stream.tables.keys.codes import Mask


@dataclass(frozen=True)
class ChangedKeys:
    """The last change of each key in some new data files.

    Attributes:
        keys: the key columns, and the `sequence_by` columns where late changes are looked for.
        files: the position in `locations` of the file with the key's row; -1 for a deleted key.
        positions: of the key's row in its file.
        locations: of the new data files.
        deleted: positions of rows in each new file that a later change of the same key replaces.
    """

    keys: pa.Table
    files: pa.Array
    positions: pa.Array
    locations: Sequence[str]
    deleted: Sequence[pa.Array]

    @staticmethod
    def of_deletes(keys: pa.Table) -> ChangedKeys:
        """Return deletes that newer changes of their batch overtake.

        Args:
            keys: the keys, with the `sequence_by` columns of the deletes.
        """
        nowhere = pa.repeat(pa.scalar(-1, pa.int64()), keys.num_rows)
        return ChangedKeys(keys, nowhere.cast(pa.int32()), nowhere, [], [])

    def without(self, late: Mask) -> ChangedKeys:
        """Return the changes without some of them, whose rows are deleted.

        Args:
            late: which changes are left out.
        """
        mask = pa.array(late)
        files, positions = self.files.filter(mask), self.positions.filter(mask)
        deleted = [
            pa.concat_arrays([before, positions.filter(pc.equal(files, number))])
            for number, before in enumerate(self.deleted)
        ]
        kept = pa.array(~late)
        return ChangedKeys(
            self.keys.filter(kept),
            self.files.filter(kept),
            self.positions.filter(kept),
            self.locations,
            deleted,
        )


@dataclass
class IndexedBatch:
    """A batch whose rows are in the index, and not in the snapshot yet.

    Attributes:
        deletes: positions of rows to delete, by the number of their data file.
        numbers: of its new data files, by location.
        deleted_keys: number that the entries of its deleted keys have in place of a file's; batches
            of a commit share it.
        deleted: its deleted keys with their order, where late changes are looked for.
        joins: whether it is in the same commit as the batch before it.
        partitions: of its keys, if the index does not have the whole table.
    """

    deletes: dict[int, BitMap] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    deleted_keys: int = 0
    deleted: list[pa.Table] = field(default_factory=list)
    joins: bool = False
    partitions: set[KeyPartition] = field(default_factory=set)


@dataclass(frozen=True)
class FileDeletes:
    """All rows of a data file that are deleted after a commit.

    Attributes:
        location: of the data file.
        positions: of all its deleted rows.
        snapshot_file: the file in the snapshot; None for a file that the commit adds.
    """

    location: str
    positions: BitMap
    snapshot_file: SnapshotFile | None
