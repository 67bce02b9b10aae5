"""Sinks that are killed, doubled, overtaken, rolled back and compacted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import SetSnapshotRefUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CommitStateUnknown
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.orphans import remove_orphans, unreferenced_files
from dbt.adapters.iceberg_stream.stream.errors import Fenced, RolledBack
from dbt.adapters.iceberg_stream.stream.row_deltas.written import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.rollback import accept_rollback
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles
from dbt.adapters.iceberg_stream.tables.commit.producer import SnapshotProducer
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from tests.integration import stream_writer
from tests.integration.processes import forkserver
from tests.integration.streams import NAME, SINK, Change, commit, make_table, open_sink, write
from tests.integration.tables import LATER, duckdb_rows
from tests.integration.writers import open_catalog

KILLS = 3
SOAK_KILLS = 200
TRIES = 24


@pytest.fixture
def table(place: dict[str, str]) -> Iterator[IcebergCatalog]:
    """A new table, in the place of one that another test had."""
    lake = open_catalog(place)
    lake.create_namespace("s")
    drop_table(lake, NAME)
    make_table(lake)
    yield lake
    lake.close()


def killed_and_restarted(place: dict[str, str], kills: int, batches: int, with_index: bool) -> int:
    """Restart a sink that is killed at random moments: how often that was."""
    context = forkserver()
    chosen, killed = random.Random(kills), 0
    upto = batches * stream_writer.BATCH
    for _ in range(kills):
        process = context.Process(target=stream_writer.drain, args=(place, upto, None, with_index))
        process.start()
        process.join(0.02 + chosen.random() * 0.4)
        killed += process.is_alive()
        process.kill()
        process.join()
    stream_writer.drain(place, upto, with_index=with_index)
    return killed


def require_truth(lake: IcebergCatalog) -> None:
    loaded = lake.load(NAME)
    assert loaded is not None
    reached = stream_writer.frontier(dict(loaded.metadata), SINK)
    assert reached is not None
    expected = stream_writer.truth(reached["offset"]).sorted()
    assert duckdb_rows(lake, "t") == expected
    # What the killed runs have left is what a dry run lists, and nothing else.
    orphans = unreferenced_files(loaded, LATER)
    assert remove_orphans(loaded, orphans) == len(orphans)
    assert unreferenced_files(loaded, LATER) == []
    assert duckdb_rows(lake, "t") == expected
    findings = check_table(loaded, data=True).findings
    assert [finding for finding in findings if finding.severity != "note"] == []


@pytest.mark.parametrize(
    "with_index, place",
    [
        (True, "rest"),
        pytest.param(False, "sqlite", marks=pytest.mark.slow),
        pytest.param(True, "sqlite", marks=pytest.mark.slow),
        pytest.param(False, "rest", marks=pytest.mark.slow),
    ],
    indirect=["place"],
)
def test_killed_at_random_moments(
    table: IcebergCatalog, place: dict[str, str], with_index: bool
) -> None:
    assert killed_and_restarted(place, KILLS, 200, with_index)
    require_truth(table)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("with_index", [False, True])
def test_killed_two_hundred_times(
    table: IcebergCatalog, place: dict[str, str], with_index: bool
) -> None:
    assert killed_and_restarted(place, SOAK_KILLS, 2500, with_index) > SOAK_KILLS / 2
    require_truth(table)


@pytest.mark.parametrize(
    "place", ["sqlite", pytest.param("rest", marks=pytest.mark.slow)], indirect=True
)
def test_of_two_sinks_one_goes_on(table: IcebergCatalog, place: dict[str, str]) -> None:
    """Begun at the same time, or one while the other is in the midst of it."""
    for attempt in range(TRIES):
        first, second = Sinks(place), Sinks(place)
        first.sink.claim()
        if attempt % 2:
            commit(first.sink, [Change(1, "one")], attempt * 10 + 1)
        second.sink.claim()
        both = [threading.Thread(target=one.race, args=(attempt,)) for one in (first, second)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert sorted(one.ended for one in (first, second)) == ["Fenced", "went on"]
        assert second.ended == "went on"
        assert duckdb_rows(table, "t") == [(1, "a", second.value)]


class Sinks:
    """A sink that commits until it is told to stop by another one."""

    def __init__(self, place: dict[str, str]) -> None:
        self.lake = open_catalog(place)
        self.sink = Sink(self.lake, NAME, Progress(SINK), ("id",))
        self.ended, self.value = "", ""

    def race(self, attempt: int) -> None:
        try:
            for number in range(3):
                self.value = f"{id(self)}-{number}"
                commit(self.sink, [Change(1, self.value)], attempt * 10 + number)
            self.ended = "went on"
        except Fenced:
            self.ended = "Fenced"
        finally:
            self.lake.close()


def test_a_lost_answer_is_recognized(
    table: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = open_sink(table)
    real, calls = table.commit, []

    def loses(*arguments: Any) -> None:
        real(*arguments)
        calls.append(1)
        if len(calls) == 1:
            raise CommitStateUnknown("the answer is lost")

    monkeypatch.setattr(table, "commit", loses)
    commit(sink, [Change(1, "x")], 1)
    commit(sink, [Change(1, "y")], 2)
    assert duckdb_rows(table, "t") == [(1, "a", "y")]
    loaded = table.load(NAME)
    assert loaded is not None
    assert len(loaded.metadata["snapshots"]) == 2 == len(calls)


def test_files_of_a_fenced_batch_are_removed(table: IcebergCatalog) -> None:
    older = open_sink(table)
    write_id, written = write(older, [Change(1, "x")], 1)
    newer = open_sink(table)
    with pytest.raises(Fenced, match="has taken over"):
        older.commit(write_id, [written])
    commit(newer, [Change(1, "y")], 1)
    assert [path for path in written.files if Path(path.removeprefix("file://")).exists()] == []


def test_a_rollback_is_refused_and_accepted(table: IcebergCatalog) -> None:
    sink = open_sink(table)
    first = commit(sink, [Change(1, "x")], 1)
    commit(sink, [Change(1, "y")], 2)
    assert first is not None
    roll_back(table, first.snapshot.snapshot_id)
    with pytest.raises(RolledBack, match="rolled back"):
        commit(sink, [Change(1, "z")], 3)
    with pytest.raises(RolledBack, match="iceberg-stream resume"):
        open_sink(table)
    accept_rollback(table, NAME, SINK)
    again = open_sink(table)
    assert again.progress.frontier == {"offset": 1}
    commit(again, [Change(1, "y")], 2)
    assert duckdb_rows(table, "t") == [(1, "a", "y")]


def roll_back(lake: IcebergCatalog, snapshot_id: int) -> None:
    base = lake.load(NAME)
    assert base is not None
    reference = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    lake.commit(base, (), (SetSnapshotRefUpdate.model_validate(reference),))


def compact_and_expire(spark: Session, table: str) -> None:
    options = "map('rewrite-all', 'true')"
    spark.fetch(
        spark.run(f"call lake.system.rewrite_data_files(table => '{table}', options => {options})")
    )
    time.sleep(0.01)
    spark.fetch(
        spark.run(
            f"call lake.system.expire_snapshots(table => '{table}', retain_last => 1, "
            "older_than => timestamp '2999-01-01 00:00:00')"
        )
    )


def test_rolled_back_compacted_and_expired(lake: IcebergCatalog, spark: Session) -> None:
    name = ("s", "rolled_back")
    make_table(lake, name=name)
    sink = open_sink(lake, name)
    first = commit(sink, [Change(1, "x")], 1)
    commit(sink, [Change(2, "y")], 2)
    assert first is not None
    spark.run(
        "call lake.system.rollback_to_snapshot("
        f"table => 's.rolled_back', snapshot_id => {first.snapshot.snapshot_id})"
    )
    compact_and_expire(spark, "s.rolled_back")
    with pytest.raises(RolledBack, match="rolled back"):
        commit(sink, [Change(3, "z")], 3)
    with pytest.raises(RolledBack, match="iceberg-stream resume"):
        open_sink(lake, name)


def test_compacted_and_expired(lake: IcebergCatalog, spark: Session) -> None:
    name = ("s", "compacted")
    make_table(lake, name=name)
    sink = open_sink(lake, name)
    for number in range(4):
        commit(sink, [Change(number, "x"), Change(0, str(number))], number)
    compact_and_expire(spark, "s.compacted")
    spark.run("insert into s.compacted values (9, 'a', 'theirs')")
    again = open_sink(lake, name)
    assert again.progress.frontier == {"offset": 3}
    commit(again, [Change(1, "y"), Change(2, None)], 4)
    rows = as_rows(spark.query("select id, value from s.compacted order by id"))
    assert rows == [(0, "3"), (1, "y"), (3, "x"), (9, "theirs")]


def three_updates(sink: Sink) -> tuple[str, WrittenBatch]:
    return write(sink, [Change(1, "1"), Change(1, "2"), Change(1, "3")], 3, rows=1)


def test_why_one_number_does_not_do(table: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter-example: sub-batches of one key under one data sequence number."""
    sink = open_sink(table)
    write_id, written = three_updates(sink)
    build = SnapshotProducer.build

    def naive(self: SnapshotProducer, metadata: Any) -> Any:
        files = [one for added in self.change.added for one in added.data]
        deletes = [one for added in self.change.added for one in added.deletes]
        object.__setattr__(self.change, "added", (AddedFiles(tuple(files), tuple(deletes)),))
        return build(self, metadata)

    monkeypatch.setattr(SnapshotProducer, "build", naive)
    sink.commit(write_id, [written])
    assert sorted(value for _, _, value in duckdb_rows(table, "t")) == ["1", "2", "3"]


def test_why_the_snapshot_has_the_last_number(
    table: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter-example: it reads right at once, and the next change of the key misses it."""
    sink = open_sink(table)
    write_id, written = three_updates(sink)
    with monkeypatch.context() as patch:
        build = SnapshotProducer.build

        def low(self: SnapshotProducer, metadata: Any) -> Any:
            return build(self, metadata) | {"sequence-number": 1}

        patch.setattr(SnapshotProducer, "build", low)
        sink.commit(write_id, [written])
    assert duckdb_rows(table, "t") == [(1, "a", "3")]
    commit(sink, [Change(1, None)], 4)
    assert duckdb_rows(table, "t") == [(1, "a", "3")]
