"""Metadata files of the SQLite catalog, which grow with each commit unless the old ones go."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.backend import TABLE_DEFAULTS
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CommitConflict
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.unit.local_tables import NAME, evolve, insert, load, make_table, rows, set_metadata

ROW = pa.table({"id": [1], "x": ["a"]})
DELETE = "write.metadata.delete-after-commit.enabled"
KEEP = "write.metadata.previous-versions-max"


def files(tmp_path: Path) -> set[str]:
    return {f"file://{path}" for path in tmp_path.rglob("*.metadata.json")}


def named(lake: IcebergCatalog) -> set[str]:
    table = load(lake)
    return {table.location, *(e["metadata-file"] for e in table.metadata["metadata-log"])}


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_old_files_go(lake: IcebergCatalog, tmp_path: Path, keep: int) -> None:
    make_table(lake, properties={DELETE: "true", KEEP: str(keep)})
    for _ in range(7):
        insert(lake, ROW)
    assert files(tmp_path) == named(lake)
    assert len(files(tmp_path)) == keep + 1
    assert len(rows(lake)) == 7


@pytest.mark.parametrize("wanted", ["false", "FALSE"])
def test_they_stay_where_that_is_wanted(lake: IcebergCatalog, tmp_path: Path, wanted: str) -> None:
    make_table(lake, properties={DELETE: wanted, KEEP: "2"})
    for _ in range(4):
        insert(lake, ROW)
    assert len(files(tmp_path)) == 5
    assert len(named(lake)) == 3


def test_a_smaller_number_takes_more_away(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake, properties={DELETE: "True", KEEP: "5"})
    for _ in range(6):
        insert(lake, ROW)
    evolve(lake, properties={KEEP: "1"})
    assert files(tmp_path) == named(lake)
    assert len(files(tmp_path)) == 2


def test_a_file_that_is_gone_is_no_fault(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake, properties={DELETE: "true", KEEP: "1"})
    insert(lake, ROW)
    for entry in load(lake).metadata["metadata-log"]:
        Path(entry["metadata-file"].removeprefix("file://")).unlink()
    insert(lake, ROW)
    insert(lake, ROW)
    assert len(rows(lake)) == 3


def test_a_lost_commit_removes_nothing_of_the_table(lake: IcebergCatalog, tmp_path: Path) -> None:
    base = make_table(lake, properties={DELETE: "true", KEEP: "1"})
    insert(lake, ROW)
    with pytest.raises(CommitConflict):
        lake.commit(base, (), ())
    assert files(tmp_path) == named(lake)


def test_tables_of_ours_keep_some(lake: IcebergCatalog, tmp_path: Path) -> None:
    ingest(lake, NAME, ROW.to_reader(), Mode.CREATE)
    for _ in range(25):
        ingest(lake, NAME, ROW.to_reader())
    assert files(tmp_path) == named(lake)
    assert len(files(tmp_path)) == 21


def test_a_stream_takes_an_older_table_over(lake: IcebergCatalog) -> None:
    make_table(lake)
    set_metadata(lake, properties={})
    Sink(lake, NAME, Progress("sink")).claim()
    properties = load(lake).metadata["properties"]
    assert {key: properties[key] for key in TABLE_DEFAULTS} == TABLE_DEFAULTS


def test_what_a_user_has_set_stays(lake: IcebergCatalog) -> None:
    make_table(lake)
    set_metadata(lake, properties={DELETE: "false"})
    Sink(lake, NAME, Progress("sink")).claim()
    properties = load(lake).metadata["properties"]
    assert properties[DELETE] == "false"
    assert KEEP not in properties
    data = ROW.to_reader()
    ingest(lake, ("s", "other"), data, Mode.CREATE, properties={DELETE: "false"})
    assert load(lake, ("s", "other")).metadata["properties"][DELETE] == "false"


def test_spark_makes_tables_with_the_same(tmp_path: Path) -> None:
    given = {"type": "rest", "uri": "http://x", f"table-default.{KEEP}": "7"}
    for settings, kept in (
        (spark_settings("lake", tmp_path), "20"),
        (CatalogSettings("lake", given).spark(), "7"),
    ):
        assert settings[f"spark.sql.catalog.lake.table-default.{DELETE}"] == "true"
        assert settings[f"spark.sql.catalog.lake.table-default.{KEEP}"] == kept
