"""What the rest of the house asks of a catalog, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, TableCommit

T = TypeVar("T")
# Of new tables, if nothing else is said: each commit writes all metadata again, and the files of
# many commits are soon larger than the data.
TABLE_DEFAULTS = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
# A capability that not every catalog has.
COMMITS_TOGETHER = "commits of several tables"


class CatalogBackend(Protocol):
    """Namespaces, tables and views of a catalog, as its user; safe in any thread.

    Every method raises CatalogError when the catalog refuses or cannot answer.
    """

    @property
    def catalog(self) -> Catalog:
        """PyIceberg's client of the catalog."""

    def ask(self, operation: str, question: Callable[[Catalog], T]) -> T:
        """Ask PyIceberg's client; `operation` says in an error what was refused."""

    def namespaces(self) -> list[str]: ...

    def namespace_exists(self, namespace: str) -> bool: ...

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace; one that is there, or that another run makes now, is kept."""

    def drop_namespace(self, namespace: str) -> None:
        """Drop an empty namespace; a missing one is fine."""

    def relations(self, namespace: str) -> list[tuple[str, str]]:
        """Names and kinds (`table` or `view`) in a namespace; none where it is missing."""

    def metadata(self, namespace: str, name: str) -> Metadata | None:
        """Current metadata of a table or view; None if there is neither."""

    def load(self, namespace: str, name: str, history: bool = True) -> LoadedTable | None:
        """The table as it is now, with its storage's keys; None if there is none.

        Without its history it may lack the snapshots that no branch or tag points to.
        """

    def stage(
        self,
        namespace: str,
        name: str,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
    ) -> LoadedTable:
        """A table that is not there yet: its first commit makes it, rows included."""

    def commit(
        self,
        base: LoadedTable,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
    ) -> None:
        """Change a table in one step, or make a staged one.

        Raises:
            CommitConflict: it is not what it was when it was loaded, or somebody else has made it;
                nothing was changed.
            CommitStateUnknown: it may have been changed.
        """

    def commit_all(self, commits: Sequence[TableCommit]) -> None:
        """Change several tables in one step; raises as `commit` does.

        Only where the catalog has the capability `COMMITS_TOGETHER`.
        """

    def drop(self, namespace: str, name: str) -> None:
        """Drop a table or view with its files; a missing one is fine."""

    def check_write(self, namespace: str, name: str, rows_only: bool = False) -> None:
        """Raise if the user may not write to a table, before its data are computed.

        A commit of nothing: the catalog decides, and a missing table is fine. Who writes rows only
        need not be allowed to change the table's schema and properties.
        """

    def capabilities(self) -> dict[str, bool]:
        """What not every catalog has, and whether this one does; empty if it does not tell."""

    def close(self) -> None: ...
