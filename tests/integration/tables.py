"""Tables written by our own files and commits, and read by others."""

from __future__ import annotations

import importlib.util
import uuid
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter


def write(lake: IcebergCatalog, name: str, *batches: pa.RecordBatch) -> list[Any]:
    """Data files of the rows, not committed."""
    base = lake.load(("s", name))
    writer = DataFileWriter(WriteTarget.of(base.metadata, base.io), "insert", uuid.uuid4().hex)
    writer.write(batches)
    return writer.close()


def insert(lake: IcebergCatalog, name: str, *batches: pa.RecordBatch) -> Committed:
    base = lake.load(("s", name))
    change = append(*write(lake, name, *batches), properties={})
    return Committer(lake, ("s", name), change, base).commit()


@cache
def duckdb_connection() -> duckdb.DuckDBPyConnection:
    """DuckDB with its Iceberg reader, one for the process."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for extension in ("avro", "iceberg"):
        package = importlib.util.find_spec(f"duckdb_extension_{extension}")
        actual = next(Path(package.origin).parent.rglob("*.duckdb_extension"))
        connection.execute(f"load '{actual}'")
    connection.execute("set timezone = 'UTC'")
    return connection


def duckdb_rows(lake: IcebergCatalog, name: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """Rows of the table as DuckDB reads it, in the order of the first column."""
    location = lake.load(("s", name)).location.removeprefix("file://")
    query = f"select {columns} from iceberg_scan('{location}') order by 1 nulls first"
    # A cursor: several threads may read at once.
    return duckdb_connection().cursor().execute(query).fetchall()


def read_by_duckdb(location: str) -> pa.Table:
    """All rows of a table by its metadata file, for a process that DuckDB may take down with it."""
    path = location.removeprefix("file://")
    rows = duckdb_connection().execute(f"select * from iceberg_scan('{path}')")
    return rows.to_arrow_table()


LATER = datetime.now(timezone.utc) + timedelta(days=1)
