"""Commits of a stream between those of its changes: they change no row of its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.compaction.deleted_rows import rewrite_deleted_rows
from dbt.adapters.iceberg_stream.tables.compaction.rewrite import Compaction
from dbt.adapters.iceberg_stream.tables.compaction.small_files import (
    BYTES_AT_ONCE,
    merge_small_files,
)
from dbt.adapters.iceberg_stream.tables.deletes.conversion import (
    convert_equality_deletes,
    rows_to_read,
)


@dataclass(frozen=True)
class MaintenanceCommit:
    """What a commit of maintenance needs; meanwhile the stream commits nothing else.

    Attributes:
        properties: of the snapshot.
        check: raises Fenced if another run has taken over, for the metadata of an attempt.
        follow: lets the key index follow a commit.
    """

    properties: Mapping[str, str]
    check: Callable[[Metadata], None]
    follow: Callable[[], None]


@dataclass(frozen=True)
class SinkMaintenance:
    """Maintains the table of a sink.

    Attributes:
        catalog: the catalog, as the stream's user.
        name: of the table.
        paused: pauses the stream's own commits; None if the next one replaces all rows anyway.
    """

    catalog: IcebergCatalog
    name: Name
    paused: Callable[[], AbstractContextManager[MaintenanceCommit | None]]

    def merge_small_files(self, most_bytes: int = BYTES_AT_ONCE) -> bool:
        """Merge small data files that commits have left, if there are enough of them.

        Args:
            most_bytes: size of the files that are merged, at most.

        Returns:
            Whether files were merged.

        Raises:
            Fenced: another run has taken over.
            UnsupportedFile, NotByRewriting, ColumnError, CatalogError, CommitStateUnknown, OSError:
                as for `tables.compaction`.
        """
        return self._compact(merge_small_files, most_bytes)

    def rewrite_deleted_rows(self, most_bytes: int = BYTES_AT_ONCE) -> bool:
        """Write data files again whose rows are mostly deleted.

        Args:
            most_bytes: size of the files that are written again, at most.

        Returns:
            Whether files were written again.

        Raises:
            The errors of `merge_small_files`.
        """
        return self._compact(rewrite_deleted_rows, most_bytes)

    def _compact(self, step: Callable[..., Compaction | None], most_bytes: int) -> bool:
        with self.paused() as commit:
            if commit is None or not step(
                self.catalog, self.name, commit.properties, commit.check, most_bytes
            ):
                return False
            commit.follow()
            return True

    def convert_equality_deletes(self, most_rows: int) -> int:
        """Convert the table's equality deletes to deletes by position, unless too much is read.

        Args:
            most_rows: rows of data files and delete files that are read, at most.

        Returns:
            Rows that are too many to read; 0 if the table has no equality deletes any more.

        Raises:
            Fenced: another run has taken over.
            NotConvertible, CatalogError, CommitStateUnknown, OSError: as for `tables.deletes`.
        """
        with self.paused() as commit:
            table = None if commit is None else self.catalog.load(self.name, history=False)
            if commit is None or table is None:
                return 0
            rows = rows_to_read(table)
            if not 0 < rows <= most_rows:
                return rows
            convert_equality_deletes(self.catalog, self.name, commit.properties, commit.check)
            return 0
