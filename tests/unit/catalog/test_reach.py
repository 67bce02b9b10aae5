"""Files of tables are below the warehouse, however their metadata spell it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.reach import DISABLED, MOUNTED, OutOfReach, reach
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend, spark_settings
from dbt.adapters.iceberg_stream.catalog.storage import CatalogFileIO, catalog_io
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A warehouse with a file, beside a secret and with a link to it."""
    warehouse = tmp_path / "lake"
    warehouse.mkdir()
    (warehouse / "own").write_text("own")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "lakeside").mkdir()
    (tmp_path / "lakeside" / "secret").write_text("secret")
    (warehouse / "link").symlink_to(tmp_path)
    return tmp_path


INSIDE = ["file://{0}/lake/own", "file:{0}/lake/own", "{0}/lake/own", "FILE://{0}/lake/../lake/own"]
OUTSIDE = [
    "file://{0}/secret",
    "file:{0}/secret",
    "file:////{0}/secret",
    "{0}/secret",
    "FILE://{0}/secret",
    "file://{0}/lake/../secret",
    "file://{0}/lake/link/secret",
    "file://{0}/lakeside/secret",
    "file://{0}/lake/./../lake/../secret",
    "../secret",
    "file://localhost{0}/secret",
    "s3://bucket/secret",
    "hdfs://host/secret",
]


@pytest.mark.parametrize("location", INSIDE)
def test_below_the_warehouse(place: Path, location: str) -> None:
    io = CatalogFileIO(reach((), [str(place / "lake")]))
    with io.new_input(location.format(place)).open() as file:
        assert file.read() == b"own"


@pytest.mark.parametrize("location", OUTSIDE)
@pytest.mark.parametrize(
    "use",
    [
        lambda io, location: io.new_input(location),
        lambda io, location: io.new_output(location),
        lambda io, location: io.delete(location),
    ],
)
def test_elsewhere(place: Path, location: str, use: Callable[[Any, str], Any]) -> None:
    with pytest.raises(OutOfReach, match="outside the catalog's warehouse"):
        use(CatalogFileIO(reach((), [str(place / "lake")])), location.format(place))
    assert (place / "secret").read_text() == "secret"


REST = {"type": "rest", "uri": "https://catalog"}


@pytest.mark.parametrize("table", ["s3://b/t", "abfss://c@a.dfs.core.windows.net/t", "file:///t"])
@pytest.mark.parametrize("ambient", [False, True])
def test_local_files_of_remote_tables(place: Path, table: str, ambient: bool) -> None:
    io = catalog_io(CatalogSettings("lake", REST, ambient).pyiceberg(), table)
    with pytest.raises(OutOfReach):
        io.new_input(f"file://{place}/secret")
    with pytest.raises(OutOfReach):
        io.delete(f"file://{place}/secret")


@pytest.mark.parametrize(
    ("properties", "confined", "allowed"),
    [
        (REST, False, {"s3://b/x"}),
        (REST | {"uri": "http://127.0.0.1:1"}, False, {"s3://b/x", "/lake/x", "/etc/x"}),
        (REST | {"uri": "http://127.0.0.1:1"}, True, {"s3://b/x"}),
        (REST | {"uri": "http://localhost.evil.com"}, False, {"s3://b/x"}),
        (REST | {"warehouse": "file:///lake"}, True, {"s3://b/x", "/lake/x"}),
        (REST | {"warehouse": "/lake"}, False, {"s3://b/x", "/lake/x"}),
        (REST | {"warehouse": "hdfs://h/lake"}, True, {"s3://b/x", "hdfs://h/x"}),
        (REST | {"warehouse": "analytics"}, False, {"s3://b/x"}),
        ({"type": "glue"}, False, {"s3://b/x"}),
        (
            {"type": "jdbc", "uri": "jdbc:sqlite:/lake/c.db"},
            False,
            {"s3://b/x", "/lake/x", "/etc/x"},
        ),
        ({"type": "hive", "uri": "thrift://h:1"}, False, {"s3://b/x", "hdfs://h/x"}),
    ],
)
def test_what_a_catalog_reaches(
    properties: dict[str, str], confined: bool, allowed: set[str]
) -> None:
    settings = CatalogSettings("lake", properties, confined=confined)
    target = WriteTarget.__new__(WriteTarget)
    object.__setattr__(target, "io", CatalogFileIO(settings.pyiceberg()))

    def reached(location: str) -> bool:
        try:
            target.path_of(location)
        except OutOfReach:
            return False
        return True

    locations = ("s3://b/x", "/lake/x", "/etc/x", "hdfs://h/x", "http://h/x", "ftp://h/x")
    assert {location for location in locations if reached(location)} == allowed


def test_spark_has_the_same_reach() -> None:
    prefix = "spark.sql.catalog.lake.hadoop"
    local = spark_settings("lake", Path("/a b#c"), confined=True)
    assert local[f"{prefix}.fs.file.impl"] == MOUNTED
    assert local[f"{prefix}.fs.viewfs.mounttable.default.link./a b#c"] == "file:///a%20b%23c"
    assert local[f"{prefix}.fs.http.impl"] == local[f"{prefix}.fs.hdfs.impl"] == DISABLED
    assert not [name for name in spark_settings("lake", Path("/a")) if "hadoop" in name]
    remote = CatalogSettings("lake", REST, confined=True).spark()
    assert remote[f"{prefix}.fs.file.impl"] == DISABLED
    hadoop = CatalogSettings("lake", REST | {"warehouse": "hdfs://h/w"}, confined=True).spark()
    assert f"{prefix}.fs.hdfs.impl" not in hadoop
    assert not [name for name in CatalogSettings("lake", REST).spark() if "hadoop" in name]


def test_a_warehouse_that_is_a_link(place: Path) -> None:
    (place / "alias").symlink_to(place / "lake")
    with (
        CatalogFileIO(reach((), [str(place / "alias")])).new_input(f"{place}/alias/own").open() as f
    ):
        assert f.read() == b"own"
    properties = REST | {"warehouse": f"file://{place}/alias"}
    spark = CatalogSettings("lake", properties, confined=True).spark()
    mounts = {name.partition(".link.")[2]: v for name, v in spark.items() if ".link." in name}
    assert mounts == dict.fromkeys((f"{place}/alias", f"{place}/lake"), f"file://{place}/lake")


@pytest.fixture
def spied(place: Path) -> IcebergCatalog:
    """A confined catalog with tables that name files outside its warehouse."""
    lake = IcebergCatalog("lake", SqliteBackend("lake", place / "lake"))
    lake.create_namespace("s")
    rows = pa.table({"a": ["secret"]})
    pq.write_table(rows, place / "secret.parquet")
    client = lake.pyiceberg
    client.create_table(("s", "files"), rows.schema).add_files([f"file://{place}/secret.parquet"])
    client.create_table(("s", "moved"), rows.schema, f"file://{place}/moved").append(rows)
    own = client.create_table(("s", "own"), rows.schema)
    own.append(rows)
    metadata = json.loads(Path(own.metadata_location[7:]).read_text())
    listed = metadata["snapshots"][0]["manifest-list"]
    (place / "list.avro").write_bytes(Path(listed[7:]).read_bytes())
    metadata["snapshots"][0]["manifest-list"] = f"file://{place}/list.avro"
    metadata["metadata-log"] = [{"metadata-file": f"file://{place}/secret", "timestamp-ms": 1}]
    metadata["properties"] = {"write.metadata.delete-after-commit.enabled": "true"}
    metadata["properties"] |= {"write.metadata.previous-versions-max": "1"}
    listing = place / "lake" / "s" / "own" / "metadata" / "00009-x.metadata.json"
    listing.write_text(json.dumps(metadata))
    lake.register(("s", "list"), f"file://{listing}")
    lake.close()
    return IcebergCatalog("lake", SqliteBackend("lake", place / "lake", confined=True))


def test_metadata_elsewhere(spied: IcebergCatalog) -> None:
    for read in (spied.load, spied.metadata, spied.table):
        with pytest.raises(OutOfReach):
            read(("s", "moved"))


@pytest.mark.parametrize("name", ["files", "list"])
def test_data_and_manifests_elsewhere(spied: IcebergCatalog, name: str) -> None:
    with pytest.raises(OutOfReach):
        spied.table(("s", name)).scan().to_arrow()


def test_old_metadata_elsewhere_are_not_removed(spied: IcebergCatalog, place: Path) -> None:
    table = spied.load(("s", "list"))
    assert table is not None
    spied.commit(table, (), ())
    assert (place / "secret").exists()
