"""Drops tables and views, with the files that nobody else needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.catalog import GC_ENABLED, IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, one_catalog
from dbt.adapters.iceberg_stream.catalog.clone_tags import (
    ORIGIN,
    ORIGIN_UUID,
    SNAPSHOT,
    TAG,
    clone_tags,
    is_clone,
)
from dbt.adapters.iceberg_stream.catalog.locations import comparable, is_within
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.tables.clones import remove_tag
from dbt.adapters.iceberg_stream.tables.commit.added_files import added_files, metadata_files
from dbt.adapters.iceberg_stream.tables.commit.producer import remove_quietly
from dbt.adapters.iceberg_stream.tables.references import (
    UNREADABLE,
    folders,
    own_references,
    without_referenced,
)

logger = Logger()


def drop_table(catalog: IcebergCatalog, name: Name, catalogs: Catalogs | None = None) -> None:
    """Drop a table or view, if it exists; see `drop_tables`.

    Args:
        catalog: the catalog.
        name: namespace and identifier.
        catalogs: as for `drop_tables`.

    Raises:
        CatalogError: the catalog refuses; no file is removed.
    """
    drop_tables(catalog, [name], catalogs)


def drop_tables(
    catalog: IcebergCatalog,
    names: Collection[Name],
    catalogs: Catalogs | None = None,
) -> None:
    """Drop tables and views, if they exist.

    The files go with a table that wrote them itself, to its own folders, unless another table or
    view references them, the property `gc.enabled` is false, or a clone has them.

    Args:
        catalog: the catalog.
        names: namespaces and identifiers.
        catalogs: those of the profile, whose other tables may reference the files; only `catalog`
            by default.

    Raises:
        CatalogError: the catalog refuses; no file of the relation is removed.
    """
    for drop in plan_drops(catalog, names, catalogs):
        drop.run(catalog)


def drop_contents(catalog: IcebergCatalog, namespace: str, catalogs: Catalogs) -> None:
    """Drop the tables and views of a namespace; see `drop_tables`.

    Args:
        catalog: the catalog.
        namespace: the namespace.
        catalogs: all catalogs of the profile.

    Raises:
        CatalogError: the catalog refuses.
    """
    names = [(namespace, name) for name, _ in catalog.relations(namespace)]
    drop_tables(catalog, names, catalogs)


def plan_drops(
    catalog: IcebergCatalog,
    names: Iterable[Name],
    catalogs: Catalogs | None = None,
) -> list[Drop]:
    """Decide which files go with tables and views; see `drop_tables`.

    Args:
        catalog: the catalog.
        names: namespaces and identifiers; those that do not exist are left out.
        catalogs: as for `drop_tables`.

    Raises:
        CatalogError: the catalog refuses.
    """
    drops = [drop for name in names if (drop := _plan(catalog, name)) is not None]
    _keep_referenced(catalog, drops, catalogs)
    return drops


def plan_shared(
    catalog: IcebergCatalog, tables: Iterable[tuple[LoadedTable, Collection[int] | None]]
) -> list[Drop]:
    """Decide which files go with tables that began with files of another one, such as staged ones.

    Args:
        catalog: the catalog.
        tables: the tables, each with the ids of the snapshots that it began with; without ids, only
            its metadata files go with it.

    Raises:
        OSError: the storage cannot be read.
    """
    drops = [Drop(table.name, table, _added(table, base)) for table, base in tables]
    _keep_referenced(catalog, drops, None)
    return drops


def _keep_referenced(
    catalog: IcebergCatalog, drops: Sequence[Drop], catalogs: Catalogs | None
) -> None:
    """Keep the files that relations reference that are not dropped."""
    files = [file for drop in drops for file in drop.files]
    if not files:
        return
    try:
        others = (catalogs or one_catalog(catalog)).all_from(catalog)
        dropped = {drop.name for drop in drops}
        left = set(without_referenced(files, others, dropped=dropped))
    except DbtRuntimeError as error:
        logger.warning(f"The files of what is dropped stay: {reason(error)}")
        left = set()
    for drop in drops:
        drop.keep_all_but(left)


def _added(table: LoadedTable, base: Collection[int] | None) -> list[str]:
    manifests, data = ([], []) if base is None else added_files(table, base)
    return [*data, *manifests, *metadata_files(table)]


@dataclass
class Drop:
    """What becomes of a relation and its files.

    Attributes:
        name: namespace and identifier.
        table: the table; None for a view, or if its files stay.
        files: to remove.
        is_whole: whether these are all files of the table.
        clone: properties of a clone, whose tag is not needed any more.
    """

    name: Name
    table: LoadedTable | None = None
    files: list[str] = field(default_factory=list)
    is_whole: bool = False
    clone: Metadata | None = None

    def keep_all_but(self, left: Collection[str]) -> None:
        """Keep the files that are not among some.

        Args:
            left: locations of files that nothing references.
        """
        files = [file for file in self.files if file in left]
        self.is_whole = self.is_whole and len(files) == len(self.files)
        self.files = files

    def run(self, catalog: IcebergCatalog) -> None:
        """Drop the relation, then remove its files.

        Args:
            catalog: its catalog.

        Raises:
            CatalogError: the catalog refuses; no file is removed.
        """
        if self.table is not None and self.is_whole and catalog.purges:
            catalog.purge(self.name)
        else:
            catalog.unregister(self.name)
            self.remove_files(catalog)

    def remove_files(self, catalog: IcebergCatalog) -> None:
        """Remove the files of a relation that the catalog does not list any more.

        Args:
            catalog: its catalog.
        """
        if self.table is not None:
            for file in self.files:
                remove_quietly(self.table.io, file)
        if self.clone is not None and TAG in self.clone:
            namespace, _, identifier = self.clone[ORIGIN].rpartition(".")
            remove_tag(catalog, (namespace, identifier), self.clone[ORIGIN_UUID], self.clone[TAG])


def _plan(catalog: IcebergCatalog, name: Name) -> Drop | None:
    try:
        metadata = catalog.metadata(name)
    except (OSError, ValueError) as error:
        logger.warning(
            f"The files of {'.'.join(name)} stay: its metadata cannot be read ({error})."
        )
        return Drop(name)
    if metadata is None:
        return None
    if "versions" in metadata or (table := catalog.load(name)) is None:
        return Drop(name)
    properties = table.metadata.get("properties") or {}
    clones = sorted({tag.table for tag in clone_tags(table.metadata)})
    if clones:
        logger.warning(
            f"The files of {'.'.join(name)} stay, because clones have them: {', '.join(clones)}."
        )
        return Drop(name)
    try:
        if is_clone(table.metadata):
            base = {int(properties[SNAPSHOT])} if SNAPSHOT in properties else set()
            return Drop(name, table, _added(table, base), clone=properties)
        if str(properties.get(GC_ENABLED, "true")).lower() == "false":
            # Such as the published version of a staged table.
            return Drop(name)
        return _plan_own(name, table)
    except UNREADABLE as error:
        logger.warning(f"The files of {'.'.join(name)} stay: they cannot be listed ({error}).")
        return Drop(name, clone=properties if is_clone(table.metadata) else None)


def _plan_own(name: Name, table: LoadedTable) -> Drop:
    own = [comparable(folder) for folder in folders(table.metadata)]
    files, is_whole = [], True
    for file in dict.fromkeys(own_references(table)):
        if any(is_within(comparable(file), folder) for folder in own):
            files.append(file)
        else:
            is_whole = False
    return Drop(name, table, files, is_whole)
