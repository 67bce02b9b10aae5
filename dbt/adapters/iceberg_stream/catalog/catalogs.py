"""The catalogs of a profile: its own, and those that `catalogs` and catalogs.yml add."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
    from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, SnapshotSummary

# The name of the catalog that Spark always has.
SPARK_CATALOG = "spark_catalog"
# Namespace and identifier in the profile's own catalog; in another one, its name comes first.
QualifiedName = tuple[str, ...]


class Catalogs:
    """The catalogs of a profile by name, opened on first use. Thread-safe.

    Names of catalogs match in any case, as dbt compares names of databases.

    Args:
        own: name of the profile's own catalog.
        openers: opens a catalog, by its name.
    """

    def __init__(self, own: str, openers: Mapping[str, Callable[[], IcebergCatalog]]) -> None:
        self._own = own
        self._openers = dict(openers)
        self._opened: dict[str, IcebergCatalog] = {}
        self._lock = threading.RLock()

    @property
    def own(self) -> IcebergCatalog:
        """The profile's own catalog."""
        return self.get(None)

    @property
    def names(self) -> list[str]:
        """The catalogs' names, that of the profile's own catalog first."""
        return list(self._openers)

    def get(self, name: str | None) -> IcebergCatalog:
        """Return a catalog.

        Args:
            name: the catalog's name; the profile's own catalog without one.

        Raises:
            CatalogError: the profile has no such catalog.
        """
        if (catalog := self.find_catalog(name)) is None:
            catalogs = ", ".join(self.names)
            if str(name).lower() == SPARK_CATALOG:
                raise CatalogError(
                    f"`{name}` is Spark's own catalog, which the adapter only reads. Set "
                    f"`database` to a catalog of the profile: {catalogs}."
                )
            raise CatalogError(
                f"The profile has no catalog `{name}`. It has {catalogs}. Correct `database`, or "
                "define the catalog in the profile's `catalogs` or in catalogs.yml."
            )
        return catalog

    def find_catalog(self, name: str | None) -> IcebergCatalog | None:
        """Return a catalog; None if the profile does not have it, as with Spark's own.

        Args:
            name: the catalog's name; the profile's own catalog without one.
        """
        actual = self._actual(name) if name else self._own
        if actual is None:
            return None
        with self._lock:
            if actual not in self._opened:
                self._opened[actual] = self._openers[actual]()
            return self._opened[actual]

    def all_from(self, first: IcebergCatalog) -> list[IcebergCatalog]:
        """Return all catalogs whose tables may share files with those of one catalog.

        Args:
            first: that catalog, which comes first.
        """
        others = [self.get(name) for name in self.names]
        catalogs = [first, *(other for other in others if other is not first)]
        return [*catalogs, *(near for catalog in catalogs for near in catalog.neighbors())]

    def is_own(self, name: str | None) -> bool:
        """Return whether a name means the profile's own catalog, as no name does."""
        return not name or name.lower() == self._own.lower()

    def qualified(self, catalog: str | None, name: Name) -> QualifiedName:
        """Return the name of a relation, with its catalog if that is not the profile's own.

        Args:
            catalog: the catalog's name; the profile's own catalog without one.
            name: namespace and identifier.
        """
        return name if self.is_own(catalog) else (self._actual(catalog) or str(catalog), *name)

    def find(self, parts: Sequence[str]) -> tuple[IcebergCatalog, Name] | None:
        """Return the catalog and the name of a relation that a statement names.

        Args:
            parts: of the name, as in the statement.

        Returns:
            Catalog, namespace and identifier; None if the relation is in no catalog of the profile.
        """
        if len(parts) == 3 and self._actual(parts[0]) is not None:
            return self.get(parts[0]), (parts[1], parts[2])
        # Spark reads the first of two parts as a catalog if it can.
        if len(parts) == 2 and (self.is_own(parts[0]) or self._actual(parts[0]) is None):
            return self.own, (parts[0], parts[1])
        return None

    def find_qualified(self, parts: Sequence[str]) -> QualifiedName | None:
        """Return the qualified name of a relation that a statement names.

        Args:
            parts: of the name, as in the statement.

        Returns:
            The name; None if the relation is in no catalog of the profile.
        """
        if (relation := self.find(parts)) is None:
            return None
        catalog, name = relation
        return self.qualified(catalog.name, name)

    def split(self, name: QualifiedName) -> tuple[IcebergCatalog, Name]:
        """Return the catalog, and the name in it, of a qualified name.

        Args:
            name: the qualified name.
        """
        catalog = self.get(name[0]) if len(name) == 3 else self.own
        return catalog, (name[-2], name[-1])

    def metadata(self, name: QualifiedName, history: bool = True) -> Metadata | None:
        """Return the current metadata of a table or view, as JSON; None if there is neither.

        Args:
            name: the relation.
            history: as for `IcebergCatalog.load`.
        """
        catalog, own_name = self.split(name)
        return catalog.metadata(own_name, history)

    def snapshots(self, name: QualifiedName) -> Iterator[SnapshotSummary]:
        """Return the snapshots of a table, newest first; empty if it does not exist.

        Args:
            name: the table.
        """
        catalog, own_name = self.split(name)
        return catalog.snapshots(own_name)

    def close(self) -> None:
        """Close the catalogs; a later use opens them again."""
        with self._lock:
            for catalog in self._opened.values():
                catalog.close()
            self._opened.clear()

    def _actual(self, name: str | None) -> str | None:
        """Return a catalog's name as the profile writes it; None if it has no such catalog."""
        lower = str(name).lower()
        return next((own for own in self._openers if own.lower() == lower), None)


def one_catalog(catalog: IcebergCatalog) -> Catalogs:
    """Return a single open catalog as the catalogs of a profile.

    Args:
        catalog: the catalog.
    """
    return Catalogs(catalog.name, {catalog.name: lambda: catalog})
