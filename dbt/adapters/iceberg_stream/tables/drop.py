"""Drops tables and views, with the files that nobody else needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from dbt_common.exceptions import DbtRuntimeError
from pyiceberg.exceptions import SignError

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name, collects_garbage
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, one_catalog
from dbt.adapters.iceberg_stream.catalog.clone_tags import (
    ORIGIN,
    ORIGIN_UUID,
    SNAPSHOT,
    TAG,
    clone_tags,
    is_clone,
)
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.tables.clones import remove_tag, used_tags
from dbt.adapters.iceberg_stream.tables.commit.added_files import added_files, metadata_files
from dbt.adapters.iceberg_stream.tables.commit.producer import remove_quietly
from dbt.adapters.iceberg_stream.tables.references import (
    KINDS,
    UNREADABLE,
    own_files,
    own_references,
    version_of,
    without_referenced,
)

logger = Logger()
# Files that are removed at the same time.
PARALLEL = 16
# How often a drop looks at a table that other writers change.
ATTEMPTS = 100
# Properties that Nessie gives its tables.
NESSIE = "nessie."


def drop_table(
    catalog: IcebergCatalog,
    name: Name,
    catalogs: Catalogs | None = None,
    kind: str | None = None,
) -> None:
    """Drop a table or view, if it exists; see `drop_tables`.

    Args:
        catalog: the catalog.
        name: namespace and identifier.
        catalogs: as for `drop_tables`.
        kind: `table` or `view`, if only that is meant.

    Raises:
        CatalogError: the catalog refuses, or the relation is of another kind; no file is removed.
    """
    run_drops(catalog, [Drop(name, kind=kind)], catalogs)


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
    run_drops(catalog, [Drop(name) for name in names], catalogs)


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


def run_drops(catalog: IcebergCatalog, drops: Sequence[Drop], catalogs: Catalogs | None) -> None:
    """Drop relations, then remove the files that no relation references any more.

    Nobody begins to use the files of a table that the catalog does not list any more, so they are
    compared with what others reference after that.

    Args:
        catalog: the catalog.
        drops: what to drop.
        catalogs: as for `drop_tables`.

    Raises:
        CatalogError: the catalog refuses; no file of the relation is removed.
    """
    try:
        for drop in drops:
            drop.unregister(catalog)
    finally:
        remove_files(catalog, drops, catalogs)


def remove_files(
    catalog: IcebergCatalog, drops: Sequence[Drop], catalogs: Catalogs | None = None
) -> None:
    """Remove the files of what was dropped, unless a relation references them.

    Args:
        catalog: the catalog.
        drops: those that were not run leave their files.
        catalogs: as for `drop_tables`.
    """
    files = [(drop.table, drop.list_files()) for drop in drops if drop.table is not None]
    remove_unreferenced(catalog, files, catalogs)
    for drop in drops:
        drop.remove_clone_tag(catalog, catalogs)


def remove_unreferenced(
    catalog: IcebergCatalog,
    files: Sequence[tuple[LoadedTable, Sequence[str]]],
    catalogs: Catalogs | None = None,
) -> None:
    """Remove files of tables that the catalog does not list any more, unless others need them.

    Args:
        catalog: the catalog.
        files: each table as it was, with locations of files.
        catalogs: as for `drop_tables`.
    """
    remove_from_all(files, lambda: (catalogs or one_catalog(catalog)).all_from(catalog))


def remove_from_all(
    files: Sequence[tuple[LoadedTable, Sequence[str]]],
    find_catalogs: Callable[[], Sequence[IcebergCatalog]],
) -> int:
    """Remove files that tables do not reference any more, unless other tables need them.

    Args:
        files: tables as they were, with locations of files.
        find_catalogs: returns all catalogs whose tables may reference them, the tables' own first.

    Returns:
        How many were removed.
    """
    files = [(table, [file for file in own if file.endswith(KINDS)]) for table, own in files]
    candidates = [file for _, own in files for file in own]
    if not candidates:
        return 0
    owners = [table for table, own in files if own]
    try:
        left = set(without_referenced(candidates, find_catalogs(), owners))
    except (DbtRuntimeError, OSError) as error:
        names = ", ".join(".".join(table.name) for table in owners)
        logger.warning(f"Files that {names} had stay: {reason(error)}")
        return 0
    with ThreadPoolExecutor(PARALLEL) as pool:
        for table, own in files:
            try:
                list(pool.map(partial(remove_quietly, table.io), [f for f in own if f in left]))
            except SignError as error:
                # Only the server may access the storage, and only for tables that it lists.
                logger.warning(f"Files of {'.'.join(table.name)} stay: {reason(error)}")
    return len(left)


def _added(table: LoadedTable, base: Collection[int] | None) -> list[str]:
    manifests, data = ([], []) if base is None else added_files(table, base)
    return [*data, *manifests, *metadata_files(table)]


@dataclass
class Drop:
    """A relation to drop.

    Attributes:
        name: namespace and identifier.
        expected: the table that is meant, in any version; another one of its name stays. None for
            whatever has the name.
        in_this_version: whether another version of that table stays, too.
        kind: `table` or `view`, if only that is meant: the other one is an error.
        is_shared: whether it began with files of another table, as a staged one does.
        base: ids of the snapshots that such a table began with; None if they are unknown.
        table: the version that was dropped; None for a view, or before.
    """

    name: Name
    expected: LoadedTable | None = None
    in_this_version: bool = False
    kind: str | None = None
    is_shared: bool = False
    base: Collection[int] | None = None
    table: LoadedTable | None = None

    def run(self, catalog: IcebergCatalog, catalogs: Catalogs | None = None) -> None:
        """Drop the relation, then remove its files; see `run_drops`.

        Args:
            catalog: its catalog.
            catalogs: as for `drop_tables`.

        Raises:
            CatalogError: the catalog refuses; no file is removed.
        """
        run_drops(catalog, [self], catalogs)

    def unregister(self, catalog: IcebergCatalog) -> None:
        """Drop the relation as it is now; its files stay until `remove_files`.

        A server does not purge it: between our look at the tables and its own, another one may
        begin to use the files.

        Args:
            catalog: its catalog.

        Raises:
            CatalogError: the catalog refuses.
        """
        for _ in range(ATTEMPTS):
            if self._unregister_loaded(catalog):
                return
        raise CatalogError(
            f"{'.'.join(self.name)} was not dropped: other writers changed it {ATTEMPTS} times "
            "meanwhile. Stop them, and drop it again."
        )

    def _unregister_loaded(self, catalog: IcebergCatalog) -> bool:
        """Drop the relation; return False if it is another version or relation meanwhile.

        Which files go, and what is restored, is decided by the version that is loaded.
        """
        try:
            table = catalog.load(self.name)
            if table is None and catalog.metadata(self.name, history=False) is None:
                return True
        except (OSError, ValueError) as error:
            if self.expected is not None:
                raise
            self._warn(f"its metadata cannot be read ({error})")
            return catalog.unregister(self.name) is not None
        kind = "view" if table is None else "table"
        if self.kind is not None and self.kind != kind:
            raise CatalogError(
                f"{'.'.join(self.name)} was not dropped: another writer has put a {kind} in the "
                f"place of the {self.kind}. Run the command again."
            )
        metadata = table.metadata if table else {}
        if self.expected is not None and not self._is_meant(metadata, self.expected.metadata):
            logger.warning(f"{'.'.join(self.name)} stays: another writer has put it there.")
            return True
        expected = version_of(metadata)
        if not catalog.unregister(self.name, lambda found: version_of(found) == expected):
            return False
        self.table = table
        return True

    def _is_meant(self, found: Metadata, expected: Metadata) -> bool:
        if self.in_this_version:
            return version_of(found) == version_of(expected)
        return bool(found.get("table-uuid") == expected.get("table-uuid"))

    def list_files(self) -> list[str]:
        """List the files that go with the table that was dropped, unless others need them."""
        if self.table is None:
            return []
        metadata = self.table.metadata
        properties = metadata.get("properties") or {}
        try:
            if self.is_shared:
                return _added(self.table, self.base)
            if any(name.startswith(NESSIE) for name in properties):
                # The table is on other branches and in Nessie's history, whose own garbage
                # collection removes files.
                return []
            if clones := sorted({tag.table for tag in clone_tags(metadata)}):
                self._warn(f"clones have them: {', '.join(clones)}")
                return []
            if is_clone(metadata):
                base = {int(properties[SNAPSHOT])} if SNAPSHOT in properties else set()
                return _added(self.table, base)
            if not collects_garbage(properties):
                # Such as the published version of a staged table.
                return []
            return own_files(self.table, own_references(self.table))
        except (*UNREADABLE, SignError) as error:
            self._warn(f"they cannot be listed ({error})")
            return []

    def remove_clone_tag(self, catalog: IcebergCatalog, catalogs: Catalogs | None) -> None:
        """Remove the tag of its original that a clone had, unless other tables need it.

        Such as a staged version of the clone, or a copy under another name.

        Args:
            catalog: its catalog.
            catalogs: as for `drop_tables`.
        """
        if self.table is None or not is_clone(self.table.metadata):
            return
        properties = self.table.metadata["properties"]
        tags = {properties[TAG]} if TAG in properties else set()
        try:
            unused = tags - used_tags(tags, (catalogs or one_catalog(catalog)).all_from(catalog))
        except (DbtRuntimeError, OSError) as error:
            logger.warning(f"The tag `{properties[TAG]}` stays: {reason(error)}")
            return
        for tag in unused:
            namespace, _, identifier = properties[ORIGIN].rpartition(".")
            remove_tag(catalog, (namespace, identifier), properties[ORIGIN_UUID], tag)

    def _warn(self, why: str) -> None:
        logger.warning(f"The files of {'.'.join(self.name)} stay: {why}.")
