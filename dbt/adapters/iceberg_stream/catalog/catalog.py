"""The Iceberg catalog: namespaces, tables, views, columns, statistics, commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.catalog.backend import (
    COMMITS_TOGETHER,
    TABLE_DEFAULTS,
    CatalogBackend,
    Condition,
    Dropped,
)
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.catalog.metadata import (
    Column,
    Metadata,
    SnapshotSummary,
    columns,
    current_snapshot,
    snapshots,
)
from dbt.adapters.iceberg_stream.catalog.names import require_names
from dbt.adapters.iceberg_stream.errors.logger import Logger

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, TableCommit

Name = tuple[str, str]
# Table property: whether files may be removed with the table or its snapshots.
GC_ENABLED = "gc.enabled"


def collects_garbage(properties: Mapping[str, Any]) -> bool:
    """Return whether files may be removed with a table or its snapshots.

    Args:
        properties: the table's. As in Iceberg, anything but `true` means no.
    """
    return str(properties.get(GC_ENABLED, "true")).lower() == "true"


logger = Logger()


@dataclass(frozen=True)
class Description:
    """A table or view as `dbt docs` shows it.

    Attributes:
        name: namespace and identifier.
        kind: `table` or `view`.
        comment: the relation's comment.
        columns: columns in their order.
        statistics: label and value by the statistic's id.
    """

    name: Name
    kind: str
    comment: str | None
    columns: list[Column]
    statistics: dict[str, tuple[str, str | int]]


class IcebergCatalog:
    """One Iceberg catalog, opened once for a dbt invocation and shared by its threads.

    Reads use the catalog's current metadata as JSON; only changes load PyIceberg's own table.
    Every method that asks the catalog raises CatalogError when the catalog refuses or fails.
    """

    def __init__(self, name: str, backend: CatalogBackend) -> None:
        self.name = name
        self._backend = backend

    @property
    def pyiceberg(self) -> Catalog:
        """PyIceberg's client of the catalog."""
        return self._backend.catalog

    def close(self) -> None:
        """Close the connections to the catalog."""
        self._backend.close()

    def namespaces(self) -> list[str]:
        """List the namespaces, levels joined by dots."""
        return self._backend.namespaces()

    def namespace_exists(self, namespace: str) -> bool:
        """Return whether a namespace exists."""
        return self._backend.namespace_exists(namespace)

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace unless it exists."""
        require_names(namespace)
        self._backend.create_namespace(namespace)

    def drop_namespace(self, namespace: str) -> None:
        """Drop an empty namespace if it exists."""
        self._backend.drop_namespace(namespace)

    def relations(self, namespace: str) -> list[tuple[str, str]]:
        """List names and kinds (`table` or `view`) of a namespace; empty if it does not exist."""
        return self._backend.relations(namespace)

    def all_relations(self) -> list[tuple[Name, str]]:
        """List names and kinds of all namespaces, those within other namespaces among them.

        A namespace that cannot be listed is an error: who removes files must know all tables.
        """
        return self._backend.all_relations()

    def neighbors(self) -> list[IcebergCatalog]:
        """Return the other catalogs that share this one's database and folder."""
        return [IcebergCatalog(*neighbor) for neighbor in self._backend.neighbors()]

    def metadata(self, name: Name, history: bool = True) -> Metadata | None:
        """Return the current metadata of a table or view, as JSON.

        Args:
            name: namespace and identifier.
            history: as for `load`.

        Returns:
            The metadata; None if there is neither a table nor a view of this name.
        """
        return self._backend.metadata(*name, history=history)

    def load(self, name: Name, history: bool = True) -> LoadedTable | None:
        """Load the current version of a table.

        Args:
            name: namespace and identifier.
            history: load all snapshots. Without them a REST catalog may leave out snapshots that
                no branch or tag references, which saves time when there are many.

        Returns:
            The table; None if it does not exist.
        """
        return self._backend.load(*name, history=history)

    def stage(
        self,
        name: Name,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
    ) -> LoadedTable:
        """Stage a new table: its first commit creates it, rows included.

        Args:
            name: namespace and identifier.
            schema: Iceberg schema.
            spec: partition spec.
            properties: table properties; they override TABLE_DEFAULTS.

        Returns:
            The staged table, which the catalog does not list before its first commit.
        """
        require_names(*name)
        return self._backend.stage(*name, schema, spec, {**TABLE_DEFAULTS, **properties})

    def commit(
        self,
        base: LoadedTable,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
    ) -> None:
        """Commit updates to one table.

        Args:
            base: the table as it was loaded or staged.
            requirements: what the catalog checks before it commits.
            updates: what changes.

        Raises:
            CommitConflict: the table changed since it was loaded; nothing was committed.
            CommitStateUnknown: the commit may or may not have succeeded.
        """
        self._backend.commit(base, requirements, updates)

    def commit_all(self, commits: Sequence[TableCommit]) -> None:
        """Commit to several tables atomically.

        Args:
            commits: one commit per table; several need `commits_together`.

        Raises:
            CommitConflict: a table changed since it was loaded; nothing was committed.
            CommitStateUnknown: the commit may or may not have succeeded.
        """
        if len(commits) == 1:
            self.commit(commits[0].base, commits[0].requirements, commits[0].updates)
        else:
            self._backend.commit_all(commits)

    @property
    def commits_together(self) -> bool:
        """Return whether the catalog can commit to several tables atomically."""
        return self.capabilities().get(COMMITS_TOGETHER, False)

    def stage_version(self, name: Name, origin: LoadedTable) -> LoadedTable:
        """Stage a new table with the metadata and in the folder of another one.

        Args:
            name: namespace and identifier of the new table.
            origin: its metadata, without snapshots.

        Returns:
            The staged table, which its first commit creates. A catalog on a server lists it
            before, without rows.

        Raises:
            CommitConflict: the table exists.
        """
        require_names(*name)
        return self._backend.stage_version(*name, origin)

    def register(self, name: Name, location: str) -> None:
        """Create a table from a metadata file.

        Args:
            name: namespace and identifier.
            location: of the metadata file.

        Raises:
            CommitConflict: the table exists.
            CommitStateUnknown: the table may exist, or the catalog may still create it, so the
                metadata file must stay.
        """
        require_names(*name)
        try:
            self._backend.register(*name, location)
        except CommitStateUnknown as unknown:
            try:
                table = self.load(name, history=False)
            except (CatalogError, OSError):
                raise unknown from None
            if table is None or table.location != location:
                raise

    def unregister(self, name: Name, only: Condition | None = None) -> Dropped | None:
        """Drop a table or view, but keep its files.

        Args:
            name: namespace and identifier.
            only: drop it only if its metadata satisfies this. A catalog on a server may drop a
                version of the same kind, table or view, that another writer commits just then.

        Returns:
            What was dropped; None if nothing was.
        """
        return self._backend.unregister(*name, only)

    def put_view(self, name: Name, version: Metadata) -> None:
        """Create a view, or replace the one of this name.

        Args:
            name: namespace and identifier.
            version: metadata whose current version, schema and properties the view gets.
        """
        require_names(*name)
        self._backend.put_view(*name, version)

    def set_view_properties(self, name: Name, properties: Mapping[str, str]) -> None:
        """Set properties of a view, whose definition stays as it is.

        Args:
            name: namespace and identifier.
            properties: the properties.
        """
        self._backend.set_view_properties(*name, properties)

    def capabilities(self) -> dict[str, bool]:
        """Return optional capabilities and whether the catalog has them.

        Returns:
            The support by capability; empty if the catalog does not report capabilities.
        """
        return self._backend.capabilities()

    def require_views(self) -> None:
        """Check that the catalog supports views.

        Raises:
            CatalogError: the catalog reports that it does not.
        """
        if not self.capabilities().get("views", True):
            raise CatalogError(
                f"The catalog `{self.name}` has no views. Materialize the model as a table or as "
                "ephemeral. If the catalog has views but does not report them, set "
                "`view-endpoints-supported: true` in `catalog_properties`."
            )

    def check_write(self, name: Name, rows_only: bool = False) -> None:
        """Check that the user may write to a table; a missing table passes.

        Args:
            name: namespace and identifier.
            rows_only: the write changes neither schema nor properties.

        Raises:
            CatalogError: the catalog refuses the write.
        """
        self._backend.check_write(*name, rows_only=rows_only)

    def table(self, name: Name) -> Table:
        """Load a table as PyIceberg's Table.

        Raises:
            NoSuchTableError: the table does not exist.
        """
        return self._backend.ask(f"read {'.'.join(name)}", lambda c: c.load_table(name))

    def require_metadata(self, name: Name, history: bool = True) -> Metadata:
        """Return the current metadata of a table or view.

        Args:
            name: namespace and identifier.
            history: as for `metadata`.

        Raises:
            CatalogError: there is neither.
        """
        metadata = self.metadata(name, history)
        if metadata is None:
            raise CatalogError(
                f"The catalog {self.name} has no table {'.'.join(name)}. Correct the name; if the "
                "table was there before, another process has dropped it: build it again."
            )
        return metadata

    def columns(self, name: Name) -> list[Column]:
        """Return the columns of a table or view; empty if there is neither."""
        metadata = self.metadata(name, history=False)
        return [] if metadata is None else columns(metadata)

    def comment(self, name: Name) -> str | None:
        """Return the comment of a table or view; None if there is no comment or relation."""
        metadata = self.metadata(name, history=False)
        return None if metadata is None else _comment(metadata)

    def snapshots(self, name: Name) -> Iterator[SnapshotSummary]:
        """Return the snapshots of a table, newest first; empty if it does not exist."""
        metadata = self.metadata(name)
        return iter(()) if metadata is None else snapshots(metadata)

    def require_columns(self, name: Name, columns: list[str]) -> None:
        """Make optional columns required.

        Args:
            name: namespace and identifier.
            columns: column names; the caller has checked that they hold no null.
        """
        table = self.table(name)
        optional = [c for c in columns if not table.schema().find_field(c).required]

        def require(_: Catalog) -> None:
            with table.update_schema(allow_incompatible_changes=True) as update:
                for column in optional:
                    update.update_column(column, required=True)

        if optional:
            self._backend.ask(f"change {'.'.join(name)}", require)

    def last_modified(self, name: Name) -> datetime | None:
        """Return when the current snapshot was committed (UTC); None for a table without one.

        Raises:
            CatalogError: the table does not exist.
        """
        snapshot = current_snapshot(self.require_metadata(name))
        return None if snapshot is None else _utc(snapshot.timestamp_ms)

    def describe(self, namespace: str) -> Iterator[Description]:
        """Describe all tables and views of a namespace, with columns and statistics."""
        for identifier, kind in self.relations(namespace):
            description = self.describe_one((namespace, identifier), kind)
            if description is not None:
                yield description

    def describe_one(self, name: Name, kind: str) -> Description | None:
        """Describe one table or view; None if another run has dropped it."""
        metadata = self.metadata(name)
        if metadata is None:
            return None
        statistics = _statistics(metadata) if kind == "table" else {}
        return Description(name, kind, _comment(metadata), columns(metadata), statistics)


def _comment(metadata: Metadata) -> str | None:
    return (metadata.get("properties") or {}).get("comment")


def _statistics(metadata: Metadata) -> dict[str, tuple[str, str | int]]:
    """Return labels and values of docs statistics by id, from the snapshot's summary."""
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
        ("total-equality-deletes", "num_equality_deletes", "Equality deletes"),
        ("total-position-deletes", "num_position_deletes", "Position deletes"),
    ):
        if key in snapshot.properties:
            statistics[identifier] = (label, int(snapshot.properties[key]))
    statistics["num_snapshots"] = ("Snapshots", len(metadata["snapshots"]))
    statistics["snapshot_id"] = ("Current snapshot", str(snapshot.snapshot_id))
    statistics["last_modified"] = ("Last modified", _utc(snapshot.timestamp_ms).isoformat())
    return statistics


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
