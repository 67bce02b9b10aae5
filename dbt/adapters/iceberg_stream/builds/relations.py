"""The relations that a build has staged, as one of its commands knows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from dbt.adapters.iceberg_stream.builds.names import split_staged
from dbt.adapters.iceberg_stream.builds.settings import BuildSettings
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name


class StagedRelations:
    """Published names and kinds (`table` or `view`) of staged relations.

    Those of earlier commands are listed when a namespace is used first.

    Args:
        settings: the build.
        catalog: returns the profile's catalog.
    """

    def __init__(self, settings: BuildSettings, catalog: Callable[[], IcebergCatalog]) -> None:
        self._settings = settings
        self._catalog = catalog
        self._known: dict[Name, str] = {}
        self._loaded: set[str] = set()
        self._lock = threading.RLock()

    @property
    def known(self) -> Mapping[Name, str]:
        """Those in the namespaces that this command has used."""
        return self._known

    def add(self, name: Name, kind: str) -> None:
        """Add one that this command has staged."""
        with self._lock:
            self._known[name] = kind

    def clear(self) -> None:
        """Forget all: they are published."""
        with self._lock:
            self._known.clear()
            self._loaded.clear()

    def in_namespace(self, namespace: str) -> Mapping[Name, str]:
        """Return the known ones, among them all of a namespace.

        Args:
            namespace: the namespace.

        Raises:
            CatalogError: the catalog refuses.
        """
        if not self._settings.continues or namespace in self._loaded:
            return self._known
        with self._lock:
            if namespace not in self._loaded:
                self._known.update(self._list(namespace))
                self._loaded.add(namespace)
        return self._known

    def all(self) -> dict[Name, str]:
        """Return those of all namespaces, also of other commands.

        Raises:
            CatalogError: the catalog refuses.
        """
        from dbt.adapters.iceberg_stream.builds.build import list_builds

        if not self._settings.continues:
            return dict(self._known)
        builds = {build.name: build for build in list_builds(self._catalog())}
        build = builds.get(self._settings.name)
        return {} if build is None else build.relations

    def _list(self, namespace: str) -> dict[Name, str]:
        from dbt.adapters.iceberg_stream.builds.staged import load_staged

        catalog, build = self._catalog(), self._settings.name
        relations = catalog.relations(namespace)
        published = {identifier for identifier, _ in relations}
        listed: dict[Name, str] = {}
        for identifier, kind in relations:
            parts = split_staged(identifier)
            if parts is None or parts[1] != build:
                continue
            name = (namespace, parts[0])
            # A new table is staged without columns before its model is built.
            staged = (
                None if parts[0] in published else load_staged(catalog, name, self._settings.name)
            )
            if staged is None or not staged.is_empty:
                listed[name] = kind
        return listed
