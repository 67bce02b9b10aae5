"""What the queries of a node have read, and what the node itself has written since."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.tables.commit.read_check import NOTHING
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet


class OwnReads:
    """The versions that the queries of one node have read of its own table.

    Args:
        catalogs: the catalogs of the tables.
    """

    def __init__(self, catalogs: Catalogs) -> None:
        self._catalogs = catalogs
        self._queried = self._outside = NOTHING
        self._written: set[int] = set()

    @property
    def read_set(self) -> ReadSet:
        """What was read, by the hook that runs or else by the node."""
        return replace(self._queried, written=frozenset(self._written))

    def note(self, read_set: ReadSet) -> None:
        """Note what a query has read.

        Args:
            read_set: what it has read.
        """
        # Rows of an earlier query are older.
        self._queried = read_set | self._queried

    def begin_hook(self) -> None:
        """Begin a hook: its statements depend on its own queries, and not on the node's."""
        self._queried, self._outside = NOTHING, self._queried

    def end_hook(self) -> None:
        """End a hook."""
        self._queried, self._outside = self._outside, NOTHING

    def forget(self) -> None:
        """Forget the node."""
        self._queried = self._outside = NOTHING
        self._written.clear()

    def on_write(
        self, table: QualifiedName, alters: bool, replaces: bool, snapshot_id: int | None
    ) -> None:
        """Note a write of the node.

        Args:
            table: the table.
            alters: whether it has changed columns or properties, and no rows.
            replaces: whether there is another table now, or none.
            snapshot_id: the snapshot that it has committed.
        """
        if snapshot_id is not None:
            self._written.add(snapshot_id)
        if alters or replaces:
            self._queried = self._after_change(self._queried, table, replaces)
            self._outside = self._after_change(self._outside, table, replaces)
        self.follow()

    def follow(self) -> None:
        """Take the current version for what was read, if only the node has written since.

        Later statements may expire the snapshots that show it.
        """
        self._queried, self._outside = self._follow(self._queried), self._follow(self._outside)

    def _follow(self, queried: ReadSet) -> ReadSet:
        for name in queried.versions:
            with suppress(CatalogError):
                metadata = self._catalogs.metadata(name)
                known = replace(queried, written=frozenset(self._written))
                if metadata is not None and not known.has_changed(name, metadata):
                    queried = queried.at_version(name, metadata)
        return queried

    def _after_change(self, queried: ReadSet, table: QualifiedName, replaces: bool) -> ReadSet:
        if table not in queried.versions:
            return queried
        metadata = None if replaces else self._catalogs.metadata(table, history=False)
        if metadata is None:
            return queried.only(name for name in queried.versions if name != table)
        return queried.with_schema(table, metadata)
