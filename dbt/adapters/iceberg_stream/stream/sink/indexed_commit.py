"""The files of a commit whose deletes a key index has located."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.stream.key_index.changed_keys import FileDeletes, IndexedBatch
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import DeletedKeysUpdate
from dbt.adapters.iceberg_stream.stream.key_index.index import KeyIndex
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import SnapshotFile


@dataclass
class IndexedCommit:
    """The files of pending batches, and of the rows that they delete.

    Attributes:
        batches: the batches in the index.
        data: the data files that the commit adds, by location.
        deletes: all deleted rows of the data files that lose rows.
        delete_files: the delete files that the commit adds.
        removed: data files without live rows, and delete files that newer ones replace.
        unused: locations of the batches' data files that have no live rows.
    """

    batches: Sequence[IndexedBatch]
    data: dict[str, DataFile]
    deletes: Sequence[FileDeletes]
    delete_files: dict[str, DataFile] = field(default_factory=dict)
    removed: list[DataFile] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    @property
    def added(self) -> tuple[AddedFiles, ...]:
        """All new files. They share a sequence number: deletes by position need no order."""
        if not self.data and not self.delete_files:
            return ()
        return (AddedFiles(tuple(self.data.values()), tuple(self.delete_files.values())),)

    def record(
        self,
        index: KeyIndex,
        snapshot_id: int | None,
        deleted_keys: DeletedKeysUpdate | None = None,
    ) -> None:
        """Record in the index that the commit was made.

        Args:
            index: the index.
            snapshot_id: of the commit; None if it changes nothing.
            deleted_keys: the files of deleted keys after it; None if they stay as they are.
        """
        files = {path: SnapshotFile(file) for path, file in self.data.items()}
        for item in self.deletes:
            delete = self.delete_files.get(item.location)
            if delete is not None:
                before = item.snapshot_file
                file = self.data[item.location] if before is None else before.file
                shared = [] if before is None else before.shared_deletes
                number = None if before is None else before.sequence_number
                files[item.location] = SnapshotFile(file, [delete], shared, number)
        index.committed(self.batches, snapshot_id, files, self.deletes, deleted_keys)


def write_indexed_deletes(
    write: Callable[[Sequence[tuple[DataFile, BitMap]]], dict[str, DataFile]],
    batches: Sequence[IndexedBatch],
    data: Sequence[DataFile],
    deletes: Sequence[FileDeletes],
) -> IndexedCommit:
    """Write a deletion vector or a position delete file for each data file that loses rows.

    It includes the rows that are deleted already, and replaces their delete file. A data file
    without live rows is removed instead.

    Args:
        write: writes the deletes of data files; returns the files by their data file's location.
        batches: the batches in the index.
        data: the batches' data files.
        deletes: all deleted rows of the data files that lose rows.
    """
    commit = IndexedCommit(batches, {file.file_path: file for file in data}, deletes)
    live: list[tuple[DataFile, BitMap]] = []
    for item in deletes:
        before = item.snapshot_file
        file = commit.data[item.location] if before is None else before.file
        has_rows = len(item.positions) < file.record_count
        if has_rows:
            live.append((file, item.positions))
        if before is not None:
            commit.removed += before.own_deletes if has_rows else [file, *before.own_deletes]
        elif not has_rows:
            del commit.data[item.location]
            commit.unused.append(item.location)
    commit.delete_files = write(live)
    return commit
