"""Decides whether rows may be written after other writers have committed.

Article on the write contract, "Conflict Resolution": the read set of the rows decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
from dbt.adapters.iceberg_stream.catalog.errors import TableChanged
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet


@dataclass(frozen=True)
class ReadCheck:
    """The rows of one write, by what was read to compute them.

    Attributes:
        catalogs: the catalogs of the tables.
        table: the table to which they are written.
        read_set: what was read; None if that is unknown.
    """

    catalogs: Catalogs
    table: QualifiedName
    read_set: ReadSet | None

    @property
    def reads_target(self) -> bool:
        """Whether the rows were computed from the table to which they are written."""
        return self.read_set is not None and self.table in self.read_set.versions

    def check_attempt(self, metadata: Metadata | None) -> None:
        """Check an attempt to commit the rows.

        Args:
            metadata: what the table has in this attempt; None if it does not exist.

        Raises:
            TableChanged: the rows were computed from the table, which has changed.
        """
        if self.read_set is not None and self.read_set.has_changed(self.table, metadata):
            raise TableChanged(changed_message(self.table))

    def check_repetition(self) -> None:
        """Check whether a write that conflicts may be repeated with the same rows.

        Raises:
            TableChanged: a table that was read has changed, or it is unknown what was read.
        """
        if self.read_set is None:
            raise TableChanged(
                f"The write to {'.'.join(self.table)} conflicts with another writer's; nothing of "
                "it is visible. It was not repeated, because the adapter does not know which "
                "tables its rows were computed from. Run the model again."
            )
        if (changed := self.read_set.changed(self.catalogs)) is not None:
            raise TableChanged(changed_message(changed))


def changed_message(table: QualifiedName) -> str:
    """Return what to say of rows that are computed from a table that has changed since.

    Args:
        table: the table.
    """
    return (
        f"{'.'.join(table)} has changed, and the rows were computed from it. The commit conflicts "
        "with another writer's; nothing of it is visible. Run the model again."
    )
