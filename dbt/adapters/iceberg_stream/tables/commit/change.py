"""The change that a snapshot commits, and its validation against concurrent commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN


@dataclass(frozen=True)
class AddedFiles:
    """New files that share a data sequence number.

    Attributes:
        data: data files.
        deletes: position deletes, deletion vectors and equality deletes.
        sequence_number: data sequence number of rows that are not new (spec, "Sequence
            Numbers"), whose row ids stay, too; None for the commit's own.
    """

    data: tuple[DataFile, ...] = ()
    deletes: tuple[DataFile, ...] = ()
    sequence_number: int | None = None


@dataclass(frozen=True)
class Validation:
    """Which concurrent changes conflict with the writer's.

    Attributes:
        since: the snapshot that the writer read; None for an empty table.
        conflicts: returns whether a data file that another writer added conflicts; None if none
            does.
        new_deletes: whether deletes of rows in removed files conflict: the commit would bring the
            rows back.
        located: locations of data files whose rows the write deletes by position. They must stay,
            and get no other deletes.
        lacks_row_ids: whether files that the write changes had no row ids when it read them. In
            format version 3 each commit gives ids to their rows, which keep them.
    """

    since: int | None
    conflicts: Callable[[DataFile], bool] | None = None
    new_deletes: bool = True
    located: frozenset[str] = frozenset()
    lacks_row_ids: bool = False


@dataclass(frozen=True)
class Change:
    """The change of one snapshot.

    Attributes:
        operation: append, overwrite, delete, or replace if no row changes.
        added: sets of new files; several sets get ascending data sequence numbers.
        removed: data and delete files that the snapshot removes.
        removes_all: whether the snapshot removes all files of the table.
        properties: snapshot properties.
        validation: which concurrent changes conflict; None if none does.
        branch: the branch that gets the snapshot.
        merges_manifests: whether the snapshot merges small manifests, however few there are.
        is_staged: whether only the snapshot is added: no branch gets it, and readers who know its
            id read it.
        next_row_id: beyond the row ids that the added files have.
    """

    operation: Operation
    added: tuple[AddedFiles, ...] = ()
    removed: tuple[DataFile, ...] = ()
    removes_all: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    validation: Validation | None = None
    branch: str = MAIN
    merges_manifests: bool = False
    is_staged: bool = False
    next_row_id: int = 0

    @property
    def new_files(self) -> list[DataFile]:
        """All files that the snapshot adds."""
        return [file for added in self.added for file in (*added.data, *added.deletes)]


def append(*files: DataFile, properties: Mapping[str, str], branch: str = MAIN) -> Change:
    """Return a change that appends data files; it conflicts with no other commit.

    Args:
        files: the data files.
        properties: snapshot properties.
        branch: the branch that gets the snapshot.
    """
    return Change(Operation.APPEND, (AddedFiles(files),), properties=properties, branch=branch)
