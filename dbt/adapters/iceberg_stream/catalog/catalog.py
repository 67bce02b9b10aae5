"""What the Iceberg catalog knows: namespaces, tables, views, columns, statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.catalog.backend import (
    COMMITS_TOGETHER,
    TABLE_DEFAULTS,
    CatalogBackend,
)
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import (
    Column,
    Metadata,
    SnapshotSummary,
    columns,
    current_snapshot,
    snapshots,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, TableCommit

Name = tuple[str, str]


@dataclass(frozen=True)
class Description:
    """A table or view as the docs show it."""

    name: Name
    kind: str
    comment: str | None
    columns: list[Column]
    statistics: dict[str, tuple[str, str | int]]


class IcebergCatalog:
    """One Iceberg catalog, opened once for a dbt invocation and shared by its threads.

    What is read comes from the catalog's current metadata; PyIceberg's own table is for changes.
    """

    def __init__(self, name: str, backend: CatalogBackend) -> None:
        self.name = name
        self._backend = backend

    @property
    def pyiceberg(self) -> Catalog:
        """PyIceberg's client of the catalog."""
        return self._backend.catalog

    def close(self) -> None:
        self._backend.close()

    def namespaces(self) -> list[str]:
        return self._backend.namespaces()

    def namespace_exists(self, namespace: str) -> bool:
        return self._backend.namespace_exists(namespace)

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace; one that is there, or that another run makes now, is kept."""
        self._backend.create_namespace(namespace)

    def drop_namespace(self, namespace: str) -> None:
        """Drop an empty namespace; a missing one is fine."""
        self._backend.drop_namespace(namespace)

    def relations(self, namespace: str) -> list[tuple[str, str]]:
        """Names and kinds (`table` or `view`) in a namespace; none where it is missing."""
        return self._backend.relations(namespace)

    def metadata(self, name: Name) -> Metadata | None:
        """Current metadata of a table or view; None if there is neither."""
        return self._backend.metadata(*name)

    def load(self, name: Name, history: bool = True) -> LoadedTable | None:
        """The table as it is now, None if there is none.

        Without its history it may lack the snapshots that no branch or tag points to, which takes
        a catalog on a server less time the more of them there are.
        """
        return self._backend.load(*name, history=history)

    def stage(
        self,
        name: Name,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
    ) -> LoadedTable:
        """A table that its first commit will make, rows included."""
        return self._backend.stage(*name, schema, spec, {**TABLE_DEFAULTS, **properties})

    def commit(
        self,
        base: LoadedTable,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
    ) -> None:
        """Change a table in one step; raises CommitConflict or CommitStateUnknown."""
        self._backend.commit(base, requirements, updates)

    def commit_all(self, commits: Sequence[TableCommit]) -> None:
        """Change tables, all in one step; raises CommitConflict or CommitStateUnknown."""
        if len(commits) == 1:
            self.commit(commits[0].base, commits[0].requirements, commits[0].updates)
        else:
            self._backend.commit_all(commits)

    @property
    def commits_together(self) -> bool:
        """Whether the catalog can change several tables in one step."""
        return self.capabilities().get(COMMITS_TOGETHER, False)

    def drop(self, name: Name) -> None:
        """Drop a table or view with its files; a missing one is fine."""
        self._backend.drop(*name)

    def capabilities(self) -> dict[str, bool]:
        """What not every catalog has, and whether this one does; empty if it does not tell."""
        return self._backend.capabilities()

    def require_views(self) -> None:
        """Raise CatalogError if the catalog says that it has no views."""
        if not self.capabilities().get("views", True):
            raise CatalogError(
                f"The catalog `{self.name}` has no views. Materialize the model as a table, or as "
                "ephemeral. If it has views and does not say so, put "
                "`view-endpoints-supported: true` into `catalog_properties`."
            )

    def check_write(self, name: Name, rows_only: bool = False) -> None:
        """Raise CatalogError if the user may not write to a table; a missing one is fine.

        Args:
            rows_only: the write changes neither schema nor properties.
        """
        self._backend.check_write(*name, rows_only=rows_only)

    def table(self, name: Name) -> Table:
        """The table as it is now.

        Raises:
            NoSuchTableError: there is none.
        """
        return self._backend.ask(f"read {'.'.join(name)}", lambda c: c.load_table(name))

    def columns(self, name: Name) -> list[Column]:
        """Columns of a table or view; none if there is neither."""
        metadata = self.metadata(name)
        return [] if metadata is None else columns(metadata)

    def comment(self, name: Name) -> str | None:
        """The comment of a table or view."""
        metadata = self.metadata(name)
        return None if metadata is None else _comment(metadata)

    def snapshots(self, name: Name) -> Iterator[SnapshotSummary]:
        """Snapshots of a table, newest first; none if there is no such table."""
        metadata = self.metadata(name)
        return iter(()) if metadata is None else snapshots(metadata)

    def require_columns(self, name: Name, columns: list[str]) -> None:
        """Make optional columns required. The caller has checked that they hold no null."""
        table = self.table(name)
        optional = [c for c in columns if not table.schema().find_field(c).required]

        def require(_: Catalog) -> None:
            with table.update_schema(allow_incompatible_changes=True) as update:
                for column in optional:
                    update.update_column(column, required=True)

        if optional:
            self._backend.ask(f"change {'.'.join(name)}", require)

    def last_modified(self, name: Name) -> datetime | None:
        """When the current snapshot was committed (UTC); None for a table never written.

        Raises:
            LookupError: there is no such table.
        """
        metadata = self.metadata(name)
        if metadata is None:
            raise LookupError(f"There is no table {'.'.join(name)} in the catalog {self.name}.")
        snapshot = current_snapshot(metadata)
        return None if snapshot is None else _utc(snapshot.timestamp_ms)

    def describe(self, namespace: str) -> Iterator[Description]:
        """All tables and views of a namespace with columns and statistics."""
        for identifier, kind in self.relations(namespace):
            found = self.describe_one((namespace, identifier), kind)
            if found is not None:
                yield found

    def describe_one(self, name: Name, kind: str) -> Description | None:
        """One table or view; None if another run has dropped it meanwhile."""
        metadata = self.metadata(name)
        if metadata is None:
            return None
        statistics = _statistics(metadata) if kind == "table" else {}
        return Description(name, kind, _comment(metadata), columns(metadata), statistics)


def _comment(metadata: Metadata) -> str | None:
    return (metadata.get("properties") or {}).get("comment")


def _statistics(metadata: Metadata) -> dict[str, tuple[str, str | int]]:
    """Docs statistics by id: label and value, from the current snapshot's summary."""
    statistics: dict[str, tuple[str, str | int]] = {
        "location": ("Location", metadata["location"]),
        "format_version": ("Format version", metadata["format-version"]),
    }
    snapshot = current_snapshot(metadata)
    if snapshot is None:
        return statistics
    for key, identifier, label in (
        ("total-records", "num_rows", "Rows"),
        ("total-files-size", "bytes", "Bytes"),
        ("total-data-files", "num_files", "Data files"),
        ("total-delete-files", "num_delete_files", "Delete files"),
    ):
        if key in snapshot.properties:
            statistics[identifier] = (label, int(snapshot.properties[key]))
    statistics["num_snapshots"] = ("Snapshots", len(metadata["snapshots"]))
    statistics["snapshot_id"] = ("Current snapshot", str(snapshot.snapshot_id))
    statistics["last_modified"] = ("Last modified", _utc(snapshot.timestamp_ms).isoformat())
    return statistics


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
