"""A stream's sink against a plain dict that replays the same changes; read by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetDefaultSpecUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.stream.errors import RolledBack, StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange
from dbt.adapters.iceberg_stream.stream.sink.progress import FRONTIER, Progress
from dbt.adapters.iceberg_stream.stream.sink.rollback import accept_rollback
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sources.files.landed_files import LandedFile, frontier_after
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, append
from dbt.adapters.iceberg_stream.tables.commit.change import Change as TableChange
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_files
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter
from tests.integration.streams import (
    NAME,
    SINK,
    Change,
    Truth,
    commit,
    make_table,
    open_sink,
    write,
)
from tests.integration.tables import duckdb_rows, insert

BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"), spec_id=0)
BY_VALUE = PartitionSpec(PartitionField(3, 1001, IdentityTransform(), "value"), spec_id=0)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    names = SqliteBackend("lake", tmp_path)
    names.create_namespace("s")
    lake = IcebergCatalog("lake", names)
    yield lake
    lake.close()


CHANGES = st.lists(
    st.builds(
        Change,
        # Not null: where an equality delete applies, DuckDB loses all rows whose key is null.
        key=st.integers(0, 6),
        value=st.one_of(st.none(), st.text("xyz", max_size=2)),
        part=st.sampled_from("ab"),
    ),
    min_size=1,
    max_size=30,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batches=st.lists(CHANGES, min_size=1, max_size=4),
    version=st.sampled_from([2, 3]),
    rows=st.sampled_from([1, 4, 1000]),
    max_keys=st.sampled_from([0, 3, 1000]),
    partitioned=st.booleans(),
    together=st.booleans(),
)
def test_the_table_is_the_truth(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[Change]],
    version: int,
    rows: int,
    max_keys: int,
    partitioned: bool,
    together: bool,
) -> None:
    names = SqliteBackend("lake", tmp_path_factory.mktemp("truth"))
    names.create_namespace("s")
    lake, truth = IcebergCatalog("lake", names), Truth()
    make_table(lake, version, BY_PART if partitioned else PartitionSpec())
    sink = open_sink(lake)
    written = []
    for number, changes in enumerate(batches):
        truth.apply(changes)
        options = {"rows": rows, "max_keys": max_keys, "partitioned": partitioned}
        write_id, one = write(sink, changes, number, **options)
        written.append(one)
        if not together:
            sink.commit(write_id, [one])
    if together:
        sink.commit(write_id, written)
    assert duckdb_rows(lake, "t") == truth.sorted()


def test_one_commit_of_many_sub_batches(lake: IcebergCatalog) -> None:
    make_table(lake)
    sink = open_sink(lake)
    changes = [Change(1, str(number)) for number in range(10)]
    done = commit(sink, changes, 10, rows=1)
    assert done is not None
    assert duckdb_rows(lake, "t") == [(1, "a", "9")]
    table = lake.load(NAME)
    assert table is not None
    (snapshot,) = table.metadata["snapshots"]
    assert snapshot["sequence-number"] == 10
    manifests = table_manifests(lake)
    assert [(m.content.value, m.added_files_count) for m in manifests] == [(0, 10), (1, 10)]


def table_manifests(lake: IcebergCatalog) -> list:
    table = lake.table(NAME)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return sorted(snapshot.manifests(table.io), key=lambda m: m.content.value)


@pytest.mark.parametrize("field_count", [0, 1])
def test_partitions_that_change_under_a_stream(lake: IcebergCatalog, field_count: int) -> None:
    """A key's row may be in a partition of the old kind: its delete must reach that, too."""
    make_table(lake, spec=BY_PART)
    sink = Sink(lake, NAME, Progress(SINK), ("id", "part"))
    sink.claim()
    commit(sink, [Change(1, "x"), Change(2, "y")], 1, partitioned=True)
    assert sink.plan("w").deletes_by_partition
    base = lake.load(NAME)
    assert base is not None
    fields = [PartitionField(3, 1001, IdentityTransform(), "value")][:field_count]
    default = SetDefaultSpecUpdate.model_validate({"spec-id": -1})
    new = AddPartitionSpecUpdate(spec=PartitionSpec(*fields, spec_id=7))
    lake.commit(base, (), (new, default))
    with pytest.raises(StreamError, match="partition spec of s.t was changed"):
        commit(sink, [Change(1, "z")], 2, partitioned=True)
    assert duckdb_rows(lake, "t") == [(1, "a", "x"), (2, "a", "y")]
    with pytest.raises(StreamError, match="partition spec of s.t was changed"):
        # It would go on after another writer was faster, with partition values of before.
        sink.claim()
    again = Sink(lake, NAME, Progress(SINK), ("id", "part"))
    again.claim()
    assert not again.plan("w").deletes_by_partition
    commit(again, [Change(1, None)], 2, partitioned=True)
    assert duckdb_rows(lake, "t") == [(2, "a", "y")]


HISTORIES = {
    "partitioned at last": [UNPARTITIONED_PARTITION_SPEC, BY_PART],
    "partitioned, unpartitioned, partitioned again": [
        BY_PART,
        UNPARTITIONED_PARTITION_SPEC,
        BY_PART,
    ],
    "unpartitioned at last": [BY_PART, UNPARTITIONED_PARTITION_SPEC],
    "partitioned otherwise": [BY_PART, BY_VALUE, BY_PART],
}


@pytest.mark.parametrize("history", HISTORIES)
def test_a_key_has_one_row_whatever_the_partitions_were(lake: IcebergCatalog, history: str) -> None:
    specs = HISTORIES[history]
    make_table(lake, spec=specs[0])
    for number, spec in enumerate(specs):
        set_spec(lake, spec)
        sink = Sink(lake, NAME, Progress(SINK), ("id", "part"))
        sink.claim()
        # One more row each time, and those from before anew.
        changes = [Change(key, f"v{number}") for key in range(3 + number)]
        by = spec.fields[0].name if spec.fields else ""
        commit(sink, changes, number, partitioned=bool(by), by=by)
    last = len(specs) - 1
    expected = [(key, "a", f"v{last}") for key in range(3 + last)]
    assert duckdb_rows(lake, "t") == expected


def test_rows_that_come_by_an_older_spec(lake: IcebergCatalog) -> None:
    """A writer that has loaded the table before its partitions changed commits by the old ones."""
    make_table(lake)
    set_spec(lake, BY_PART)
    sink = Sink(lake, NAME, Progress(SINK), ("id", "part"))
    sink.claim()
    write_id, one = write(sink, [Change(1, "new")], 1, partitioned=True)
    stale = lake.load(NAME)
    assert stale is not None
    writer = DataFileWriter(
        replace(WriteTarget.of(stale.metadata, stale.io), spec=UNPARTITIONED_PARTITION_SPEC),
        "insert",
        "w",
    )
    writer.write([pa.record_batch({"id": [1], "part": ["a"], "value": ["old"]})])
    files = writer.close()
    Committer(lake, NAME, append(*files, properties={}), stale).commit()
    sink.commit(write_id, [one])
    assert duckdb_rows(lake, "t") == [(1, "a", "new")]


def set_spec(lake: IcebergCatalog, spec: PartitionSpec) -> None:
    base = lake.load(NAME)
    assert base is not None
    updates = [AddPartitionSpecUpdate(spec=spec.model_copy(update={"spec_id": 50}))]
    for existing in base.metadata["partition-specs"]:
        if PartitionSpec.model_validate(existing).compatible_with(spec):
            updates, chosen = [], existing["spec-id"]
            break
    else:
        chosen = -1
    default = SetDefaultSpecUpdate.model_validate({"spec-id": chosen})
    lake.commit(base, (), (*updates, default))


def set_back(lake: IcebergCatalog, snapshot_id: int, *expired: int) -> None:
    """Roll the table back to a snapshot, and expire others."""
    base = lake.load(NAME)
    assert base is not None
    reference = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    updates: list[TableUpdate] = [SetSnapshotRefUpdate.model_validate(reference)]
    if expired:
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": expired}))
    lake.commit(base, (), tuple(updates))


def commit_files(sink: Sink, files: list[LandedFile]) -> int:
    """Commit a batch of a folder's files; the snapshot."""
    write_id, written = write(sink, [Change(1, files[-1].path)], 0)
    batch_range = BatchRange(None, frontier_after(sink.progress.frontier, files, 600.0))
    done = sink.commit(write_id, [replace(written, batch_range=batch_range)])
    assert done is not None
    return int(done.snapshot.snapshot_id)


def landed(first: int, count: int) -> list[LandedFile]:
    return [LandedFile(f"/{n}", 1_700_000_000_000 + n, 1) for n in range(first, first + count)]


def test_a_rollback_of_a_stream_of_files(lake: IcebergCatalog) -> None:
    """Each summary has its own batch's names only; the frontier that comes back has all."""
    make_table(lake)
    sink = open_sink(lake)
    frontiers = {}
    for number in range(4):
        snapshot_id = commit_files(sink, landed(number * 10, 10))
        frontiers[snapshot_id] = sink.progress.frontier
        # As where a batch changes nothing: without a snapshot.
        idle = frontier_after(sink.progress.frontier, landed(1000 + number, 1), 600.0)
        sink.record(idle)
    base = lake.load(NAME)
    assert base is not None
    summaries = [snapshot["summary"][FRONTIER] for snapshot in base.metadata["snapshots"]]
    assert max(map(len, summaries)) < 11 * 16 + 200
    third = list(frontiers)[2]
    set_back(lake, third)
    accepted = accept_rollback(lake, NAME, SINK)
    assert accepted.frontier == frontiers[third]
    again = open_sink(lake)
    commit_files(again, landed(2000, 10))
    assert open_sink(lake).progress.frontier == again.progress.frontier


def test_a_refresh_that_stops_before_its_commit(lake: IcebergCatalog) -> None:
    """The table keeps its rows, and the next run all names of the files that they came from."""
    make_table(lake)
    sink = open_sink(lake)
    for number in range(3):
        commit_files(sink, landed(number * 10, 10))
    whole = sink.progress.frontier
    Sink(lake, NAME, Progress(SINK), ("id",)).claim(None, True)
    assert open_sink(lake).progress.frontier == whole


def test_a_refresh_of_a_rolled_back_table_that_stops(lake: IcebergCatalog) -> None:
    make_table(lake)
    sink = open_sink(lake)
    first, second, _ = (commit_files(sink, landed(n * 10, 10)) for n in range(3))
    set_back(lake, second)
    Sink(lake, NAME, Progress(SINK), ("id",)).claim(None, True)
    frontier = open_sink(lake).progress.frontier
    assert frontier is not None and sum(map(len, frontier["read"].values())) == 20 * 16
    set_back(lake, second, first)
    Sink(lake, NAME, Progress(SINK), ("id",)).claim(None, True)
    assert open_sink(lake).progress.frontier == frontier


def test_progress_of_an_empty_source_is_restored(lake: IcebergCatalog) -> None:
    """A refresh from a source without rows commits, and has read nothing."""
    make_table(lake)
    sink = open_sink(lake)
    sink.replaces = True
    write_id, written = write(sink, [Change(1, "x")], 0)
    done = sink.commit(write_id, [replace(written, batch_range=BatchRange(None, None))])
    commit_files(sink, landed(0, 1))
    assert done is not None
    set_back(lake, done.snapshot.snapshot_id)
    assert accept_rollback(lake, NAME, SINK).frontier is None


def test_a_rollback_behind_which_names_have_expired(lake: IcebergCatalog) -> None:
    make_table(lake)
    sink = open_sink(lake)
    first, second, _ = (commit_files(sink, landed(n * 10, 10)) for n in range(3))
    set_back(lake, second, first)
    with pytest.raises(StreamError, match="Rebuild the table: run the model with --full-refresh"):
        accept_rollback(lake, NAME, SINK)


def compact(lake: IcebergCatalog) -> None:
    base = lake.load(NAME)
    assert base is not None
    (old,) = live_files(base.io, base.metadata)
    writer = DataFileWriter(WriteTarget.of(base.metadata, base.io), "rewrite", "w")
    writer.write([pa.record_batch({"id": [1], "part": ["a"], "value": ["x"]})])
    change = TableChange(Operation.REPLACE, (AddedFiles(tuple(writer.close())),), removed=(old,))
    Committer(lake, NAME, change, base).commit()


def begin_history(lake: IcebergCatalog) -> None:
    """Append to a main that is not there any more, as Spark's `create or replace` does."""
    base = lake.load(NAME)
    assert base is not None
    lake.commit(base, (), (RemoveSnapshotRefUpdate.model_validate({"ref-name": "main"}),))
    insert(lake, "t", pa.record_batch({"id": [9], "part": ["a"], "value": ["other"]}))


def snapshots(lake: IcebergCatalog) -> list[int]:
    base = lake.load(NAME)
    assert base is not None
    return [snapshot["snapshot-id"] for snapshot in base.metadata["snapshots"]]


@pytest.mark.parametrize("expires", ["the first", "both of the stream"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_rolled_back_to_a_compaction(lake: IcebergCatalog, expires: str, goes_on: bool) -> None:
    """What the stream had committed before it has expired, and what came after it is gone."""
    make_table(lake)
    sink = open_sink(lake)
    commit(sink, [Change(1, "x")], 1)
    compact(lake)
    commit(sink, [Change(2, "y")], 2)
    first, compaction, last = snapshots(lake)
    set_back(lake, compaction, *((first, last) if expires != "the first" else (first,)))
    with pytest.raises(RolledBack):
        commit(sink, [Change(3, "z")], 3)
    if goes_on:
        insert(lake, "t", pa.record_batch({"id": [9], "part": ["a"], "value": ["other"]}))
    with pytest.raises(RolledBack):
        open_sink(lake)


def test_replaced_after_the_stream_has_expired(lake: IcebergCatalog) -> None:
    """What replaces a table begins a history of its own, and keeps the properties."""
    make_table(lake)
    commit(open_sink(lake), [Change(1, "x")], 1)
    compact(lake)
    first, compaction = snapshots(lake)
    set_back(lake, compaction, first)
    begin_history(lake)
    with pytest.raises(RolledBack):
        open_sink(lake)


def test_what_has_expired_before_a_compaction(lake: IcebergCatalog) -> None:
    make_table(lake)
    sink = open_sink(lake)
    commit(sink, [Change(1, "x")], 1)
    compact(lake)
    first, compaction = snapshots(lake)
    set_back(lake, compaction, first)
    assert open_sink(lake).progress.frontier == {"offset": 1}


def test_partitions_that_change_before_the_claim(lake: IcebergCatalog) -> None:
    """The query computes partition values of the spec that was there when it was opened."""
    make_table(lake, spec=BY_PART)
    opened = lake.load(NAME)
    assert opened is not None
    spec_id = opened.metadata["default-spec-id"]
    sink = Sink(lake, NAME, Progress(SINK), ("id", "part"), spec_id=spec_id)
    set_spec(lake, BY_VALUE)
    with pytest.raises(StreamError, match="partition spec of s.t was changed"):
        sink.claim()
