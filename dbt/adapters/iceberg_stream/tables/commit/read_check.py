"""Decides whether rows may be written after other writers have committed.

Article on the write contract, "Conflict Resolution": the read set of the rows decides.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
from dbt.adapters.iceberg_stream.catalog.errors import TableChanged
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet

NOTHING = ReadSet({})


@dataclass(frozen=True)
class ReadCheck:
    """The rows of one write, by what was read to compute them.

    Attributes:
        catalogs: the catalogs of the tables.
        table: the table to which they are written.
        read_set: what the statement read.
        queried: the table, in the version that earlier queries of the same model read.
    """

    catalogs: Catalogs
    table: QualifiedName
    read_set: ReadSet
    queried: ReadSet = NOTHING

    @property
    def reads(self) -> Collection[QualifiedName]:
        """The tables and views that are known to have been read."""
        return {*self.read_set.versions, *self.queried.versions}

    @property
    def reads_target(self) -> bool:
        """Whether the rows were computed from the table to which they are written."""
        return self.table in self.reads

    def check_queried(self) -> None:
        """Check that what earlier queries read is still there.

        Raises:
            TableChanged: the table has changed.
        """
        if (changed := self.queried.changed(self.catalogs)) is not None:
            raise TableChanged(self.message(changed))

    def check_attempt(self, metadata: Metadata | None) -> None:
        """Check an attempt to commit the rows.

        Args:
            metadata: what the table has in this attempt; None if it does not exist.

        Raises:
            TableChanged: the rows were computed from the table, which has changed.
        """
        for read_set in (self.read_set, self.queried):
            if read_set.has_changed(self.table, metadata):
                raise TableChanged(self.message(self.table))

    def check_repetition(self) -> None:
        """Check whether a write that conflicts may be repeated with the same rows.

        Raises:
            TableChanged: a table that was read has changed, or it is unknown what was read.
        """
        if (changed := self.changed()) is not None:
            raise TableChanged(self.message(changed))
        if not self.read_set.is_complete:
            raise TableChanged(
                f"The write to {'.'.join(self.table)} conflicts with another writer's; nothing of "
                "it is visible. It was not repeated, because the adapter does not know which "
                "tables its rows were computed from. Run the model again."
            )

    def changed(self) -> QualifiedName | None:
        """Return a table or view that has changed since it was read; None if none is known."""
        read_sets = (self.read_set, self.queried)
        return next(filter(None, (each.changed(self.catalogs) for each in read_sets)), None)

    def message(self, table: QualifiedName) -> str:
        """Return what to say of rows that were computed from a table that has changed since.

        Args:
            table: the table.
        """
        advice = "Run the model again."
        if self.read_set.written or self.queried.written:
            advice = (
                "The model's earlier statements are committed: look at the table before you run "
                "the model again."
            )
        return (
            f"{'.'.join(table)} has changed, and the rows were computed from it. The commit "
            f"conflicts with another writer's; nothing of it is visible. {advice}"
        )
