"""Two tables of one stream, committed together: on SQLite and on REST."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.stream.errors import Fenced
from dbt.adapters.iceberg_stream.stream.row_deltas.written import WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.commits import commit_batches
from dbt.adapters.iceberg_stream.stream.sink.known_streams import add_stream
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from tests.integration import stream_writer
from tests.integration.processes import forkserver
from tests.integration.streams import SINK, Change, commit, make_table, open_sink, write
from tests.integration.tables import duckdb_rows
from tests.integration.writers import open_catalog

NAMES = stream_writer.TWO
KILLS = 6
COMMITS = 60


@pytest.fixture
def lake(place: dict[str, str]) -> Iterator[IcebergCatalog]:
    """Two new tables, in the place of those that another test had."""
    lake = open_catalog(place)
    lake.create_namespace("s")
    for name in NAMES:
        drop_table(lake, name)
        make_table(lake, name=name)
    yield lake
    lake.close()


def open_sinks(lake: IcebergCatalog) -> list[Sink]:
    return [open_sink(lake, name) for name in NAMES]


def prepared(sinks: Sequence[Sink], value: str, upper: int) -> tuple[str, list[Any]]:
    written = [write(sink, [Change(1, value)], upper) for sink in sinks]
    return written[0][0], [(s, [one]) for s, (_, one) in zip(sinks, written, strict=True)]


def commit_both(sinks: Sequence[Sink], value: str, upper: int) -> list[Committed | None]:
    return commit_batches(*prepared(sinks, value, upper))


def snapshots(lake: IcebergCatalog, name: tuple[str, str]) -> int:
    loaded = lake.load(name)
    assert loaded is not None
    return len(loaded.metadata.get("snapshots") or [])


def files(parts: Sequence[tuple[Sink, Sequence[WrittenBatch]]]) -> list[Path]:
    actual = [file for _, batches in parts for batch in batches for file in batch.files]
    return [Path(file.removeprefix("file://")) for file in actual]


def test_another_writer_is_faster_at_one_of_them(lake: IcebergCatalog) -> None:
    assert lake.commits_together
    sinks = open_sinks(lake)
    commit_both(sinks, "x", 1)
    write_id, parts = prepared(sinks, "y", 2)
    other = Sink(lake, NAMES[1], sinks[1].progress.__class__("another"), ("id",))
    real, calls = lake.commit_all, []

    def overtaken(commits: Sequence[Any]) -> None:
        if not calls:
            calls.append(1)
            add_stream(lake, NAMES[1], "another")
            other.claim()
            commit(other, [Change(7, "theirs")], 1)
        real(commits)

    lake.commit_all = overtaken  # type: ignore[method-assign]
    done = commit_batches(write_id, parts)
    assert [one.attempts for one in done if one] == [2, 2]
    assert duckdb_rows(lake, NAMES[0][1]) == [(1, "a", "y")]
    assert duckdb_rows(lake, NAMES[1][1]) == [(1, "a", "y"), (7, "a", "theirs")]


def test_fenced_at_one_of_them(lake: IcebergCatalog) -> None:
    sinks = open_sinks(lake)
    commit_both(sinks, "x", 1)
    write_id, parts = prepared(sinks, "y", 2)
    open_sink(lake, NAMES[1])
    with pytest.raises(Fenced):
        commit_batches(write_id, parts)
    assert [duckdb_rows(lake, name) for _, name in NAMES] == [[(1, "a", "x")]] * 2
    assert [path for path in files(parts) if path.exists()] == []


def test_a_lost_answer_is_recognized(lake: IcebergCatalog) -> None:
    sinks = open_sinks(lake)
    real, calls = lake.commit_all, []

    def loses(commits: Sequence[Any]) -> None:
        real(commits)
        calls.append(1)
        if len(calls) == 1:
            raise CommitStateUnknown("the answer is lost")

    lake.commit_all = loses  # type: ignore[method-assign]
    commit_both(sinks, "x", 1)
    commit_both(sinks, "y", 2)
    assert [duckdb_rows(lake, name) for _, name in NAMES] == [[(1, "a", "y")]] * 2
    assert [snapshots(lake, name) for name in NAMES] == [2, 2]


def test_one_that_does_not_change_is_not_touched(lake: IcebergCatalog) -> None:
    sinks = open_sinks(lake)
    write_id, (first, (second, batches)) = prepared(sinks, "x", 1)
    nothing = WrittenBatch(batches[0].batch_range, [])
    done = commit_batches(write_id, [first, (second, [nothing])])
    assert done[0] is not None and done[1] is None
    assert [snapshots(lake, name) for name in NAMES] == [1, 0]


@pytest.mark.parametrize("ends", ["conflict", "fenced"])
def test_a_server_that_has_left_one_out(lake: IcebergCatalog, ends: str) -> None:
    """What is in one table is made whole, or at least not taken away again."""
    sinks = open_sinks(lake)
    commit_both(sinks, "x", 1)
    write_id, parts = prepared(sinks, "y", 2)
    real, calls = lake.commit_all, []

    def torn(commits: Sequence[Any]) -> None:
        calls.append(len(commits))
        if len(calls) > 1:
            return real(commits)
        real(commits[:1])
        if ends == "fenced":
            open_sink(lake, NAMES[1])
        raise CommitConflict("one of them was not taken")

    lake.commit_all = torn  # type: ignore[method-assign]
    if ends == "conflict":
        commit_batches(write_id, parts)
        assert calls == [2, 1]
        assert [duckdb_rows(lake, name) for _, name in NAMES] == [[(1, "a", "y")]] * 2
        assert [snapshots(lake, name) for name in NAMES] == [2, 2]
        return
    with pytest.raises(Fenced):
        commit_batches(write_id, parts)
    actual = [duckdb_rows(lake, name) for _, name in NAMES]
    assert actual == [[(1, "a", "y")], [(1, "a", "x")]]
    assert sorted(path.exists() for path in files(parts)) == [False, False, True, True]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_nobody_sees_one_without_the_other(lake: IcebergCatalog, place: dict[str, str]) -> None:
    """Whichever is read later has all that the one read before had.

    Not so of Iceberg's reference server, which commits one table of a transaction after the other.
    """
    sinks, stop, seen = open_sinks(lake), threading.Event(), []

    def offset(reader: IcebergCatalog, name: tuple[str, str]) -> int:
        loaded = reader.load(name)
        assert loaded is not None
        actual = stream_writer.frontier(dict(loaded.metadata), SINK)
        return 0 if actual is None else int(actual["offset"])

    def read() -> None:
        reader = open_catalog(place)
        while not stop.is_set():
            for order in (NAMES, NAMES[::-1]):
                earlier, later = (offset(reader, name) for name in order)
                seen.append((earlier, later))
        reader.close()

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(1, COMMITS + 1):
        commit_both(sinks, str(number), number)
    stop.set()
    thread.join()
    assert len({earlier for earlier, _ in seen}) > 5
    assert [pair for pair in seen if pair[1] < pair[0]] == []


def test_killed_at_random_moments(lake: IcebergCatalog, place: dict[str, str]) -> None:
    context = forkserver()
    chosen, upto = random.Random(KILLS), 40 * stream_writer.BATCH
    for _ in range(KILLS):
        process = context.Process(target=stream_writer.drain_two, args=(place, upto))
        process.start()
        process.join(0.05 + chosen.random() * 0.5)
        process.kill()
        process.join()
        loaded = [lake.load(name) for name in NAMES]
        frontiers = [stream_writer.frontier(dict(one.metadata), SINK) for one in loaded if one]
        # Iceberg's reference server may still be at it, one table after the other.
        assert frontiers[0] == frontiers[1] or "uri" in place
    stream_writer.drain_two(place, upto)
    for _, name in NAMES:
        assert duckdb_rows(lake, name) == stream_writer.truth(upto).sorted()


def test_one_is_dropped_meanwhile(lake: IcebergCatalog) -> None:
    sinks = open_sinks(lake)
    commit_both(sinks, "x", 1)
    write_id, parts = prepared(sinks, "y", 2)
    real = lake.commit_all

    def dropped(commits: Sequence[Any]) -> None:
        drop_table(lake, NAMES[1])
        real(commits)

    lake.commit_all = dropped  # type: ignore[method-assign]
    with pytest.raises(CatalogError):
        commit_batches(write_id, parts)
    assert duckdb_rows(lake, NAMES[0][1]) == [(1, "a", "x")]
    assert [path for path in files(parts) if path.exists()] == []


@pytest.mark.parametrize("several", [True, False])
def test_a_lost_answer_and_a_catalog_that_is_away(lake: IcebergCatalog, several: bool) -> None:
    """The commit lands after it was given up: its files are there."""
    sinks = open_sinks(lake)
    commit_both(sinks, "x", 1)
    write_id, parts = prepared(sinks, "y", 2)
    parts = parts if several else parts[:1]
    real, load, held, away = lake.commit_all, lake.load, [], [0]

    def lost(commits: Sequence[Any]) -> None:
        held.append(commits)
        away[0] = 1
        raise CommitStateUnknown("a gateway has waited for too long")

    def loading(name: tuple[str, str], history: bool = True) -> Any:
        if away[0]:
            away[0] -= 1
            raise CatalogError("the catalog does not answer")
        return load(name, history)

    lake.commit_all, lake.load = lost, loading  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown):
        commit_batches(write_id, parts)
    real(held[0])
    assert [path for path in files(parts) if not path.exists()] == []


def test_a_catalog_that_is_away_after_a_refusal(lake: IcebergCatalog) -> None:
    """Whether a server that keeps no word has kept it cannot be seen: nothing is removed."""
    sinks = open_sinks(lake)
    commit_both(sinks, "x", 1)
    write_id, parts = prepared(sinks, "y", 2)
    real, load = lake.commit_all, lake.load

    def torn(commits: Sequence[Any]) -> None:
        real(commits[:1])
        lake.load = away  # type: ignore[method-assign]
        raise CatalogError("refused")

    def away(name: tuple[str, str], history: bool = True) -> Any:
        raise CatalogError("the catalog does not answer")

    lake.commit_all = torn  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown):
        commit_batches(write_id, parts)
    lake.load = load  # type: ignore[method-assign]
    assert [path for path in files(parts) if not path.exists()] == []
