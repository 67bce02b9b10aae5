"""The SQLite catalog that Spark (`jdbc`) and PyIceberg (`sql`) share."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from filelock import FileLock
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchViewError
from pyiceberg.typedef import Identifier
from sqlalchemy import delete, event, select
from sqlalchemy.orm import Session

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError

VIEW_TYPE = "VIEW"
BUSY_SECONDS = 30


def catalog_file(warehouse: Path) -> Path:
    """Where a warehouse keeps its SQLite catalog."""
    return warehouse / "catalog.db"


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
        f"{prefix}.warehouse": warehouse.as_uri(),
        f"{prefix}.cache-enabled": "false",
        "spark.sql.defaultCatalog": name,
    }


class SqliteCatalog(SqlCatalog):
    """PyIceberg's SQL catalog, and the views that Spark keeps in the same table."""

    @classmethod
    def open(cls, name: str, warehouse: Path) -> SqliteCatalog:
        """Open the catalog, made on first use.

        Raises:
            CatalogError: the file is no SQLite catalog or its folder cannot be written.
        """
        path = catalog_file(warehouse)
        try:
            warehouse.mkdir(parents=True, exist_ok=True)
            _check_readable(path)
        except sqlite3.DatabaseError as error:
            raise CatalogError(
                f"The Iceberg catalog {path} is damaged ({error}). Restore it from a backup, or "
                "move it away to start anew: the tables' data and metadata files stay where they "
                "are and can be registered again."
            ) from error
        except OSError as error:
            raise CatalogError(
                f"The warehouse {warehouse} cannot be written ({error.strerror}). Free space, "
                "mend its permissions, or set another `warehouse` in the profile."
            ) from error
        # Two processes that open a new catalog at once would both create its tables.
        with FileLock(warehouse / ".catalog.lock"):
            return cls(name, uri=f"sqlite:///{path}", warehouse=warehouse.as_uri())

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        event.listen(self.engine, "connect", _wait_for_other_writers)
        self.engine.dispose()

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        """Names of the views of a namespace."""
        dotted = self.namespace_to_string(namespace)
        query = select(IcebergTables.table_name).where(
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == dotted,
            IcebergTables.iceberg_type == VIEW_TYPE,
        )
        with Session(self.engine) as session:
            return [(dotted, row) for row in session.scalars(query)]

    def view_metadata_location(self, identifier: tuple[str, str]) -> str:
        """Where a view's current metadata file is.

        Raises:
            NoSuchViewError: there is no such view.
        """
        namespace, name = identifier
        query = select(IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == name,
            IcebergTables.iceberg_type == VIEW_TYPE,
        )
        with Session(self.engine) as session:
            location = session.scalar(query)
        if location is None:
            raise NoSuchViewError(f"View does not exist: {namespace}.{name}")
        return str(location)

    def drop_view(self, identifier: str | Identifier) -> None:
        """Drop a view; a missing one is fine."""
        namespace, name = self.identifier_to_tuple(identifier)
        statement = delete(IcebergTables).where(
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == name,
            IcebergTables.iceberg_type == VIEW_TYPE,
        )
        with Session(self.engine) as session:
            session.execute(statement)
            session.commit()


def _check_readable(path: Path) -> None:
    if path.exists():
        with sqlite3.connect(path, timeout=BUSY_SECONDS) as connection:
            connection.execute("select count(*) from sqlite_master").fetchone()


def _wait_for_other_writers(connection: sqlite3.Connection, _record: Any) -> None:
    connection.execute(f"pragma busy_timeout = {BUSY_SECONDS * 1000}")
