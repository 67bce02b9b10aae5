"""Which snapshots expire: not those that the table, a branch, a tag or a stream needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import SetPropertiesUpdate, SetSnapshotRefUpdate

from dbt.adapters.iceberg_stream.builds.names import staged_name
from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.clone_tags import CloneTag
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.maintenance.maintain import Status, StepReport, maintain
from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.maintenance.steps.stream_readers import stream_readers
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.tables.clones import clone_table
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from tests.unit.local_tables import (
    NAME,
    files,
    home,
    live,
    load,
    make_catalog,
    make_table,
    rows,
    set_metadata,
    write,
)
from tests.unit.local_tables import replace as replace_rows
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


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    """A catalog whose tables may have metadata that Iceberg refuses: those of tests are aged."""
    catalog = make_catalog(tmp_path)
    yield catalog
    catalog.close()


def expire(lake: IcebergCatalog) -> tuple[StepReport, int | None]:
    """The report, and the time of the oldest snapshot left; None if nothing was expired."""
    before = load(lake).metadata["snapshots"]
    (report,) = maintain(Procedures(lake).context, NAME, EXPIRE)
    if load(lake).metadata["snapshots"] == before:
        return report, None
    return report, min(times(lake).values())


def times(lake: IcebergCatalog) -> dict[int, int]:
    return {s["snapshot-id"]: s["timestamp-ms"] for s in load(lake).metadata["snapshots"]}


def test_young_snapshots_stay(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 3)
    report, older_than = expire(lake)
    assert older_than is None
    assert "none is older than 120 hours" in report.text


def test_old_snapshots_expire(lake: IcebergCatalog) -> None:
    make_fragmented(lake, 3)
    replace_rows(lake, ONE_ROW)
    ids = age(lake, NOW)
    before = files(home(lake))
    report, _ = expire(lake)
    assert report.status is Status.DONE and report.text.startswith("3 of 4 snapshots")
    removed = before - files(home(lake))
    assert len([path for path in removed if path.suffix == ".parquet"]) == 3
    assert report.text.endswith(f"{len(removed)} files removed")
    assert list(times(lake)) == [ids[3]] and len(rows(lake)) == 1


def register(lake: IcebergCatalog) -> Name:
    lake.register(COPY, load(lake).location)
    return COPY


def stage(lake: IcebergCatalog) -> Name:
    stage_table(lake, NAME, "pr", {})
    return staged_name(NAME, "pr")


def share_file(lake: IcebergCatalog) -> Name:
    make_table(lake, name=COPY)
    Committer(lake, COPY, append(*live(lake), properties={}), load(lake, COPY)).commit()
    return COPY


def stage_clone(lake: IcebergCatalog) -> Name:
    clone = ("s", "clone")
    clone_table(lake, NAME, clone)
    stage_table(lake, clone, "pr", {})
    drop_table(lake, clone)
    return staged_name(clone, "pr")


@pytest.mark.parametrize("use", [register, stage, share_file, stage_clone])
def test_files_that_others_refer_to_stay(
    lake: IcebergCatalog, use: Callable[[IcebergCatalog], Name]
) -> None:
    make_fragmented(lake, 2)
    other = use(lake)
    expected = rows(lake, other)
    replace_rows(lake, ONE_ROW)
    own = {"history.expire.max-snapshot-age-ms": "1"}
    lake.commit(load(lake), (), (SetPropertiesUpdate(updates=own),))
    time.sleep(0.01)
    assert expire(lake)[0].status is Status.DONE
    assert rows(lake, other) == expected


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
    make_fragmented(lake, 3)
    ids = age(lake, NOW)
    main = {"type": "branch", "snapshot-id": ids[-1], "max-snapshot-age-ms": DAY_MS}
    set_metadata(lake, refs={"main": main})
    make_table(lake, name=COPY)
    record_reader(lake, COPY, ids[1])
    expire(lake)
    assert list(times(lake)) == ids[1:]


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
