"""What a snapshot changes, and what must still hold when it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.tables import MAIN


@dataclass(frozen=True)
class AddedFiles:
    """New files that share a data sequence number.

    Attributes:
        data: data files.
        deletes: position deletes, deletion vectors and equality deletes.
        sequence_number: of the rows that the files hold, where they are not new (spec, "Sequence
            Numbers"); None for the commit's own.
    """

    data: tuple[DataFile, ...] = ()
    deletes: tuple[DataFile, ...] = ()
    sequence_number: int | None = None


@dataclass(frozen=True)
class Validation:
    """What the writer read, and what must not have come since.

    Attributes:
        since: the snapshot that was read; None for an empty table.
        conflicts: whether a data file that another writer added holds what this one had to see.
        new_deletes: whether deletes of rows in removed files are a conflict; they would come back.
    """

    since: int | None
    conflicts: Callable[[DataFile], bool] | None = None
    new_deletes: bool = True


@dataclass(frozen=True)
class Change:
    """One snapshot.

    Attributes:
        operation: append, overwrite, delete, or replace where no row changes.
        added: several sets get several data sequence numbers, in their order.
        removed: data and delete files that are no longer there.
        removes_all: the table's whole content is replaced.
        properties: stamps, for the snapshot's summary.
        branch: where to.
    """

    operation: Operation
    added: tuple[AddedFiles, ...] = ()
    removed: tuple[DataFile, ...] = ()
    removes_all: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    validation: Validation | None = None
    branch: str = MAIN

    @property
    def new_files(self) -> list[DataFile]:
        """All files that the snapshot adds."""
        return [file for added in self.added for file in (*added.data, *added.deletes)]


def append(*files: DataFile, properties: Mapping[str, str], branch: str = MAIN) -> Change:
    """New rows; conflicts with nobody."""
    return Change(Operation.APPEND, (AddedFiles(files),), properties=properties, branch=branch)
