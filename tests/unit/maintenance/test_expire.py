"""Which snapshots expire: not those that the table, a branch, a tag or a stream needs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import SetPropertiesUpdate, SetSnapshotRefUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.clone_tags import CloneTag
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.maintenance.maintain import Status, StepReport, maintain
from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.maintenance.steps.stream_readers import stream_readers
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from tests.unit.local_tables import NAME, load, make_catalog, make_table, set_metadata, write
from tests.unit.maintenance.small_tables import (
    DAY_MS,
    ONE_ROW,
    Procedures,
    age,
    make_fragmented,
    record_reader,
)

EXPIRE = MaintenanceSettings(("expire_snapshots",))
COPY = ("s", "copy")
NOW = int(time.time() * 1000)
COUNTS = {"deleted_data_files_count": 2, "deleted_manifest_files_count": None}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    """A catalog whose tables may have metadata that Iceberg refuses: those of tests are aged."""
    catalog = make_catalog(tmp_path)
    yield catalog
    catalog.close()


def expire(lake: IcebergCatalog) -> tuple[StepReport, int | None]:
    """The report, and `older_than` in milliseconds; None if nothing was expired."""
    spark = Procedures(lake, lambda: [COUNTS])
    (report,) = maintain(spark.context, NAME, EXPIRE)
    if not spark.calls:
        return report, None
    moment = re.search(r"older_than => timestamp '(.+) UTC'", spark.calls[0])
    assert moment is not None
    at = datetime.fromisoformat(moment[1]).replace(tzinfo=timezone.utc)
    return report, round(at.timestamp() * 1000)


def times(lake: IcebergCatalog) -> dict[int, int]:
    return {s["snapshot-id"]: s["timestamp-ms"] for s in load(lake).metadata["snapshots"]}


def test_young_snapshots_stay(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 3)
    report, older_than = expire(lake)
    assert older_than is None
    assert "none is older than 120 hours" in report.text


def test_old_snapshots_expire(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 3)
    age(lake, NOW)
    began = int(time.time() * 1000)
    report, older_than = expire(lake)
    ended = int(time.time() * 1000)
    assert report.status is Status.DONE and report.text.startswith("2 of 3 snapshots")
    assert report.text.endswith("2 files removed")
    assert older_than is not None and began <= older_than + 5 * DAY_MS <= ended


def test_the_tables_own_retention(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 3)
    age(lake, NOW)
    own = {"history.expire.max-snapshot-age-ms": str(31 * DAY_MS + DAY_MS // 2)}
    lake.commit(load(lake), (), (SetPropertiesUpdate(updates=own),))
    report, _ = expire(lake)
    assert report.text.startswith("2 of 3 snapshots")
    own = {"history.expire.max-snapshot-age-ms": str(40 * DAY_MS)}
    lake.commit(load(lake), (), (SetPropertiesUpdate(updates=own),))
    assert expire(lake)[1] is None


def test_what_a_stream_reads_stays(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 6)
    ids = age(lake, NOW)
    make_table(lake, name=COPY)
    record_reader(lake, COPY, ids[2])
    report, older_than = expire(lake)
    # Iceberg expires what is strictly older.
    assert older_than == times(lake)[ids[2]]
    assert report.text.startswith("2 of 6 snapshots")


def test_the_oldest_of_several_streams(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 6)
    ids = age(lake, NOW)
    for name, place in (("copy", 4), ("other", 1)):
        make_table(lake, name=("s", name))
        record_reader(lake, ("s", name), ids[place])
    assert expire(lake)[1] == times(lake)[ids[1]]


def test_a_stream_that_has_read_nothing_later(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 3)
    ids = age(lake, NOW)
    make_table(lake, name=COPY)
    record_reader(lake, COPY, ids[0])
    report, older_than = expire(lake)
    assert older_than is None
    assert report.text == (
        f"the stream model.shop.copy of s.copy still needs those since snapshot {ids[0]}"
    )


def test_clocks_that_went_back(lake: IcebergCatalog) -> None:
    """A later snapshot may have an earlier time, by another writer's clock."""
    make_fragmented(lake, 4)
    ids = age(lake, NOW)
    snapshots = load(lake).metadata["snapshots"]
    snapshots[2] = {**snapshots[2], "timestamp-ms": snapshots[0]["timestamp-ms"] - 5}
    set_metadata(lake, snapshots=snapshots)
    make_table(lake, name=COPY)
    record_reader(lake, COPY, ids[1])
    assert expire(lake)[1] is None


def test_a_stream_into_another_catalog(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_fragmented(lake, 6)
    ids = age(lake, NOW)
    other = make_catalog(tmp_path / "other")
    make_table(other, name=COPY)
    record_reader(other, COPY, ids[2], uuid=load(lake).metadata["table-uuid"])
    context = replace(Procedures(lake).context, find_catalogs=lambda: [lake, other])
    (report,) = maintain(context, NAME, EXPIRE)
    other.close()
    assert report.text.startswith("2 of 6 snapshots")


@pytest.mark.parametrize(("principal", "tags"), [("", 0), ("rita", 1)])
def test_tags_of_clones_that_a_user_may_not_see(
    lake: IcebergCatalog, principal: str, tags: int
) -> None:
    """A catalog with users may hide a clone."""
    make_fragmented(lake, 3)
    ids = age(lake, NOW)
    refs = load(lake).metadata["refs"]
    old = str(CloneTag("dev.t", datetime(2020, 1, 1, tzinfo=timezone.utc), "a-b"))
    set_metadata(lake, refs={**refs, old: {"type": "tag", "snapshot-id": ids[0]}})
    context = replace(Procedures(lake).context, principal=principal)
    list(maintain(context, NAME, EXPIRE))
    assert len(load(lake).metadata["refs"]) == 1 + tags


@pytest.mark.parametrize("gone", ["expired", "another table"])
def test_streams_that_need_nothing(lake: IcebergCatalog, gone: str) -> None:
    make_fragmented(lake, 3)
    ids = age(lake, NOW)
    make_table(lake, name=COPY)
    if gone == "expired":
        record_reader(lake, COPY, 4711)
    else:
        record_reader(lake, COPY, ids[0], uuid="of-another-table")
    assert expire(lake)[0].text.startswith("2 of 3 snapshots")


def test_a_stream_whose_table_was_rolled_back(lake: IcebergCatalog) -> None:
    """`iceberg-stream resume` continues from the summary, not from the property."""
    make_fragmented(lake, 6)
    ids = age(lake, NOW)
    make_table(lake, name=COPY)
    uuid = load(lake).metadata["table-uuid"]
    for place in (1, 3):
        frontier = {"snapshot-id": ids[place], "table-uuid": uuid}
        progress = Progress("model.shop.copy", frontier=frontier, write_id=f"w{place}")
        change = append(*write(lake, ONE_ROW, COPY), properties=progress.summary(frontier))
        Committer(lake, COPY, change, load(lake, COPY), (progress.as_property(),)).commit()
    first = load(lake, COPY).metadata["snapshots"][0]["snapshot-id"]
    back = {"ref-name": "main", "type": "branch", "snapshot-id": first}
    lake.commit(load(lake, COPY), (), (SetSnapshotRefUpdate.model_validate(back),))
    readers = {reader.snapshot_id for reader in stream_readers([lake], uuid)}
    assert readers == {ids[1], ids[3]}
    assert expire(lake)[1] == times(lake)[ids[1]]


def test_a_branch_with_a_retention_of_its_own(lake: IcebergCatalog) -> None:
    """Iceberg takes the branch's age then, whatever `older_than` says."""
    make_fragmented(lake, 3)
    ids = age(lake, NOW)
    main = {"type": "branch", "snapshot-id": ids[-1], "max-snapshot-age-ms": DAY_MS}
    set_metadata(lake, refs={"main": main})
    make_table(lake, name=COPY)
    record_reader(lake, COPY, ids[0])
    report, older_than = expire(lake)
    assert older_than is None
    assert "the retention of the branch main (max-snapshot-age-ms) would expire" in report.text


def test_unreadable_streams_forbid_an_expiry(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fragmented(lake, 3)
    age(lake, NOW)
    make_table(lake, name=COPY)

    def refuse(name: tuple[str, str]) -> Any:
        if name == COPY:
            raise CatalogError("The catalog refused to read s.copy for rita")
        return load(lake, name).metadata

    monkeypatch.setattr(lake, "metadata", refuse)
    report, older_than = expire(lake)
    assert report.failed and older_than is None
    assert "The streams into s.copy cannot be read" in report.text
    assert "for rita" in report.text


def test_files_that_other_tables_may_have(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 3)
    age(lake, NOW)
    shared = SetPropertiesUpdate(updates={"gc.enabled": "false"})
    lake.commit(load(lake), (), (shared,))
    report, older_than = expire(lake)
    assert older_than is None and "gc.enabled is false" in report.text


@pytest.mark.parametrize("exists", [True, False])
def test_tags_of_clones(lake: IcebergCatalog, exists: bool) -> None:
    """The tag of a clone keeps its snapshot, until the clone is dropped."""
    make_fragmented(lake, 4)
    ids = age(lake, NOW)
    make_table(lake, name=COPY)
    clone_uuid = load(lake, COPY).metadata["table-uuid"] if exists else "of-no-table"
    tag = f"dbt_clone/dev.orders/20200101T000000Z/{clone_uuid}"
    reference = {"ref-name": tag, "type": "tag", "snapshot-id": ids[1]}
    lake.commit(load(lake), (), (SetSnapshotRefUpdate.model_validate(reference),))
    report, _ = expire(lake)
    assert report.text.startswith("2 of 4 snapshots" if exists else "3 of 4 snapshots")
    assert (tag in load(lake).metadata["refs"]) == exists


def test_unreadable_tables_may_be_clones(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fragmented(lake, 3)
    ids = age(lake, NOW)
    make_table(lake, name=COPY)
    tag = "dbt_clone/dev.orders/20200101T000000Z/of-no-table"
    reference = {"ref-name": tag, "type": "tag", "snapshot-id": ids[0]}
    lake.commit(load(lake), (), (SetSnapshotRefUpdate.model_validate(reference),))
    monkeypatch.setattr(lake, "metadata", lambda name: {}["table-uuid"])
    report, older_than = expire(lake)
    assert report.failed and older_than is None
    assert "cannot be read, and may be a clone" in report.text
    assert tag in load(lake).metadata["refs"]
