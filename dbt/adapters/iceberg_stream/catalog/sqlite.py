"""The SQLite catalog that Spark (`jdbc`) and PyIceberg (`sql`) share.

The operations that every command needs read its two tables directly, because importing PyIceberg
and SQLAlchemy takes longer than a small model. `open_catalog` opens PyIceberg's client.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from filelock import FileLock

from dbt.adapters.iceberg_stream.catalog.backend import (
    COMMITS_TOGETHER,
    TABLE_DEFAULTS,
    CatalogBackend,
    Condition,
    Dropped,
)
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.locations import comparable, file_uri, local_path
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, read_metadata
from dbt.adapters.iceberg_stream.catalog.names import table_folder
from dbt.adapters.iceberg_stream.catalog.reach import hadoop_reach, reach
from dbt.adapters.iceberg_stream.catalog.settings import AMBIENT, FILE_IO

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, TableCommit

T = TypeVar("T")
DELETE_OLD_METADATA = "write.metadata.delete-after-commit.enabled"
BUSY_SECONDS = 30

# The tables of Iceberg's JDBC catalog, schema version V1, as both clients create them.
SCHEMA = """
create table if not exists iceberg_tables (
    catalog_name varchar(255) not null,
    table_namespace varchar(255) not null,
    table_name varchar(255) not null,
    metadata_location varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type varchar(5),
    primary key (catalog_name, table_namespace, table_name)
);
create table if not exists iceberg_namespace_properties (
    catalog_name varchar(255) not null,
    namespace varchar(255) not null,
    property_key varchar(255) not null,
    property_value varchar(1000) not null,
    primary key (catalog_name, namespace, property_key)
);
"""
NAMESPACES = """
select table_namespace from iceberg_tables where catalog_name = :catalog
union select namespace from iceberg_namespace_properties where catalog_name = :catalog
"""
RELATIONS = """
select table_name, case iceberg_type when 'VIEW' then 'view' else 'table' end
from iceberg_tables
where catalog_name = :catalog and table_namespace = :namespace
order by table_name
"""
ALL_RELATIONS = """
select table_namespace, table_name, case iceberg_type when 'VIEW' then 'view' else 'table' end
from iceberg_tables
where catalog_name = :catalog
order by table_namespace, table_name
"""
CATALOGS = "select distinct catalog_name from iceberg_tables"
LOCATIONS = """
select catalog_name, table_namespace, table_name, metadata_location from iceberg_tables
"""
LOCATION = """
select metadata_location from iceberg_tables
where catalog_name = :catalog and table_namespace = :namespace and table_name = :name
"""
CREATE_NAMESPACE = """
insert or ignore into iceberg_namespace_properties values (:catalog, :namespace, 'exists', 'true')
"""
SWAP = """
update iceberg_tables
set metadata_location = :new, previous_metadata_location = :old
where catalog_name = :catalog and table_namespace = :namespace and table_name = :name
    and metadata_location = :old
returning 1
"""
CREATE = """
insert or ignore into iceberg_tables values (:catalog, :namespace, :name, :new, null, 'TABLE')
returning 1
"""
CREATE_VIEW = """
insert or ignore into iceberg_tables values (:catalog, :namespace, :name, :new, null, 'VIEW')
returning 1
"""
UNREGISTER = """
delete from iceberg_tables
where catalog_name = :catalog and table_namespace = :namespace and table_name = :name
    and (:old = '' or metadata_location = :old)
returning metadata_location, iceberg_type = 'VIEW'
"""


def catalog_file(warehouse: Path) -> Path:
    """Return the path of a warehouse's SQLite catalog."""
    return warehouse / "catalog.db"


def spark_settings(name: str, warehouse: Path, confined: bool = False) -> dict[str, str]:
    """Return the Spark settings of the catalog.

    Caching is off: with it a session would see another session's writes up to 30 s late.

    Args:
        name: the catalog's name; its database stores it, so both clients must use the same.
        warehouse: the folder of the catalog and its tables.
        confined: as for SqliteBackend.
    """
    files = hadoop_reach((), [str(warehouse)]) if confined else {}
    prefix = f"spark.sql.catalog.{name}"
    timeout = f"busy_timeout={BUSY_SECONDS * 1000}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        # SQLite decodes it, and the driver would take a `?` in a path for its end.
        f"{prefix}.uri": f"jdbc:sqlite:{catalog_file(warehouse).as_uri()}?{timeout}",
        f"{prefix}.jdbc.schema-version": "V1",
        f"{prefix}.warehouse": file_uri(warehouse),
        f"{prefix}.cache-enabled": "false",
        "spark.sql.defaultCatalog": name,
        **{f"{prefix}.table-default.{key}": value for key, value in TABLE_DEFAULTS.items()},
        **{f"{prefix}.{key}": value for key, value in files.items()},
    }


def open_catalog(
    name: str, warehouse: Path, storage: Mapping[str, str] = MappingProxyType({})
) -> SqlCatalog:
    """Open PyIceberg's client of the catalog.

    Args:
        name: the catalog's name, as Spark's settings have it.
        warehouse: the folder of the catalog and its tables.
        storage: properties of the tables' FileIO.
    """
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import QueuePool, create_engine

    from dbt.adapters.iceberg_stream.catalog.client_properties import ignore_table_properties
    from dbt.adapters.iceberg_stream.catalog.variant_type import repair

    repair()

    def connect() -> sqlite3.Connection:
        # A pool lets threads share connections.
        return sqlite3.connect(
            catalog_file(warehouse), timeout=BUSY_SECONDS, check_same_thread=False
        )

    class Client(SqlCatalog):
        """Keeps old metadata files: only `SqliteBackend` knows whether another table has them."""

        @staticmethod
        def _delete_old_metadata(io: object, base: object, metadata: object) -> None:
            pass

    properties = {"py-io-impl": FILE_IO, "init_catalog_tables": "false", **storage}
    catalog = Client(name, uri="sqlite://", warehouse=file_uri(warehouse), **properties)
    # Not by a URI, in which a path must be encoded, but how depends on SQLAlchemy's version.
    catalog.engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)
    ignore_table_properties(catalog)
    return catalog


class SqliteBackend:
    """A SQLite catalog, which is created on first use; see CatalogBackend."""

    def __init__(
        self, name: str, warehouse: Path, ambient: bool = False, confined: bool = False
    ) -> None:
        """Open the catalog.

        Args:
            name: the catalog's name.
            warehouse: the folder of the catalog and its tables.
            ambient: whether clients may search the environment for storage credentials.
            confined: whether all files must be below the warehouse, because its tables' owners
                may not read this process's other files.

        Raises:
            CatalogError: the file is not a SQLite catalog, or its folder is not writable.
        """
        self._name = name
        self._path = catalog_file(warehouse)
        self._storage = {AMBIENT: "true"} if ambient else {}
        if confined:
            self._storage |= reach((), [str(warehouse)])
        self._opening = threading.Lock()
        self._opened: SqlCatalog | None = None
        # Metadata files are immutable: those written last need not be read again.
        self._last_written: dict[str, Metadata] = {}
        try:
            warehouse.mkdir(parents=True, exist_ok=True)
            # Two processes that open a new catalog at once would both create its tables.
            with FileLock(warehouse / ".catalog.lock"), self._connect() as connection:
                connection.executescript(SCHEMA)
        except sqlite3.DatabaseError as error:
            raise CatalogError(
                f"The Iceberg catalog {self._path} is damaged ({error}). Restore it from a backup, "
                "or move it away to start with an empty catalog: the tables' data and metadata "
                "files stay where they are, and you can register the tables again."
            ) from error
        except OSError as error:
            raise CatalogError(
                f"The warehouse {warehouse} is not writable ({error.strerror}). Free space, "
                "correct its permissions, or set another `warehouse` in the profile."
            ) from error

    @property
    def catalog(self) -> SqlCatalog:
        """PyIceberg's client of the catalog."""
        with self._opening:
            if self._opened is None:
                self._opened = open_catalog(self._name, self._path.parent, self._storage)
            return self._opened

    def ask(self, operation: str, question: Callable[[Catalog], T]) -> T:
        """Call PyIceberg's client."""
        return question(self.catalog)

    def check_write(self, namespace: str, name: str, rows_only: bool = False) -> None:
        """Pass: every user who can open the file may write."""

    def capabilities(self) -> dict[str, bool]:
        """Return optional capabilities: the catalog has all that SQLite can provide."""
        return {"views": True, "replacing views": True, COMMITS_TOGETHER: True}

    def close(self) -> None:
        """Close PyIceberg's client, if it is open."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def namespaces(self) -> list[str]:
        """List the namespaces."""
        return [name for (name,) in self._rows(NAMESPACES)]

    def namespace_exists(self, namespace: str) -> bool:
        """Return whether a namespace exists."""
        return namespace in self.namespaces()

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace unless it exists."""
        self._rows(CREATE_NAMESPACE, namespace=namespace)

    def relations(self, namespace: str) -> list[tuple[str, str]]:
        """List names and kinds (`table` or `view`) of a namespace; empty if it does not exist."""
        return self._rows(RELATIONS, namespace=namespace)

    def all_relations(self) -> list[tuple[tuple[str, str], str]]:
        """List names and kinds of all namespaces."""
        return [((namespace, name), kind) for namespace, name, kind in self._rows(ALL_RELATIONS)]

    def neighbors(self) -> list[tuple[str, CatalogBackend]]:
        """Return the catalogs of other names in the same file: a profile may have renamed it."""
        names = [name for (name,) in self._rows(CATALOGS) if name != self._name]
        backends = [SqliteBackend(name, self._path.parent) for name in names]
        for backend in backends:
            backend._storage = self._storage
        return list(zip(names, backends, strict=True))

    def metadata(self, namespace: str, name: str, history: bool = True) -> Metadata | None:
        """Return the current metadata of a table or view; None if there is neither."""
        current = self._current(namespace, name)
        return current and current[1]

    def _current(self, namespace: str, name: str) -> tuple[str, Metadata] | None:
        """Return where the current metadata is, and the metadata; None if there is none."""
        while location := self._location(namespace, name):
            try:
                return location, self._read(location)
            except FileNotFoundError:
                # Another commit may have replaced and removed it. If not, the file is lost.
                if self._location(namespace, name) == location:
                    raise
        return None

    def load(self, namespace: str, name: str, history: bool = True) -> LoadedTable | None:
        """Load the current version of a table; None if it does not exist."""
        from dbt.adapters.iceberg_stream.catalog.storage import CatalogFileIO
        from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable

        current = self._current(namespace, name)
        if current is None or "current-version-id" in current[1]:
            return None
        location, metadata = current
        return LoadedTable((namespace, name), metadata, location, CatalogFileIO(self._storage))

    def stage(
        self,
        namespace: str,
        name: str,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
    ) -> LoadedTable:
        """Stage a new table, which its first commit creates."""
        from pyiceberg.table.metadata import new_table_metadata
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

        from dbt.adapters.iceberg_stream.catalog.storage import CatalogFileIO
        from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, as_json

        location = table_folder(file_uri(self._path.parent), namespace, name)
        table_metadata = new_table_metadata(
            schema, spec, UNSORTED_SORT_ORDER, location, dict(properties)
        )
        metadata = dict(as_json(table_metadata))
        if metadata["format-version"] >= 3:
            metadata.setdefault("next-row-id", 0)
        return LoadedTable((namespace, name), metadata, "", CatalogFileIO(self._storage))

    def commit(
        self,
        base: LoadedTable,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
    ) -> None:
        """Replace the table's metadata, unless they changed since the table was loaded."""
        from dbt.adapters.iceberg_stream.catalog.tables import TableCommit

        self.commit_all([TableCommit(base, tuple(requirements), tuple(updates))])

    def commit_all(self, commits: Sequence[TableCommit]) -> None:
        """Replace the metadata of several tables in one transaction of the database."""
        new_metadata = [(commit.base, *_write_metadata(commit)) for commit in commits]
        names = ", ".join(".".join(commit.base.name) for commit in commits)
        try:
            conflicting = self._swap([(base, new) for base, new, _ in new_metadata])
        except sqlite3.OperationalError as error:
            raise CommitStateUnknown(
                f"The SQLite catalog {self._path} did not confirm the commit to {names} "
                f"({error}), so it may have been made. Another process may hold a lock on it."
            ) from error
        if conflicting is not None:
            from dbt.adapters.iceberg_stream.catalog.storage import delete_unused

            for base, new, _ in new_metadata:
                delete_unused(base.io, new)
            raise CommitConflict(
                f"Another writer has committed to {'.'.join(conflicting)}. Run the command again."
            )
        self._last_written = {new: metadata for _, new, metadata in new_metadata}
        for base, _, metadata in new_metadata:
            self._delete_old_metadata(base, metadata)

    def _swap(self, tables: Sequence[tuple[LoadedTable, str]]) -> tuple[str, str] | None:
        """Point the tables to new metadata; return the first table that has changed, if any."""
        with self._connect() as connection:
            for base, new in tables:
                namespace, name = base.name
                parameters = {"namespace": namespace, "name": name, "new": new}
                statement = SWAP if base.exists else CREATE
                parameters |= {"catalog": self._name, "old": base.location}
                if not connection.execute(statement, parameters).fetchall():
                    connection.rollback()
                    return base.name
            connection.commit()
        return None

    def stage_version(self, namespace: str, name: str, origin: LoadedTable) -> LoadedTable:
        """Stage a new table with the metadata of another one; its first commit creates it."""
        from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable

        return LoadedTable((namespace, name), origin.metadata, "", origin.io)

    def register(self, namespace: str, name: str, location: str) -> None:
        """Create a table from a metadata file."""
        try:
            created = self._rows(CREATE, namespace=namespace, name=name, new=location)
        except CatalogError as error:
            raise CommitStateUnknown(str(error)) from error
        if not created:
            raise CommitConflict(f"{namespace}.{name} already exists.")

    def unregister(
        self, namespace: str, name: str, only: Condition | None = None
    ) -> Dropped | None:
        """Drop a table or view, but keep a table's files; return what was dropped."""
        if only is None:
            dropped = self._unregister(namespace, name, "")
            return Dropped(dropped, None) if dropped else None
        while (current := self._current(namespace, name)) and only(current[1]):
            if self._unregister(namespace, name, current[0]):
                return Dropped(*current)
        return None

    def _unregister(self, namespace: str, name: str, old: str) -> str | None:
        rows = self._rows(UNREGISTER, namespace=namespace, name=name, old=old)
        for location, is_view in rows:
            if is_view:
                self._remove_view_metadata(namespace, name, location)
        return str(rows[0][0]) if rows else None

    def _remove_view_metadata(self, namespace: str, name: str, location: str) -> None:
        """Remove the metadata files of a view that was dropped, and its folders if they are empty.

        Those of a view that was renamed stay, because they are in another folder.
        """
        metadata = local_path(
            f"{table_folder(file_uri(self._path.parent), namespace, name)}/metadata"
        )
        assert metadata is not None, "the warehouse is a folder of this machine"
        with suppress(OSError, ValueError):
            view = self._read(location)["view-uuid"]
            for path in metadata.glob("*.metadata.json"):
                # A table that was in its place may have files here.
                if read_metadata(file_uri(path), self._storage).get("view-uuid") == view:
                    path.unlink()
                    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            metadata.rmdir()
            metadata.parent.rmdir()

    def put_view(self, namespace: str, name: str, version: Metadata) -> None:
        """Create a view, or replace the one of this name, but no table."""
        from dbt.adapters.iceberg_stream.catalog.storage import (
            CatalogFileIO,
            delete_unused,
            write_new,
        )
        from dbt.adapters.iceberg_stream.catalog.views import new_view, view_location

        storage = CatalogFileIO(self._storage)
        folder = table_folder(file_uri(self._path.parent), namespace, name)
        while True:
            old, current = self._current(namespace, name) or ("", None)
            if current is not None and "versions" not in current:
                raise CommitConflict(f"another writer has created the table {namespace}.{name}")
            metadata = new_view(version, current, folder)
            location = view_location(metadata)
            write_new(storage, location, orjson.dumps(metadata))
            put = SWAP if old else CREATE_VIEW
            if self._rows(put, namespace=namespace, name=name, new=location, old=old):
                return
            # Another writer has created, replaced or dropped it meanwhile.
            delete_unused(storage, location)

    def set_view_properties(self, namespace: str, name: str, properties: Mapping[str, str]) -> None:
        """Set properties of a view; a change of its definition at the same time wins."""
        from dbt.adapters.iceberg_stream.catalog.storage import (
            CatalogFileIO,
            delete_unused,
            write_new,
        )
        from dbt.adapters.iceberg_stream.catalog.views import view_location

        storage = CatalogFileIO(self._storage)
        old, metadata = self._current(namespace, name) or ("", None)
        if metadata is None or "versions" not in metadata:
            raise CommitConflict(
                f"{namespace}.{name} is not a view any more: another writer dropped or replaced it"
            )
        all_properties = {**(metadata.get("properties") or {}), **properties}
        location = view_location(metadata)
        text = orjson.dumps({**metadata, "properties": all_properties})
        write_new(storage, location, text)
        if not self._rows(SWAP, namespace=namespace, name=name, new=location, old=old):
            delete_unused(storage, location)
            raise CommitConflict(
                f"another writer changed the view {namespace}.{name} at the same time, so its "
                "properties were not set"
            )

    def drop_namespace(self, namespace: str) -> None:
        """Drop an empty namespace if it exists."""
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            self.catalog.drop_namespace(namespace)
        except NoSuchNamespaceError:
            return

    def _delete_old_metadata(self, base: LoadedTable, metadata: Metadata) -> None:
        """Remove metadata files that left the metadata log, if the table's properties say so."""
        properties = metadata.get("properties") or {}
        if str(properties.get(DELETE_OLD_METADATA, "false")).lower() != "true":
            return
        kept = {entry["metadata-file"] for entry in metadata.get("metadata-log") or []}
        log = [entry["metadata-file"] for entry in base.metadata.get("metadata-log") or []]
        old = [location for location in log if location not in kept]
        used = self._used_by_others(old, base.name) if old else set()
        for location in old:
            if comparable(location) not in used:
                # `iceberg-stream orphans` finds what cannot be removed now.
                with suppress(OSError):
                    base.io.delete(location)

    def _used_by_others(self, locations: Sequence[str], name: tuple[str, str]) -> set[str]:
        """Return the metadata files of other tables in the same folders, such as a copy's."""
        # Two levels tell the folders of tables apart well, whatever the spelling of the rest.
        folders = {"/".join(location.rsplit("/", 3)[1:-1]) for location in locations}
        used: set[str] = set()
        for catalog, *other, location in self._rows(LOCATIONS):
            is_own = catalog == self._name and tuple(other) == name
            if is_own or not any(f"{folder}/" in location for folder in folders):
                continue
            # What cannot be read does not tell what it needs: keep all.
            try:
                metadata = read_metadata(location, self._storage)
            except (OSError, ValueError):
                return {comparable(location) for location in locations}
            log = [entry["metadata-file"] for entry in metadata.get("metadata-log") or []]
            texts = [*log, location, *(metadata.get("properties") or {}).values()]
            used.update(comparable(text) for text in texts)
        return used

    def _read(self, location: str) -> Metadata:
        cached = self._last_written.get(location)
        return read_metadata(location, self._storage) if cached is None else cached

    def _location(self, namespace: str, name: str) -> str | None:
        rows = self._rows(LOCATION, namespace=namespace, name=name)
        return str(rows[0][0]) if rows else None

    def _rows(self, sql: str, **parameters: str) -> list[Any]:
        try:
            with self._connect() as connection, connection:
                return connection.execute(sql, {"catalog": self._name, **parameters}).fetchall()
        except sqlite3.OperationalError as error:
            raise CatalogError(
                f"The SQLite catalog {self._path} does not answer ({error}). Another process may "
                "hold a lock on it. Run the command again when that has ended."
            ) from error

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS)) as connection:
            yield connection


def _write_metadata(commit: TableCommit) -> tuple[str, Metadata]:
    """Write the table's metadata after a commit; return their location and themselves."""
    from dbt.adapters.iceberg_stream.catalog.storage import write_new
    from dbt.adapters.iceberg_stream.catalog.tables import next_location, updated

    base = commit.base
    new, metadata = next_location(base), updated(base.metadata, base.location, commit.updates)
    write_new(base.io, new, orjson.dumps(metadata))
    return new, metadata
