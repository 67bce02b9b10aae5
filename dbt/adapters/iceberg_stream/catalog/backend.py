"""The operations that every kind of catalog provides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, TableCommit

T = TypeVar("T")
# Whether the metadata of a table or view is what the caller means.
Condition = Callable[[Metadata], bool]
# Defaults of new tables. Each commit writes all metadata again, so without a limit the metadata
# files of many commits soon take more space than the data.
TABLE_DEFAULTS = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
# An optional capability: one commit changes several tables.
COMMITS_TOGETHER = "commits of several tables"


@dataclass(frozen=True)
class Dropped:
    """The version of a table or view that a catalog has dropped.

    A server drops what a name has: there another writer's commit in the last moment before is
    missing.

    Attributes:
        location: of its metadata file; empty if it is unknown, as a view's on a server.
        metadata: of the table or view, from a server without the snapshots that no branch and no
            tag references; None if it was dropped without a condition, so that nobody read them.
    """

    location: str
    metadata: Metadata | None


class CatalogBackend(Protocol):
    """Namespaces, tables and views of one catalog, as one user sees them. Thread-safe.

    Every method raises CatalogError when the catalog refuses or cannot answer.
    """

    @property
    def catalog(self) -> Catalog:
        """PyIceberg's client of the catalog."""

    def ask(self, operation: str, question: Callable[[Catalog], T]) -> T:
        """Call PyIceberg's client.

        Args:
            operation: an infinitive for error messages: "list the namespaces".
            question: the call; it may run a second time with a renewed token.

        Returns:
            What `question` returns.

        Raises:
            CatalogError: the catalog refused, failed or did not answer.
        """

    def namespaces(self) -> list[str]:
        """List the namespaces, levels joined by dots."""

    def namespace_exists(self, namespace: str) -> bool:
        """Return whether a namespace exists."""

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace unless it exists, even if another run creates it now."""

    def drop_namespace(self, namespace: str) -> None:
        """Drop an empty namespace if it exists."""

    def relations(self, namespace: str) -> list[tuple[str, str]]:
        """List names and kinds (`table` or `view`) of a namespace; empty if it does not exist."""

    def all_relations(self) -> list[tuple[tuple[str, str], str]]:
        """List names and kinds of all namespaces, those within other namespaces among them."""

    def neighbors(self) -> list[tuple[str, CatalogBackend]]:
        """Return names and backends of the other catalogs in the same database and folder."""

    def metadata(self, namespace: str, name: str, history: bool = True) -> Metadata | None:
        """Return the current metadata of a table or view; None if there is neither.

        Args:
            namespace: levels joined by dots.
            name: the relation's identifier.
            history: as for `load`.
        """

    def load(self, namespace: str, name: str, history: bool = True) -> LoadedTable | None:
        """Load the current version of a table, with its storage credentials.

        Args:
            namespace: levels joined by dots.
            name: the table's identifier.
            history: load all snapshots; otherwise those that no branch or tag references may be
                missing.

        Returns:
            The table; None if it does not exist.
        """

    def stage(
        self,
        namespace: str,
        name: str,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
    ) -> LoadedTable:
        """Stage a new table: its first commit creates it, rows included.

        Args:
            namespace: levels joined by dots.
            name: the table's identifier.
            schema: Iceberg schema.
            spec: partition spec.
            properties: table properties.

        Returns:
            The staged table.

        Raises:
            CommitConflict: the table exists.
        """

    def commit(
        self,
        base: LoadedTable,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
    ) -> None:
        """Commit updates to one table, or create a staged one.

        Args:
            base: the table as it was loaded or staged.
            requirements: what the catalog checks before it commits.
            updates: what changes.

        Raises:
            CommitConflict: the table changed since it was loaded, or another writer created it;
                nothing was committed.
            CommitStateUnknown: the commit may or may not have succeeded.
        """

    def commit_all(self, commits: Sequence[TableCommit]) -> None:
        """Commit to several tables atomically; raises as `commit` does.

        Needs the capability `COMMITS_TOGETHER`.
        """

    def stage_version(self, namespace: str, name: str, origin: LoadedTable) -> LoadedTable:
        """Stage a new table with the metadata and in the folder of another one.

        The table's first commit creates it. A catalog on a server creates it now, so `origin`
        should have no snapshots.

        Args:
            namespace: levels joined by dots.
            name: the new table's identifier.
            origin: metadata of the new table; its storage credentials are used.
        """

    def register(self, namespace: str, name: str, location: str) -> None:
        """Create a table from a metadata file.

        Args:
            namespace: levels joined by dots.
            name: the table's identifier.
            location: of the metadata file.

        Raises:
            CommitConflict: the table exists.
            CommitStateUnknown: the table may or may not have been created.
        """

    def unregister(
        self, namespace: str, name: str, only: Condition | None = None
    ) -> Dropped | None:
        """Drop a table or view, but keep its files.

        Args:
            namespace: levels joined by dots.
            name: the identifier.
            only: drop it only if its metadata satisfies this.

        Returns:
            What was dropped; None if nothing was.
        """

    def put_view(self, namespace: str, name: str, version: Metadata) -> None:
        """Create a view, or replace the one of this name.

        Args:
            namespace: levels joined by dots.
            name: the view's identifier.
            version: metadata whose current version, schema and properties the view gets.
        """

    def set_view_properties(self, namespace: str, name: str, properties: Mapping[str, str]) -> None:
        """Set properties of a view, whose definition stays as it is.

        Args:
            namespace: levels joined by dots.
            name: the view's identifier.
            properties: the properties.
        """

    def check_write(self, namespace: str, name: str, rows_only: bool = False) -> None:
        """Check that the user may write to a table, before its data are computed.

        Sends an empty commit, so the catalog decides. A missing table passes.

        Args:
            namespace: levels joined by dots.
            name: the table's identifier.
            rows_only: do not ask for the right to change schema and properties.

        Raises:
            CatalogError: the catalog refuses the commit.
        """

    def capabilities(self) -> dict[str, bool]:
        """Return optional capabilities and whether the catalog has them.

        Empty if the catalog does not report capabilities.
        """

    def close(self) -> None:
        """Close the connections to the catalog."""
