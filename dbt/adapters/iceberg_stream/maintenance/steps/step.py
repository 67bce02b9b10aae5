"""What the steps of maintenance have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.health import TableHealth, table_health
from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.tables.commit.manifests import DamagedFile


@dataclass(frozen=True)
class MaintenanceContext:
    """What maintenance needs of the profile.

    Attributes:
        catalog: the profile's catalog, as its user.
        call: runs a statement in the user's Spark session, and returns its rows by column; raises
            StatementError.
        after_commit: call it with the table after each commit. It refreshes the table in Spark, and
            drops cached results.
        principal: the owner of the token; empty if the catalog has no users.
        find_catalogs: returns all catalogs whose tables may share files or streams with those of
            `catalog`, which comes first.
    """

    catalog: IcebergCatalog
    call: Callable[[str], list[dict[str, Any]]]
    after_commit: Callable[[Name], None]
    principal: str = ""
    find_catalogs: Callable[[], list[IcebergCatalog]] | None = None

    @property
    def catalogs(self) -> list[IcebergCatalog]:
        """All catalogs of the profile, that of the table first."""
        return [self.catalog] if self.find_catalogs is None else self.find_catalogs()

    def procedure(self, name: str, table: Name, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Run one of Iceberg's procedures on a table.

        Args:
            name: of the procedure.
            table: namespace and identifier.
            arguments: SQL expressions by the names of the other parameters.

        Returns:
            The first row of its result; empty if it has none.
        """
        passed = {"table": literal(".".join(quote(part) for part in table)), **arguments}
        text = ", ".join(f"{key} => {value}" for key, value in passed.items())
        rows = self.call(f"call {quote(self.catalog.name)}.system.{name}({text})")
        return rows[0] if rows else {}


@dataclass(frozen=True)
class TableState:
    """One version of a table, with its health.

    Attributes:
        table: the table, with all snapshots.
        health: what its metadata tell.
    """

    table: LoadedTable
    health: TableHealth

    @classmethod
    def load(cls, catalog: IcebergCatalog, name: Name) -> TableState:
        """Load the current version of a table.

        Raises:
            CatalogError: there is no such table, it is damaged, or the catalog refuses.
            OSError: the storage cannot be read.
        """
        table = catalog.load(name)
        if table is None:
            raise CatalogError(
                f"There is no table {'.'.join(name)} in the catalog `{catalog.name}`. Check the "
                "name."
            )
        try:
            return cls(table, table_health(table))
        except DamagedFile as error:
            raise CatalogError(
                f"The metadata of {'.'.join(name)} are damaged: {error}. "
                f"Run `iceberg-stream check {'.'.join(name)}`."
            ) from error

    @property
    def name(self) -> Name:
        """Namespace and identifier."""
        return self.table.name

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""
        return self.table.metadata.get("properties") or {}


@dataclass(frozen=True)
class Skip:
    """A step has nothing to do, or must not do it.

    Attributes:
        reason: why.
    """

    reason: str


@dataclass(frozen=True)
class Action:
    """What a step does.

    Attributes:
        description: what, for `--dry-run`.
        run: does it in one commit or more, and returns what was done.
    """

    description: str
    run: Callable[[], str]


@dataclass(frozen=True)
class Step:
    """A step of maintenance.

    Attributes:
        name: as in STEP_NAMES.
        plan: decides from metadata what to do with a version of a table.
    """

    name: str
    plan: Callable[[MaintenanceContext, TableState, MaintenanceSettings], Skip | Action]


def literal(text: str) -> str:
    """Return a SQL string literal.

    Args:
        text: its value.
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def seconds_text(seconds: float) -> str:
    """Return an estimate of seconds as text, such as `2.5 s` or `30 ms`.

    Args:
        seconds: the estimate.
    """
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 file` or `2,000 files`.

    Args:
        number: how many.
        noun: in the singular.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
