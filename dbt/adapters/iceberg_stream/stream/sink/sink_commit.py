"""A prepared commit of a stream's batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, TableRequirement

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.errors import RowsMoved
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import DeletedKeysUpdate
from dbt.adapters.iceberg_stream.stream.sink.frontier_chain import FrontierChain
from dbt.adapters.iceberg_stream.stream.sink.indexed_commit import IndexedCommit
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot


@dataclass(frozen=True)
class SinkCommit:
    """A commit to a stream's table that is prepared but not made yet.

    Attributes:
        committer: makes the commit.
        ahead: the progress after it.
        summaries: the chain of summaries after it.
        deletes: locations of the deletes by position that were written for it.
        indexed: its files, if a key index has located its deletes.
        deleted_keys: the files of deleted keys after it; None if they stay as they are.
    """

    committer: Committer
    ahead: Progress
    summaries: FrontierChain
    deletes: Sequence[str] = ()
    indexed: IndexedCommit | None = None
    deleted_keys: DeletedKeysUpdate | None = None

    def commit(self, remove: Callable[[Sequence[str]], None]) -> Committed:
        """Make the commit.

        Args:
            remove: removes files by their locations.

        Raises:
            RowsMoved: the located rows are not those of the current snapshot; the batches' files
                stay, for another commit.
            CatalogError, CommitStateUnknown, OSError: as for `Committer.commit`.
        """
        try:
            return self.committer.commit()
        except RowsMoved:
            remove(self.deletes)
            self._remove_deleted_keys(remove)
            raise
        except (CatalogError, OSError) as error:
            if self.indexed is not None:
                remove(self.indexed.unused)
            if not isinstance(error, CommitStateUnknown):
                self._remove_deleted_keys(remove)
            raise

    def give_up(self, remove: Callable[[Sequence[str]], None]) -> None:
        """Remove all files of the commit.

        Args:
            remove: removes files by their locations.
        """
        self.committer.give_up()
        if self.indexed is not None:
            remove(self.indexed.unused)
        self._remove_deleted_keys(remove)

    def _remove_deleted_keys(self, remove: Callable[[Sequence[str]], None]) -> None:
        if self.deleted_keys is not None:
            remove(self.deleted_keys.added)


def unchanged(base: LoadedTable) -> tuple[TableRequirement, ...]:
    """Return requirements that no other writer has committed to a table.

    Args:
        base: the table as it was read.
    """
    parent = parent_snapshot(base.metadata, MAIN)
    reference = {"ref": MAIN, "snapshot-id": parent and parent["snapshot-id"]}
    return (
        AssertTableUUID(uuid=base.metadata["table-uuid"]),
        AssertRefSnapshotId.model_validate(reference),
    )


def operation_of(
    added: Sequence[AddedFiles], removed: Sequence[DataFile], replaces: bool
) -> Operation:
    """Return the operation of a snapshot (Iceberg spec, "Snapshots").

    Args:
        added: the files that it adds.
        removed: the files that it removes.
        replaces: whether it removes all files of the table.
    """
    data = any(files.data for files in added)
    deletes = any(files.deletes for files in added) or bool(removed)
    if replaces or (data and deletes):
        return Operation.OVERWRITE
    return Operation.DELETE if deletes else Operation.APPEND
