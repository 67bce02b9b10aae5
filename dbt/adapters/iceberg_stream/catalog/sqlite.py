"""The SQLite catalog that Spark (`jdbc`) and PyIceberg (`sql`) share, as names and locations.

What every command asks of it is answered from its two tables, without PyIceberg and SQLAlchemy,
whose import takes longer than a small model. Changes to tables go through `open_catalog`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from filelock import FileLock

from dbt.adapters.iceberg_stream.catalog.backend import COMMITS_TOGETHER, TABLE_DEFAULTS
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, read_metadata

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

# The tables of Iceberg's JDBC catalog, schema version V1, as both clients make them.
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
DROP_VIEW = """
delete from iceberg_tables
where catalog_name = :catalog and table_namespace = :namespace and table_name = :name
    and iceberg_type = 'VIEW'
"""


def catalog_file(warehouse: Path) -> Path:
    """Where a warehouse keeps its SQLite catalog."""
    return warehouse / "catalog.db"


def _uri(warehouse: Path) -> str:
    # Neither client decodes percent signs: a path with spaces stands as it is.
    return f"file://{warehouse}"


def spark_settings(name: str, warehouse: Path) -> dict[str, str]:
    """Spark settings of the same catalog.

    The name is part of the catalog's keys, so both clients must use one. Caching is off: a
    session would read another session's writes up to 30 s late.
    """
    prefix = f"spark.sql.catalog.{name}"
    timeout = f"busy_timeout={BUSY_SECONDS * 1000}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": f"jdbc:sqlite:{catalog_file(warehouse)}?{timeout}",
        f"{prefix}.jdbc.schema-version": "V1",
        f"{prefix}.warehouse": _uri(warehouse),
        f"{prefix}.cache-enabled": "false",
        "spark.sql.defaultCatalog": name,
        **{f"{prefix}.table-default.{key}": value for key, value in TABLE_DEFAULTS.items()},
    }


def open_catalog(name: str, warehouse: Path) -> SqlCatalog:
    """PyIceberg's client of the same catalog."""
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import event

    catalog = SqlCatalog(
        name,
        uri=f"sqlite:///{catalog_file(warehouse)}",
        warehouse=_uri(warehouse),
        init_catalog_tables="false",
    )
    event.listen(catalog.engine, "connect", _wait_for_other_writers)
    catalog.engine.dispose()
    return catalog


def _wait_for_other_writers(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute(f"pragma busy_timeout = {BUSY_SECONDS * 1000}")


class SqliteBackend:
    """Namespaces, tables and views of a catalog that is made on first use; see CatalogBackend."""

    def __init__(self, name: str, warehouse: Path) -> None:
        """Open the catalog.

        Raises:
            CatalogError: the file is no SQLite catalog or its folder cannot be written.
        """
        self._name = name
        self._path = catalog_file(warehouse)
        self._opening = threading.Lock()
        self._opened: SqlCatalog | None = None
        # A metadata file never changes: what was written last need not be read again.
        self._written: dict[str, Metadata] = {}
        try:
            warehouse.mkdir(parents=True, exist_ok=True)
            # Two processes that open a new catalog at once would both create its tables.
            with FileLock(warehouse / ".catalog.lock"), self._connect() as connection:
                connection.executescript(SCHEMA)
        except sqlite3.DatabaseError as error:
            raise CatalogError(
                f"The Iceberg catalog {self._path} is damaged ({error}). Restore it from a backup, "
                "or move it away to start over: the tables' data and metadata files stay where "
                "they are and can be registered again."
            ) from error
        except OSError as error:
            raise CatalogError(
                f"The warehouse {warehouse} cannot be written ({error.strerror}). Free space, "
                "mend its permissions, or set another `warehouse` in the profile."
            ) from error

    @property
    def catalog(self) -> SqlCatalog:
        """PyIceberg's client of the catalog."""
        with self._opening:
            if self._opened is None:
                self._opened = open_catalog(self._name, self._path.parent)
            return self._opened

    def ask(self, operation: str, question: Callable[[Catalog], T]) -> T:
        return question(self.catalog)

    def check_write(self, namespace: str, name: str, rows_only: bool = False) -> None:
        """Whoever can open the file may write."""

    def capabilities(self) -> dict[str, bool]:
        return {"views": True, "replacing views": True, COMMITS_TOGETHER: True}

    def close(self) -> None:
        with self._opening:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def namespaces(self) -> list[str]:
        return [name for (name,) in self._rows(NAMESPACES)]

    def namespace_exists(self, namespace: str) -> bool:
        return namespace in self.namespaces()

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace; one that is there, or that another run makes now, is kept."""
        self._rows(CREATE_NAMESPACE, namespace=namespace)

    def relations(self, namespace: str) -> list[tuple[str, str]]:
        """Names and kinds (`table` or `view`) in a namespace; none where it is missing."""
        return self._rows(RELATIONS, namespace=namespace)

    def metadata(self, namespace: str, name: str) -> Metadata | None:
        """Current metadata of a table or view; None if there is neither."""
        while location := self._location(namespace, name):
            try:
                return self._read(location)
            except FileNotFoundError:
                # Another commit may have replaced and removed it; a lost one stays lost.
                if self._location(namespace, name) == location:
                    raise
        return None

    def load(self, namespace: str, name: str, history: bool = True) -> LoadedTable | None:
        """The table as it is now, None if there is none."""
        from pyiceberg.io import load_file_io

        from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable

        while location := self._location(namespace, name):
            try:
                metadata = self._read(location)
            except FileNotFoundError:
                if self._location(namespace, name) == location:
                    raise
                continue
            if "current-version-id" in metadata:
                return None
            return LoadedTable((namespace, name), metadata, location, load_file_io({}, location))
        return None

    def stage(
        self,
        namespace: str,
        name: str,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
    ) -> LoadedTable:
        """A table that its first commit will make."""
        from pyiceberg.io import load_file_io
        from pyiceberg.table.metadata import new_table_metadata
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

        from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, as_json

        location = f"{_uri(self._path.parent)}/{namespace}/{name}"
        made = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, location, dict(properties))
        metadata = dict(as_json(made))
        if metadata["format-version"] >= 3:
            metadata.setdefault("next-row-id", 0)
        return LoadedTable((namespace, name), metadata, "", load_file_io({}, location))

    def commit(
        self,
        base: LoadedTable,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
    ) -> None:
        """Swap the metadata, if they still are what they were when the table was loaded."""
        from dbt.adapters.iceberg_stream.catalog.tables import TableCommit

        self.commit_all([TableCommit(base, tuple(requirements), tuple(updates))])

    def commit_all(self, commits: Sequence[TableCommit]) -> None:
        """The same with several tables, in one transaction of the database."""
        written = [(commit.base, *_write_metadata(commit)) for commit in commits]
        place = ", ".join(".".join(commit.base.name) for commit in commits)
        try:
            lost = self._swap([(base, new) for base, new, _ in written])
        except sqlite3.OperationalError as error:
            raise CommitStateUnknown(
                f"The SQLite catalog {self._path} did not take the commit to {place} "
                f"({error}): another process may hold it."
            ) from error
        if lost is not None:
            for base, new, _ in written:
                base.io.delete(new)
            raise CommitConflict(f"Another writer has committed to {'.'.join(lost)}.")
        self._written = {new: metadata for _, new, metadata in written}
        for base, _, metadata in written:
            _delete_old_metadata(base, metadata)

    def _swap(self, tables: Sequence[tuple[LoadedTable, str]]) -> tuple[str, str] | None:
        """Make new metadata the tables' own; the table that has changed if one has."""
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

    def drop_namespace(self, namespace: str) -> None:
        """Drop an empty namespace; a missing one is fine."""
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            self.catalog.drop_namespace(namespace)
        except NoSuchNamespaceError:
            return

    def drop(self, namespace: str, name: str) -> None:
        """Drop a table or view with its files; a missing one is fine."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            self.catalog.purge_table((namespace, name))
        except NoSuchTableError:
            self._rows(DROP_VIEW, namespace=namespace, name=name)

    def _read(self, location: str) -> Metadata:
        written = self._written.get(location)
        return read_metadata(location) if written is None else written

    def _location(self, namespace: str, name: str) -> str | None:
        rows = self._rows(LOCATION, namespace=namespace, name=name)
        return str(rows[0][0]) if rows else None

    def _rows(self, sql: str, **parameters: str) -> list[Any]:
        with self._connect() as connection, connection:
            return connection.execute(sql, {"catalog": self._name, **parameters}).fetchall()

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS)) as connection:
            yield connection


def _write_metadata(commit: TableCommit) -> tuple[str, Metadata]:
    """Where the table's metadata are after the commit, and what they are."""
    from dbt.adapters.iceberg_stream.catalog.tables import next_location, updated

    base = commit.base
    new, metadata = next_location(base), updated(base.metadata, base.location, commit.updates)
    # Nobody else has this name: whether the file is there need not be asked.
    with base.io.new_output(new).create(overwrite=True) as stream:
        stream.write(orjson.dumps(metadata))
    return new, metadata


def _delete_old_metadata(base: LoadedTable, metadata: Metadata) -> None:
    """Remove metadata files that the log has dropped, where the table wants that."""
    properties = metadata.get("properties") or {}
    if str(properties.get(DELETE_OLD_METADATA, "false")).lower() != "true":
        return
    kept = {entry["metadata-file"] for entry in metadata.get("metadata-log") or []}
    for entry in base.metadata.get("metadata-log") or []:
        if entry["metadata-file"] not in kept:
            # What cannot be removed is left to the maintenance of orphans.
            with suppress(OSError):
                base.io.delete(entry["metadata-file"])
