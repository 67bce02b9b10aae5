"""Locations: paths with any character, and the comparison of two spellings."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io import FileIO

from dbt.adapters.iceberg_stream.catalog import storage
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CommitConflict
from dbt.adapters.iceberg_stream.catalog.locations import (
    comparable,
    comparable_folder,
    comparables,
    file_uri,
    is_within,
    local_path,
    spark_path,
    split_location,
)
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend, spark_settings
from dbt.adapters.iceberg_stream.catalog.storage import CatalogFileIO, write_new
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from tests.unit.local_tables import insert, load, make_table, rows

STRANGE = "a b#c?d%2Fé'"
ROW = pa.table({"id": pa.array([1], pa.int64()), "x": ["a"]})


def open_catalog(warehouse: Path) -> IcebergCatalog:
    backend = SqliteBackend("lake", warehouse)
    backend.create_namespace("s")
    return IcebergCatalog("lake", backend)


@pytest.mark.parametrize("name", [STRANGE, "x;y", "50%", "a+b&c=d", "[x]*", "a\\b", "日本 🦆"])
def test_a_warehouse_with_any_name(tmp_path: Path, name: str) -> None:
    """All files are in the warehouse, and the catalog can be opened again."""
    (tmp_path / "mine").write_text("untouched")
    before = set(tmp_path.iterdir())
    warehouse = tmp_path / name / "warehouse"
    for count in (1, 2):
        lake = open_catalog(warehouse)
        if count == 1:
            make_table(lake)
        insert(lake, ROW)
        assert rows(lake) == [(1, "a")] * count
        lake.put_view(("s", "v"), VIEW)
        lake.set_view_properties(("s", "v"), {"comment": str(count)})
        assert lake.comment(("s", "v")) == str(count)
        assert list(warehouse.glob("s/t/data/*.parquet"))
        assert list(warehouse.glob("s/v/metadata/*.metadata.json"))
        lake.close()
    lake = open_catalog(warehouse)
    drop_table(lake, ("s", "t"))
    assert not [path for path in warehouse.glob("s/t/**/*") if path.is_file()]
    lake.close()
    assert set(tmp_path.iterdir()) - before == {tmp_path / name.split("/")[0]}


VIEW = {
    "current-version-id": 1,
    "versions": [
        {
            "version-id": 1,
            "schema-id": 0,
            "timestamp-ms": 0,
            "summary": {},
            "default-namespace": ["s"],
            "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
        }
    ],
    "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
}


@pytest.mark.parametrize("prefix", ["", "#1", "?x"])
def test_files_beside_the_project_stay(tmp_path: Path, prefix: str) -> None:
    """The metadata of a table in `notes#1` once replaced the file `notes`."""
    (tmp_path / "notes").write_text("mine")
    warehouse = tmp_path / (f"notes{prefix}" if prefix else "other")
    lake = open_catalog(warehouse)
    make_table(lake)
    insert(lake, ROW)
    assert (tmp_path / "notes").read_text() == "mine"
    assert local_path(load(lake).location).is_relative_to(warehouse)  # type: ignore[union-attr]
    lake.close()


def test_a_view_that_spark_created(tmp_path: Path) -> None:
    """Spark stores `file:/`, and the view was once replaced in the current folder."""
    lake = open_catalog(tmp_path / "warehouse")
    lake.put_view(("s", "v"), {**VIEW, "location": "ignored"})
    backend = lake._backend
    location = backend._location("s", "v")  # type: ignore[attr-defined]
    path = local_path(location)
    assert path is not None
    path.write_text(path.read_text().replace("file:///", "file:/"))
    lake.put_view(("s", "v"), VIEW)
    lake.set_view_properties(("s", "v"), {"comment": "new"})
    assert len(list(path.parent.iterdir())) == 3
    lake.close()


def test_a_view_that_is_dropped_leaves_no_folder(tmp_path: Path) -> None:
    lake = open_catalog(tmp_path / "warehouse")
    lake.put_view(("s", "v"), VIEW)
    lake.set_view_properties(("s", "v"), {"comment": "new"})
    folder = tmp_path / "warehouse" / "s" / "v"
    written, _ = (folder / "metadata").iterdir()
    written.with_name(f".{written.name}.crc").write_text("as Spark writes")
    # Spark compresses the file of a new view.
    compressed = written.with_name("00000-0.gz.metadata.json")
    compressed.write_bytes(gzip.compress(written.read_bytes()))
    lake.unregister(("s", "v"))
    assert not folder.exists()
    lake.close()


@pytest.mark.parametrize("is_read", [False, True])
def test_a_view_that_is_dropped_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """Between the looks at its location and at its file, or later."""
    lake = open_catalog(tmp_path / "warehouse")
    read = lake._backend._read  # type: ignore[attr-defined]

    def drop_first(location: str) -> Metadata:
        monkeypatch.undo()
        found = read(location) if is_read else None
        lake.unregister(("s", "v"))
        return found or read(location)

    for change in (lake.put_view, lake.set_view_properties):
        lake.put_view(("s", "v"), VIEW)
        monkeypatch.setattr(lake._backend, "_read", drop_first)
        if change == lake.put_view:
            change(("s", "v"), VIEW)
            lake.unregister(("s", "v"))
        else:
            with pytest.raises(CommitConflict):
                change(("s", "v"), {"comment": "new"})
        folder = tmp_path / "warehouse" / "s" / "v"
        assert [path for path in folder.rglob("*") if path.is_file()] == []
    lake.close()


def test_a_view_that_is_dropped_before_its_new_file_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one who drops it also removes the file that has just been written."""
    lake = open_catalog(tmp_path / "warehouse")

    def drop_then(io: FileIO, location: str, content: bytes) -> None:
        monkeypatch.undo()
        write_new(io, location, content)
        lake.unregister(("s", "v"))

    lake.put_view(("s", "v"), VIEW)
    monkeypatch.setattr(storage, "write_new", drop_then)
    with pytest.raises(CommitConflict, match="at the same time"):
        lake.set_view_properties(("s", "v"), {"comment": "new"})
    lake.put_view(("s", "v"), VIEW)
    monkeypatch.setattr(storage, "write_new", drop_then)
    lake.put_view(("s", "v"), {**VIEW, "summary": {"a": "b"}})
    assert lake.metadata(("s", "v")) is not None
    lake.close()


def test_a_file_that_exists_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        write_new(CatalogFileIO(), file_uri(path), b"new")
    assert path.read_text() == "mine"


def test_the_uri_for_spark_is_encoded() -> None:
    settings = spark_settings("lake", Path("/w") / STRANGE)
    assert settings["spark.sql.catalog.lake.uri"] == (
        "jdbc:sqlite:file:///w/a%20b%23c%3Fd%252F%C3%A9%27/catalog.db?busy_timeout=30000"
    )
    assert settings["spark.sql.catalog.lake.warehouse"] == f"file:///w/{STRANGE}"


def test_split() -> None:
    assert split_location("file:///a b#c?d%2F") == ("file", "", "/a b#c?d%2F")
    assert split_location("file:/a/b") == split_location("/a/b") == ("file", "", "/a/b")
    assert split_location("file://localhost/a") == ("file", "", "/a")
    assert split_location("s3a://b/k#1?x") == ("s3a", "b", "b/k#1?x")
    assert split_location("hdfs://n:8020/a#") == ("hdfs", "n:8020", "/a#")
    assert local_path("s3://b/k") is None and local_path("file:/a") == Path("/a")


def test_globs_of_spark_are_escaped() -> None:
    assert spark_path("file:///a b[x]{y}*?\\#") == "file:///a b\\[x\\]\\{y\\}\\*\\?\\\\#"


@pytest.mark.parametrize(
    "spellings",
    [
        ("file:///a/b", "file:/a/b", "/a/b", "FILE:/a//b/", "file:///a/./b", "file:/a/c/../b"),
        ("s3://b/k/x", "s3a://b/k/x", "s3n://b/k//x", "S3://b/k/x/"),
        ("hdfs://n/a", "hdfs://n:8020/a", "hdfs:///a", "hdfs:/a", "hdfs://n//a"),
        ("gs://b/k", "gcs://b/k"),
        ("abfss://c@x.dfs.core.windows.net/k", "wasbs://c@x.blob.core.windows.net/k"),
        ("abfs://c/k", "abfss://c/k"),
    ],
)
def test_spellings_of_one_location(spellings: tuple[str, ...]) -> None:
    assert len({comparable(spelling) for spelling in spellings}) == 1


def test_other_locations() -> None:
    others = ["/a/b", "/a/b ", "/a/B", "s3://a/b", "s3://b/a/b", "s3://x/b", "gs://a/b", "/a/b%20"]
    assert len({comparable(location) for location in others}) == len(others)
    assert comparables("file:/a%20b") == {comparable("/a%20b"), comparable("/a b")}
    assert comparable("/a/x=\0/b") in comparables("file:/a/x=%00/b")
    assert comparables("s3://b/k#1") == {comparable("s3://b/k#1"), comparable("s3://b/k")}
    assert is_within(comparable("/a/b/c"), comparable("/a/b/"))
    assert is_within(comparable("s3a://b/t"), comparable("s3://b"))
    assert not is_within(comparable("/a/bc"), comparable("/a/b"))


def test_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert comparable(f"{tmp_path}/link/x") == comparable(f"{tmp_path}/real/x")


def test_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "table").symlink_to(tmp_path / "disk")
    folder = comparable_folder(f"file://{tmp_path}/table")
    assert is_within(comparable(f"{tmp_path}/disk/f"), folder)
    assert is_within(comparable(f"{tmp_path}/table/f"), folder)
