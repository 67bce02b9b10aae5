"""The catalog without Spark: PyIceberg writes, the catalog is asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend, catalog_file
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from tests.unit.local_tables import commit, data_file, make_catalog, make_table

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", None]})


def open_catalog(warehouse: Path) -> IcebergCatalog:
    return IcebergCatalog("lake", SqliteBackend("lake", warehouse))


@pytest.fixture
def lake(tmp_path: Path) -> IcebergCatalog:
    lake = open_catalog(tmp_path / "w")
    lake.create_namespace("ns")
    lake.pyiceberg.create_table(("ns", "t"), ROWS.schema).append(ROWS)
    return lake


def test_relations_and_columns(lake: IcebergCatalog) -> None:
    assert lake.namespaces() == ["ns"]
    assert lake.relations("ns") == [("t", "table")]
    assert lake.relations("nowhere") == []
    assert [(c.name, c.type) for c in lake.columns(("ns", "t"))] == [
        ("id", "bigint"),
        ("name", "string"),
    ]
    assert lake.columns(("ns", "nothing")) == []


def test_statistics_and_freshness(lake: IcebergCatalog) -> None:
    (actual,) = lake.describe("ns")
    assert actual.statistics["num_rows"] == ("Rows", 2)
    assert actual.statistics["num_snapshots"] == ("Snapshots", 1)
    assert lake.last_modified(("ns", "t")) is not None


def test_statistics_of_deletes(tmp_path: Path) -> None:
    lake = make_catalog(tmp_path)
    make_table(lake)
    equality = {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": [1]}
    position = {"content": DataFileContent.POSITION_DELETES}
    deletes = (data_file("e", 3, **equality), data_file("p", 2, **position))
    commit(lake, Change(Operation.APPEND, (AddedFiles((data_file("a", 9),), deletes),)))
    (actual,) = lake.describe("s")
    assert actual.statistics["num_delete_files"] == ("Delete files", 2)
    assert actual.statistics["num_equality_deletes"] == ("Equality deletes", 3)
    assert actual.statistics["num_position_deletes"] == ("Position deletes", 2)
    lake.close()


def test_drop_removes_the_files(lake: IcebergCatalog, tmp_path: Path) -> None:
    assert list((tmp_path / "w").rglob("*.parquet"))
    drop_table(lake, ("ns", "t"))
    drop_table(lake, ("ns", "t"))
    assert lake.relations("ns") == []
    assert not list((tmp_path / "w").rglob("*.parquet"))
    lake.drop_namespace("ns")
    lake.drop_namespace("ns")
    assert not lake.namespace_exists("ns")


def test_required_columns(lake: IcebergCatalog) -> None:
    lake.require_columns(("ns", "t"), ["id"])
    lake.require_columns(("ns", "t"), ["id"])
    assert lake.table(("ns", "t")).schema().find_field("id").required


def test_many_open_a_new_catalog_at_once(tmp_path: Path) -> None:
    def create(number: int) -> None:
        open_catalog(tmp_path / "w").create_namespace("ns")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(8)))
    assert open_catalog(tmp_path / "w").namespaces() == ["ns"]


def test_a_damaged_catalog_is_named(tmp_path: Path) -> None:
    catalog_file(tmp_path).write_bytes(b"this is no database, whatever its name says" * 50)
    with pytest.raises(CatalogError, match=r"catalog\.db is damaged .* Restore it from a backup"):
        open_catalog(tmp_path)


def test_a_warehouse_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CatalogError, match="is not writable"):
        open_catalog(tmp_path / "file" / "w")
