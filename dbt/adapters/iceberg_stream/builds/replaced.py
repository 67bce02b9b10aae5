"""Publishes relations in the places of others: views, and tables in those of views.

No catalog replaces a view by a table, or a table by a view, in one step. Only what was under the
name when a relation was staged is dropped for it. The staged relation is marked before, so that
whoever comes next knows what is missing if the process ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertTableUUID,
    SetPropertiesUpdate,
)
from pyiceberg.types import BooleanType, NestedField
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dbt.adapters.iceberg_stream.builds.errors import BuildConflict
from dbt.adapters.iceberg_stream.builds.names import staged_name, with_published_names
from dbt.adapters.iceberg_stream.builds.staged import (
    BUILD,
    DROPPED,
    PUBLISHED_AS,
    StagedTable,
    is_recorded,
    load_staged,
    recorded_view,
)
from dbt.adapters.iceberg_stream.builds.updates import requirements
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.catalog.views import same_view, view_query, with_query
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.tables.drop import Drop
from dbt.adapters.iceberg_stream.tables.drop import remove_files as remove_dropped

logger = Logger()

ATTEMPTS = 10
# Value of the property of a new table that is being dropped, because it was not filled.
ABANDONED = "dropped: "
CHANGED_VIEW = "is a view that another writer created or changed, and a table would replace it"
CHANGED_TABLE = "was created or changed by another writer, and a view would replace it"


class Replacement:
    """What one `publish` has dropped and created before its commit, and undoes if that fails.

    Args:
        catalog: the catalog.
        build: name of the build.
        tables: its staged tables.
        views: its staged views by their published names.
    """

    def __init__(
        self,
        catalog: IcebergCatalog,
        build: str,
        tables: Iterable[StagedTable],
        views: Mapping[Name, Metadata | None],
    ) -> None:
        self._catalog = catalog
        self._build = build
        # Also what an earlier `publish` had marked when it ended.
        self._tables = {s.name: s for s in tables if s.properties.get(DROPPED)}
        self._views = {name: view for name, view in views.items() if view is not None}

    def make_room(self, staged: StagedTable) -> StagedTable:
        """Drop the view in whose place a build has a new table.

        Args:
            staged: the staged table.

        Returns:
            The staged table as it is now.

        Raises:
            BuildConflict: it is not the view that was there when the table was staged.
            CommitConflict: the view, or the staged table, was changed or dropped just now.
        """
        if not staged.is_new:
            return staged
        self._tables[staged.name] = staged
        if recorded_view(staged.metadata) is None:
            return staged
        view = self._catalog.metadata(staged.name, history=False)
        if view is None or "versions" not in view:
            return staged
        if not is_recorded(staged.metadata, view):
            raise BuildConflict(self._build, [(staged.name, CHANGED_VIEW)])
        self._tables[staged.name] = staged = _marked(self._catalog, staged)
        if not self._catalog.unregister(staged.name, partial(is_recorded, staged.metadata)):
            # Maybe by another process that publishes the build: the next attempt looks again.
            raise CommitConflict(f"{'.'.join(staged.name)} {CHANGED_VIEW}.")
        return staged

    def undo(self) -> None:
        """Drop the new tables that are not filled, and put back what was dropped for them."""
        relations = {name: staged.metadata for name, staged in self._tables.items()}
        for name, metadata in {**relations, **self._views}.items():
            try:
                if name in self._tables:
                    restore(self._catalog, self._tables[name], metadata)
                else:
                    put_back(self._catalog, name, metadata)
                unmark(self._catalog, name, self._build, metadata)
            except (CatalogError, OSError) as error:
                logger.warning(
                    f"{'.'.join(name)} cannot be made again as it was before `publish`: "
                    f"{reason(error)}\n"
                    f"Run `iceberg-stream publish {self._build}` or `iceberg-stream discard "
                    f"{self._build}`: either puts it back."
                )


def _marked(catalog: IcebergCatalog, staged: StagedTable) -> StagedTable:
    if staged.properties.get(DROPPED):
        return staged
    uuid = AssertTableUUID(uuid=staged.metadata["table-uuid"])
    catalog.commit(staged.table, (uuid,), (SetPropertiesUpdate(updates={DROPPED: "view"}),))
    marked = load_staged(catalog, staged.name, staged.build)
    if marked is None or not marked.properties.get(DROPPED):
        raise CommitConflict(f"Another process has dropped {'.'.join(staged.table.name)}.")
    return marked


def put_back(catalog: IcebergCatalog, name: Name, staged: Metadata) -> None:
    """Create again what `publish` has dropped for a staged relation, if nothing has its name.

    Args:
        catalog: the catalog.
        name: published name.
        staged: metadata of the staged relation.
    """
    properties = staged.get("properties") or {}
    if not properties.get(DROPPED) or PUBLISHED_AS in properties:
        return
    if catalog.metadata(name, history=False) is not None:
        return
    try:
        if "versions" in staged:
            catalog.register(name, properties[DROPPED])
        elif (view := recorded_view(staged)) is not None:
            catalog.put_view(name, view)
    except CommitConflict:
        return  # another writer has taken the name


def restore(catalog: IcebergCatalog, staged: StagedTable, metadata: Metadata) -> None:
    """Drop what `publish` has created for a staged table, and put back what it has dropped.

    Args:
        catalog: the catalog.
        staged: the staged table.
        metadata: its latest metadata.
    """
    drop_unfilled(catalog, staged)
    put_back(catalog, staged.name, metadata)


def unmark(catalog: IcebergCatalog, name: Name, build: str, staged: Metadata) -> None:
    """Note that nothing is missing any more: who drops it later does so on purpose.

    Args:
        catalog: the catalog.
        name: published name.
        build: name of the build.
        staged: metadata of the staged relation.
    """
    if not (staged.get("properties") or {}).get(DROPPED):
        return
    if "versions" in staged:
        catalog.set_view_properties(staged_name(name, build), {DROPPED: ""})
    elif (table := load_staged(catalog, name, build)) is not None:
        catalog.commit(table.table, (), (SetPropertiesUpdate(updates={DROPPED: ""}),))


def is_unfilled(build: str, table: Metadata) -> bool:
    """Return whether `publish` has created a table, and nobody has filled it.

    Args:
        build: name of the build.
        table: metadata of the published table.
    """
    properties = table.get("properties") or {}
    return properties.get(BUILD) == build and not table.get("snapshots")


def drop_unfilled(catalog: IcebergCatalog, staged: StagedTable) -> None:
    """Drop a new table that `publish` has created, but not filled.

    Args:
        catalog: the catalog.
        staged: its staged table.
    """
    table = catalog.load(staged.name) if staged.is_new else None
    if table is None:
        return
    if is_unfilled(staged.build, table.metadata):
        try:
            _abandon(catalog, table, ABANDONED + staged.build)
        except CommitConflict:
            return  # another process has filled it
    drop_abandoned(catalog, staged)


def drop_abandoned(catalog: IcebergCatalog, staged: StagedTable) -> None:
    """Drop a new table that `drop_unfilled` has marked, but not dropped, before it was killed.

    Args:
        catalog: the catalog.
        staged: its staged table.
    """
    abandoned = ABANDONED + staged.build
    table = catalog.metadata(staged.name, history=False) if staged.is_new else None
    if table is not None and is_unfilled(abandoned, table):
        catalog.unregister(staged.name, partial(is_unfilled, abandoned))


def _abandon(catalog: IcebergCatalog, table: LoadedTable, mark: str) -> None:
    """Change a table so that the commit of another process that fills it fails."""
    metadata = table.metadata
    schema = Schema(NestedField(metadata["last-column-id"] + 1, "dropped", BooleanType()))
    updates = (SetPropertiesUpdate(updates={BUILD: mark}), AddSchemaUpdate(schema=schema))
    catalog.commit(table, requirements(metadata), updates)


@retry(
    retry=retry_if_exception_type(CommitConflict),
    stop=stop_after_attempt(ATTEMPTS),
    wait=wait_random_exponential(multiplier=0.05, max=5),
    reraise=True,
)
def publish_view(
    catalog: IcebergCatalog,
    build: str,
    name: Name,
    metadata: Metadata,
    catalogs: Catalogs | None,
) -> None:
    """Publish a view, and drop its staged version unless that has changed.

    Args:
        catalog: the catalog.
        build: name of the build.
        name: published name of the view.
        metadata: of the staged view.
        catalogs: those of the profile, whose tables may reference files of a table in its place.

    Raises:
        CatalogError: the catalog refuses, or another writer has changed a table in its place.
    """
    new = with_query(metadata, with_published_names(view_query(metadata), build))
    own = {k: v for k, v in (new.get("properties") or {}).items() if not k.startswith(BUILD)}
    new = {**new, "properties": own}
    put_back(catalog, name, metadata)
    drops = []
    if (table := catalog.load(name)) is not None:
        drops.append(_replace_table(catalog, build, table, metadata, new))
    else:
        published = catalog.metadata(name)
        if published is None or not same_view(new, published):
            catalog.put_view(name, new)
    catalog.unregister(staged_name(name, build), partial(_is_same_version, metadata))
    remove_dropped(catalog, drops, catalogs)


def _replace_table(
    catalog: IcebergCatalog, build: str, table: LoadedTable, staged: Metadata, view: Metadata
) -> Drop:
    """Replace a table by a view; the table is back if the view is refused."""
    name, drop = table.name, Drop(table.name, table, in_this_version=True)
    changed = f"another writer has changed the table {'.'.join(name)}"
    if not is_recorded(staged, table.metadata):
        raise CatalogError(changed)
    mark = {DROPPED: table.location}
    # A build that is discarded now is published nevertheless: its tables are.
    with suppress(CommitConflict):
        catalog.set_view_properties(staged_name(name, build), mark)
    marked = {**staged, "properties": {**(staged.get("properties") or {}), **mark}}
    try:
        drop.unregister(catalog)
        if drop.table is not None:
            catalog.put_view(name, view)
    except BaseException as error:
        put_back(catalog, name, marked)
        # The view may be there, although the catalog did not answer.
        found = catalog.metadata(name) if isinstance(error, CatalogError | OSError) else None
        if found is None or not same_view(view, found):
            with suppress(CatalogError):
                unmark(catalog, name, build, marked)
            raise
    if drop.table is None:
        # Maybe another process that publishes the build has dropped it.
        raise CommitConflict(changed)
    return drop


def replaced_conflicts(
    catalog: IcebergCatalog,
    tables: Iterable[StagedTable],
    views: Mapping[Name, Metadata | None],
    kinds: Mapping[Name, str],
) -> list[tuple[Name, str]]:
    """Return what is not as it was when a relation of another kind was staged for its name.

    Args:
        catalog: the catalog.
        tables: the staged tables.
        views: the staged views by their published names.
        kinds: what is published under a name.
    """
    staged = {s.name: s.metadata for s in tables if s.is_new and kinds.get(s.name) == "view"}
    staged |= {n: v for n, v in views.items() if v is not None and kinds.get(n) == "table"}
    conflicts = []
    for name, metadata in staged.items():
        published, is_view = catalog.metadata(name, history=False), "versions" in metadata
        if published is None or ("versions" in published) is is_view:
            continue  # another process has published it
        if not is_recorded(metadata, published):
            conflicts.append((name, CHANGED_TABLE if is_view else CHANGED_VIEW))
    return conflicts


def _is_same_version(view: Metadata, other: Metadata) -> bool:
    keys = ("view-uuid", "current-version-id")
    return all(view[key] == other.get(key) for key in keys)
