"""Orphans, statistics, and the log of metadata files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.table.update import SetPropertiesUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.maintain import Status, StepReport, maintain
from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from tests.unit.local_tables import NAME, load, make_catalog, set_metadata
from tests.unit.maintenance.small_tables import Procedures, make_fragmented

DELETE = "write.metadata.delete-after-commit.enabled"
VERSIONS = "write.metadata.previous-versions-max"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    catalog = make_catalog(tmp_path)
    yield catalog
    catalog.close()


def run(lake: IcebergCatalog, step: str, **settings: object) -> tuple[StepReport, list[str]]:
    spark = Procedures(lake)
    (report,) = maintain(spark.context, NAME, MaintenanceSettings((step,), **settings))  # type: ignore[arg-type]
    return report, spark.calls


@pytest.fixture
def orphan(lake: IcebergCatalog) -> Path:
    """A file of a write that was killed four days ago."""
    make_fragmented(lake, 2)
    folder = Path(load(lake).metadata["location"].removeprefix("file://"))
    path = folder / "data" / "killed.parquet"
    path.write_bytes(b"0" * 1000)
    four_days_ago = time.time() - 4 * 24 * 60 * 60
    os.utime(path, (four_days_ago, four_days_ago))
    return path


def test_orphans_are_counted(lake: IcebergCatalog, orphan: Path) -> None:
    report, _ = run(lake, "remove_orphans")
    assert report.status is Status.SKIPPED and orphan.exists()
    assert report.text == (
        "1 file without a snapshot, 1,000 bytes, older than 72 hours: remove them with "
        "--remove-orphans"
    )
    report, _ = run(lake, "remove_orphans", orphan_age=timedelta(hours=100))
    assert report.text == "no file older than 100 hours is without a snapshot"


def test_orphans_are_removed_on_demand(lake: IcebergCatalog, orphan: Path) -> None:
    report, _ = run(lake, "remove_orphans", removes_orphans=True)
    assert report.status is Status.DONE
    assert report.text == "1 file removed, to _removed in the table's folder"
    assert not orphan.exists()
    assert report.after is not None and report.after.data_files == 2


def test_removed_orphans_are_deleted_by_a_later_run(lake: IcebergCatalog, orphan: Path) -> None:
    run(lake, "remove_orphans", removes_orphans=True)
    assert run(lake, "remove_orphans", removes_orphans=True)[0].status is Status.SKIPPED
    assert len(list(orphan.parents[1].glob("_removed/*/data/killed.parquet"))) == 1
    report, _ = run(lake, "remove_orphans", removes_orphans=True, keep_removed=timedelta(0))
    assert report.text.endswith("1 file removed earlier deleted")
    assert not list(orphan.parents[1].glob("_removed/**/*.parquet"))


def test_statistics_are_computed_once_for_a_snapshot(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 2)
    report, calls = run(lake, "compute_statistics")
    assert report.status is Status.DONE
    assert calls == ["call `lake`.system.compute_table_stats(table => '`s`.`t`')"]
    old, current = (s["snapshot-id"] for s in load(lake).metadata["snapshots"])
    set_metadata(lake, statistics=[{"snapshot-id": old, "statistics-path": "x"}])
    assert run(lake, "compute_statistics")[1]
    set_metadata(lake, statistics=[{"snapshot-id": current, "statistics-path": "x"}])
    report, calls = run(lake, "compute_statistics")
    assert (report.text, calls) == ("the current snapshot has statistics", [])


def unset_properties(lake: IcebergCatalog, **properties: str) -> None:
    make_fragmented(lake, 2)
    set_metadata(lake, properties=properties)


def test_metadata_files_get_a_limit(lake: IcebergCatalog) -> None:
    unset_properties(lake)
    report, _ = run(lake, "trim_metadata")
    assert report.status is Status.DONE
    assert load(lake).metadata["properties"] == {DELETE: "true", VERSIONS: "20"}
    report, _ = run(lake, "trim_metadata")
    assert report.text == f"{DELETE} is true"


def test_a_limit_of_the_user_stays(lake: IcebergCatalog) -> None:
    unset_properties(lake)
    update = SetPropertiesUpdate(updates={VERSIONS: "500"})
    lake.commit(load(lake), (), (update,))
    run(lake, "trim_metadata")
    assert load(lake).metadata["properties"] == {DELETE: "true", VERSIONS: "500"}


def test_who_keeps_all_metadata_files(lake: IcebergCatalog) -> None:
    unset_properties(lake)
    lake.commit(load(lake), (), (SetPropertiesUpdate(updates={DELETE: "false"}),))
    report, _ = run(lake, "trim_metadata")
    assert report.text == f"{DELETE} is false"
