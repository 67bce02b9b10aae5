"""Orphans, drops and odd names on an object store, which has no folders."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.storage import write_new
from dbt.adapters.iceberg_stream.maintenance.orphans import (
    delete_removed,
    find_orphans,
    remove_orphans,
    removed_files,
    restore_removed,
)
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.lost_files import assert_nothing_lost
from tests.servers.s3 import REGION, S3, s3_server

ROW = pa.table({"id": pa.array([1], pa.int64())})
LATER = datetime.now(timezone.utc) + timedelta(days=1)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3"), "lake") as server:
        yield server


@pytest.fixture
def lake(s3: S3, tmp_path: Path) -> Iterator[IcebergCatalog]:
    properties = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "warehouse": f"s3://lake/{tmp_path.name}/a b%2Fé",
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
        "s3.region": REGION,
    }
    backend = RemoteBackend(CatalogSettings("lake", properties), None)
    backend.create_namespace("s")
    opened = IcebergCatalog("lake", backend)
    ingest(opened, ("s", "t"), ROW.to_reader(), Mode.CREATE)
    yield opened
    opened.close()


def keys(lake: IcebergCatalog, name: str = "t") -> set[str]:
    """The names of all objects in the table's folder."""
    import pyarrow.fs as fs

    table: Any = lake.load(("s", name))
    target = WriteTarget.of(table.metadata, table.io)
    path = target.path_of(table.metadata["location"])
    listed = target.filesystem().get_file_info(fs.FileSelector(path, recursive=True))
    return {info.path.removeprefix(f"{path}/") for info in listed if info.is_file}


def test_removed_and_brought_back(lake: IcebergCatalog) -> None:
    table: Any = lake.load(("s", "t"))
    before = keys(lake)
    home = table.metadata["location"]
    assert "a b%2Fé" in home
    for name in ("data/lost.parquet", "data/lost%23 é.parquet"):
        write_new(table.io, f"{home}/{name}", b"x")
        with pytest.raises(FileExistsError):
            write_new(table.io, f"{home}/{name}", b"y")
    found = find_orphans(table, LATER, [lake])
    assert len(found) == 2 and remove_orphans(table, found) == 2
    assert {key for key in keys(lake) if not key.startswith("_removed/")} == before
    assert find_orphans(table, LATER, [lake]) == []
    assert restore_removed(table) == (2, [])
    assert keys(lake) == before | {"data/lost.parquet", "data/lost%23 é.parquet"}
    remove_orphans(table, find_orphans(table, LATER, [lake]))
    assert delete_removed(table, LATER, [lake]) == (2, 0)
    assert removed_files(table) == [] and keys(lake) == before
    assert_nothing_lost(lake)


def test_names_that_other_clients_cut(lake: IcebergCatalog) -> None:
    """Iceberg's own clients of object stores would write all files of the table to one object."""
    with pytest.raises(OSError, match="at which Iceberg's clients of object stores cut it"):
        ingest(lake, ("s", "t#1"), ROW.to_reader(), Mode.CREATE)
    assert lake.relations("s") == [("t", "table")]


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_a_table_within_the_folder(lake: IcebergCatalog, scheme: str) -> None:
    table: Any = lake.load(("s", "t"))
    location = table.metadata["location"].replace("s3://", f"{scheme}://") + "/inner/"
    inner = lake.pyiceberg.create_table(("s", "inner"), ROW.schema, location=location)
    inner.append(ROW)
    assert find_orphans(table, LATER, [lake]) == []


def test_a_drop(lake: IcebergCatalog) -> None:
    table: Any = lake.load(("s", "t"))
    lake.register(("s", "copy"), table.location)
    drop_table(lake, ("s", "t"))
    assert lake.table(("s", "copy")).scan().to_arrow() == ROW
    drop_table(lake, ("s", "copy"))
    assert not table.io.new_input(table.location).exists()
