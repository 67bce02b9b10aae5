"""Streams that a table does not know, and those that it forgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.maintenance.check.streams import check_streams
from dbt.adapters.iceberg_stream.maintenance.steps.stream_readers import stream_readers
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import DeletedKeysUpdate
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.known_streams import add_stream, forget_stream
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress, read_property
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from tests.unit.local_tables import NAME, load, make_catalog, make_table, set_metadata, write
from tests.unit.maintenance.small_tables import ONE_ROW

OLD, NEW = "model.old.orders", "model.new.orders"
FRONTIER = {"table-uuid": "u", "snapshot-id": 7}


@pytest.fixture
def lake(tmp_path: Path) -> IcebergCatalog:
    """A table that the stream OLD has written a row to."""
    lake = make_catalog(tmp_path)
    make_table(lake)
    progress = Progress(OLD, 3, frontier=FRONTIER, write_id="w")
    change = append(*write(lake, ONE_ROW), properties=progress.summary(FRONTIER))
    keys = DeletedKeysUpdate(()).as_updates(OLD)
    Committer(lake, NAME, change, load(lake), (progress.as_property(), *keys)).commit()
    return lake


def claim(lake: IcebergCatalog, sink_id: str, refresh: bool = False) -> Progress:
    sink = Sink(lake, NAME, Progress(sink_id))
    sink.claim(refresh=refresh)
    return sink.progress


def expire(lake: IcebergCatalog) -> None:
    set_metadata(lake, snapshots=[], refs={}, snapshot_log=[], current_snapshot_id=None)


def test_a_renamed_stream_stops(lake: IcebergCatalog) -> None:
    with pytest.raises(StreamError, match=f"set `sink_id: {OLD}`"):
        claim(lake, NEW)
    assert claim(lake, OLD).frontier == FRONTIER
    assert read_property(load(lake).metadata, NEW) is None


def test_a_renamed_stream_may_replace_all_rows(lake: IcebergCatalog) -> None:
    assert claim(lake, NEW, refresh=True).frontier is None
    with pytest.raises(StreamError, match="A full refresh of the stream model.new.orders has not"):
        claim(lake, NEW)
    sink = Sink(lake, NAME, Progress(NEW), replaces=True)
    sink.claim(refresh=True)
    sink.commit("w2", [WrittenBatch(BatchRange(None, FRONTIER), ())])
    assert claim(lake, NEW).frontier == FRONTIER


def test_several_streams_may_write(lake: IcebergCatalog) -> None:
    assert add_stream(lake, NAME, NEW).frontier is None
    assert claim(lake, NEW).frontier is None
    assert claim(lake, OLD).frontier == FRONTIER
    with pytest.raises(StreamError, match="writes to s.t already"):
        add_stream(lake, NAME, NEW)


def test_a_stream_that_has_read_nothing_is_no_other(tmp_path: Path) -> None:
    lake = make_catalog(tmp_path)
    make_table(lake)
    claim(lake, OLD)
    assert claim(lake, NEW).frontier is None


@pytest.mark.parametrize("expired", [False, True])
def test_a_forgotten_stream_stops(lake: IcebergCatalog, expired: bool) -> None:
    """Whether its snapshots are still there makes no difference."""
    forget_stream(lake, NAME, OLD)
    if expired:
        expire(lake)
    for name, message in ((OLD, "was removed by"), (NEW, "has not written")):
        with pytest.raises(StreamError, match=message):
            claim(lake, name)
    claimed = claim(lake, OLD, refresh=True)
    assert claimed.version > 3 and claimed.must_refresh == expired
    assert read_property(load(lake).metadata, OLD) is not None


@pytest.mark.parametrize("expired", [False, True])
def test_a_forgotten_stream_that_is_added(lake: IcebergCatalog, expired: bool) -> None:
    forget_stream(lake, NAME, OLD)
    if expired:
        expire(lake)
    begin = add_stream(lake, NAME, OLD)
    claimed = claim(lake, OLD)
    assert claimed.frontier == begin.frontier == (None if expired else FRONTIER)
    assert claimed.version > 3


def test_nothing_waits_for_a_forgotten_stream(lake: IcebergCatalog) -> None:
    assert [reader.sink_id for reader in stream_readers([lake], "u")] == [OLD, OLD]
    forget_stream(lake, NAME, OLD)
    assert stream_readers([lake], "u") == []
    assert list(check_streams(load(lake).metadata)) == []
    # Other streams may get changes that are older than its deletes.
    assert any("deleted-keys" in name for name in load(lake).metadata["properties"])
    with pytest.raises(StreamError, match=f"no progress of the stream {OLD}. It has that of: none"):
        forget_stream(lake, NAME, OLD)
