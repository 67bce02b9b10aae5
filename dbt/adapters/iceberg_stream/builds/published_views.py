"""Publishes the views of a build, also in the places of tables, and tables in those of views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial

from dbt.adapters.iceberg_stream.builds.names import staged_name, with_published_names
from dbt.adapters.iceberg_stream.builds.staged import BUILD, LAST_RUN
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.catalog.views import (
    last_change_ms,
    same_view,
    view_query,
    with_query,
)
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.tables.drop import Drop
from dbt.adapters.iceberg_stream.tables.drop import remove_files as remove_dropped

logger = Logger()


class ReplacedViews:
    """The views in whose places a build has tables.

    No catalog replaces a view by a table in one step, so each is dropped just before the commit
    that creates its table, and restored if that fails.
    """

    def __init__(self, catalog: IcebergCatalog, build: str, names: Iterable[Name]) -> None:
        self._catalog = catalog
        self._build = build
        self._views = {
            name: metadata
            for name in names
            if (metadata := catalog.metadata(name)) is not None and "versions" in metadata
        }
        self._dropped: set[Name] = set()

    def drop(self, names: Iterable[Name]) -> None:
        """Drop those of some names that are still the views that they were."""
        for name in self._views.keys() & set(names) - self._dropped:
            # A server may drop it and not answer.
            self._dropped.add(name)
            if not self._catalog.unregister(name, partial(_is_same, self._views[name])):
                self._dropped.remove(name)

    def restore(self) -> None:
        """Create the dropped views again, unless a table was published in their places."""
        for name in self._dropped:
            try:
                self._restore(name)
            except (CatalogError, OSError) as error:
                logger.warning(
                    f"The view {'.'.join(name)} was dropped for a table that is not published, and "
                    f"cannot be restored: {reason(error)}\n"
                    f"Run `iceberg-stream publish {self._build}` again, or build the view."
                )

    def _restore(self, name: Name) -> None:
        self._catalog.unregister(name, partial(is_unfilled, self._build))
        if self._catalog.metadata(name) is None:
            self._catalog.put_view(name, self._views[name])


def is_unfilled(build: str, table: Metadata) -> bool:
    """Return whether an interrupted `publish` has created a table, and nobody has filled it.

    Args:
        build: name of the build.
        table: metadata of the published table.
    """
    properties = table.get("properties") or {}
    return properties.get(BUILD) == build and not table.get("snapshots")


def publish_view(
    catalog: IcebergCatalog, build: str, name: Name, catalogs: Catalogs | None
) -> None:
    """Publish a view, and drop its staged version; nothing happens if there is none.

    Args:
        catalog: the catalog.
        build: name of the build.
        name: published name of the view.
        catalogs: those of the profile, whose tables may reference files of a table in its place.

    Raises:
        CatalogError: the catalog refuses, or another writer has changed a table in its place.
    """
    staged = staged_name(name, build)
    metadata = catalog.metadata(staged)
    if metadata is None or "versions" not in metadata:
        return
    new = with_query(metadata, with_published_names(view_query(metadata), build))
    properties = {k: v for k, v in (new.get("properties") or {}).items() if k != LAST_RUN}
    new = {**new, "properties": properties}
    if (table := catalog.load(name)) is not None:
        _replace_table(catalog, table, metadata, new, catalogs)
    else:
        published = catalog.metadata(name)
        if published is None or not same_view(new, published):
            catalog.put_view(name, new)
    catalog.unregister(staged)


def _replace_table(
    catalog: IcebergCatalog,
    table: LoadedTable,
    staged: Metadata,
    view: Metadata,
    catalogs: Catalogs | None,
) -> None:
    """Replace a table by a view; the table is back if the view is refused."""
    drop = Drop(table.name, table, in_this_version=True)
    if not _is_newer(table.metadata, staged):
        drop.unregister(catalog)
    if drop.table is None:
        raise CatalogError(f"another writer has changed the table {'.'.join(table.name)}")
    with ExitStack() as undo:
        undo.callback(catalog.register, table.name, drop.table.location)
        catalog.put_view(table.name, view)
        undo.pop_all()
    remove_dropped(catalog, [drop], catalogs)


def view_conflicts(
    catalog: IcebergCatalog, views: Mapping[Name, Metadata | None], kinds: Mapping[Name, str]
) -> list[tuple[Name, str]]:
    """Return the tables in whose places a build has views, and that changed since.

    Args:
        catalog: the catalog.
        views: the staged views by their published names.
        kinds: what is published under a name.
    """
    conflicts = []
    for name, staged in views.items():
        if staged is not None and kinds.get(name) == "table":
            table = catalog.metadata(name, history=False)
            if table is not None and "versions" not in table and _is_newer(table, staged):
                conflicts.append(
                    (name, "was created or changed by another writer, and a view would replace it")
                )
    return conflicts


def _is_same(view: Metadata, other: Metadata) -> bool:
    return bool(view["view-uuid"] == other.get("view-uuid"))


def _is_newer(table: Metadata, view: Metadata) -> bool:
    return last_change_ms(table) > last_change_ms(view)
