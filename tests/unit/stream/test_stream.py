"""The loop of a stream, without Spark and without a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.errors import CommitStateUnknown
from dbt.adapters.iceberg_stream.catalog.metadata import SnapshotSummary
from dbt.adapters.iceberg_stream.catalog.storage import storage_advice
from dbt.adapters.iceberg_stream.errors.spark import CREDENTIALS_REFUSED, StatementError
from dbt.adapters.iceberg_stream.stream.errors import StreamConflict, StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sources.source import Lag, Source
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed

Offset = Mapping[str, int]


@dataclass
class Numbers(Source):
    """A source of so many batches, which notes the lag in its status at each poll."""

    batches: int
    status: StreamStatus = field(default_factory=lambda: StreamStatus("m"))
    lags: list[Lag | None] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    polls: list[tuple[Any, bool]] = field(default_factory=list)

    def present(self, lower: Offset | None) -> dict[str, int] | None:
        return {"n": self.batches} if self.batches else None

    def is_behind(self, lower: Offset, other: Offset) -> bool:
        return lower["n"] < other["n"]

    def plan_batch(
        self, lower: Offset | None, rows: int, until: Any = None, whole: bool = False
    ) -> dict[str, int] | None:
        self.polls.append((until, whole))
        self.lags.append(self.status.lag)
        read = 0 if lower is None else lower["n"]
        return {"n": read + 1} if read < self.batches else None

    def schema_id(self, lower: Offset | None, upper: Offset | None = None) -> str:
        """Of batches by their number, where they have columns of their own."""
        return self.columns[upper["n"] - 1] if self.columns and upper else ""

    def empty(self, *_: Any) -> Any:
        raise NotImplementedError

    def lag(self, frontier: Offset | None) -> Lag:
        return Lag(self.batches - (frontier or {"n": 0})["n"], "rows")


@dataclass
class Table:
    """Takes commits; none of them changes anything."""

    replaces: bool = False
    updates: Any = ()
    commits: list[list[Any]] = field(default_factory=list)
    recorded: list[Any] = field(default_factory=list)
    discarded: list[Any] = field(default_factory=list)
    progress: Any = field(default_factory=lambda: SimpleNamespace(frontier=None, watermark=None))
    index: None = None
    newest_rows: None = None
    name: tuple[str, str] = ("s", "t")
    is_staged: bool = False
    staged: list[list[Any]] = field(default_factory=list)
    dropped: int = 0

    def forget_replacement(self) -> None:
        self.replaces, self.updates = False, ()

    def stage(self) -> None:
        self.is_staged, self.replaces, self.name = True, False, ("s", "staged")

    def take_over(self) -> Any:
        self.is_staged, self.replaces, self.name = False, True, ("s", "t")
        return self.progress

    def drop_staged(self) -> None:
        self.is_staged = False
        self.dropped += 1

    def order_by(self, sequence_by: Any) -> None:
        """Nobody asks for it."""

    def compare_rows(self, sequence_by: Any) -> None:
        """It has no rows."""

    def claim(self, schema: Any, refresh: bool) -> None:
        """No other run is there."""

    def replace_with(self, schema: Any) -> None:
        self.replaces = True

    def replace_rows(self) -> None:
        self.replaces = True

    def store_index(self) -> None:
        """There is none."""

    def add_to_index(self, batch: WrittenBatch, watermark: Any, joins: bool) -> WrittenBatch:
        return batch

    def commit(self, write_id: str, batches: list[WrittenBatch]) -> None:
        commits = self.staged if self.is_staged else self.commits
        commits.append([batch.batch_range.upper for batch in batches])
        if self.is_staged:
            self.progress.frontier = batches[-1].batch_range.upper
        self.replaces = False

    def record(self, frontier: Any) -> None:
        self.recorded.append(frontier)
        self.progress.frontier = frontier

    def discard(self, batches: list[WrittenBatch]) -> None:
        self.discarded += [batch.batch_range.upper for batch in batches]

    def storage_advice(self, error: OSError) -> str:
        return storage_advice(error, None)


@dataclass
class Query:
    """Reads nothing."""

    where: str = ""
    relation: str = "t"
    deletes_others: bool = False


@dataclass
class Writer:
    """Writes nothing; every batch has the same bounds of what orders its changes."""

    source: Numbers
    sink: Table
    options: StreamOptions
    bounds: tuple[Any, Any] = (None, None)
    late: list[bool] = field(default_factory=list)
    schema: Any = None
    query: Query = field(default_factory=Query)
    reads_target: bool = False
    is_late: bool = False

    closed: int = 0

    def close(self) -> None:
        self.closed += 1

    def open_index(self, refresh: bool) -> None:
        """It needs none."""

    def write(self, session: Any, batch_range: BatchRange, name: str, late: bool) -> WrittenBatch:
        self.late.append(late)
        return WrittenBatch(batch_range, [], *self.bounds, not_late=late)


def stream_of(writer: Any) -> Stream:
    session: Any = object()
    return Stream(lambda: session, [TableStream(writer, writer.source.status)])


def writer_of(batches: int, bounds: tuple[Any, Any] = (None, None), **options: Any) -> Writer:
    return Writer(Numbers(batches), Table(), StreamOptions("m", **options), bounds)


def test_a_busy_stream_knows_its_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbt.adapters.iceberg_stream.stream.stream.LAG_SECONDS", 0.0)
    writer = writer_of(3)
    stream_of(writer).drain()
    assert writer.source.lags == [None, Lag(2, "rows"), Lag(1, "rows"), Lag(0, "rows")]


def test_progress_that_changes_nothing_is_recorded() -> None:
    writer = writer_of(2)
    stream_of(writer).drain()
    assert writer.sink.recorded == [{"n": 1}, {"n": 2}]


def test_progress_of_a_source_that_is_never_idle() -> None:
    writer = writer_of(3, idle_interval=0.0)
    stream_of(writer).drain()
    assert writer.sink.recorded[:3] == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize("fails", [False, True])
def test_connections_of_the_source_are_closed_in_the_end(fails: bool) -> None:
    writer = writer_of(2)
    if fails:
        writer.source.plan_batch = raises  # type: ignore[method-assign]
        with pytest.raises(StreamError):
            stream_of(writer).drain()
    else:
        stream_of(writer).drain()
    assert writer.closed == 1


def raises(*arguments: Any) -> Any:
    raise StreamError("no more")


def test_a_refresh_is_one_commit() -> None:
    writer = writer_of(3, commit_interval=0.0)
    stream_of(writer).drain(refresh=True)
    assert writer.sink.commits == [[{"n": 1}, {"n": 2}, {"n": 3}]]


def test_a_refresh_that_is_stopped_commits_nothing() -> None:
    writer, stop = writer_of(3), Event()
    write = writer.write

    def stopped(*arguments: Any, **named: Any) -> WrittenBatch:
        stop.set()
        return write(*arguments, **named)

    writer.write = stopped  # type: ignore[method-assign]
    stream_of(writer).follow(stop, refresh=True)
    assert writer.sink.commits == []
    assert writer.sink.discarded == [{"n": 1}]


@pytest.mark.parametrize("reason", ["serial", "truncate", "columns"])
def test_a_refresh_of_several_commits_is_one_for_readers(reason: str) -> None:
    writer, relations = writer_of(3, commit_interval=0.0), []
    write, stream = writer.write, stream_of(writer)
    writer.reads_target = reason == "serial"
    writer.source.columns = ("", "more", "more") if reason == "columns" else ("",) * 3
    stream.tables[0].reopen = lambda lower, upper: (  # type: ignore[assignment]
        writer,
        writer.source.schema_id(lower, upper),
    )

    def written(session: Any, batch_range: BatchRange, *more: Any) -> WrittenBatch:
        relations.append(writer.query.relation)
        truncates = reason == "truncate" and batch_range.upper == {"n": 2}
        return replace(write(session, batch_range, *more), truncates=truncates)

    writer.write = written  # type: ignore[method-assign]
    stream.drain(refresh=True)
    assert writer.sink.commits == [[{"n": 3}]]
    assert [upper for commit in writer.sink.staged for upper in commit] == [
        {"n": 1},
        {"n": 2},
        {"n": 3},
    ]
    assert (writer.query.relation, writer.sink.dropped) == ("t", 1)
    assert relations[-1] == "`staged`"


def test_a_staged_refresh_that_fails_leaves_nothing() -> None:
    writer = writer_of(3, commit_interval=0.0)
    writer.reads_target, write = True, writer.write

    def written(session: Any, batch_range: BatchRange, *more: Any) -> WrittenBatch:
        if batch_range.upper == {"n": 2}:
            raise StreamError("not readable")
        return write(session, batch_range, *more)

    writer.write = written  # type: ignore[method-assign]
    with pytest.raises(StreamError, match="not readable"):
        stream_of(writer).drain(refresh=True)
    assert (writer.sink.commits, writer.sink.dropped) == ([], 1)


@pytest.mark.parametrize("failure", [StreamError, CommitStateUnknown])
def test_a_refresh_that_fails_at_its_last_commit(failure: type[DbtRuntimeError]) -> None:
    """The staged table keeps its files if the table may have them."""
    writer = writer_of(3, commit_interval=0.0)
    writer.reads_target, sink, commit = True, writer.sink, writer.sink.commit

    def fail(write_id: str, batches: list[WrittenBatch]) -> None:
        if not sink.is_staged:
            raise failure("not committed")
        commit(write_id, batches)

    sink.commit = fail  # type: ignore[method-assign]
    with pytest.raises(failure, match="not committed"):
        stream_of(writer).drain(refresh=True)
    assert (sink.commits, sink.dropped) == ([], int(failure is StreamError))


def test_a_refresh_from_nothing_leaves_nothing() -> None:
    writer = writer_of(0)
    stream_of(writer).drain(refresh=True)
    assert writer.sink.commits == [[None]]


@pytest.mark.parametrize(
    ("sequence_by", "late"),
    [(("at",), [False, False]), (("at", "n"), [False, False, True])],
)
def test_changes_at_the_watermark(sequence_by: tuple[str, ...], late: list[bool]) -> None:
    """Equal in the only column, the later change wins; with more columns the next one tells."""
    writer = writer_of(2, (5, 5), keys=("id",), sequence_by=sequence_by)
    stream_of(writer).drain()
    assert writer.late == late


def test_progress_of_a_table_that_is_quiet_beside_a_busy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, quiet = (writer_of(5, commit_interval=0.0, idle_interval=0.0) for _ in range(2))
    committed = Committed(SnapshotSummary(1, 0, {"operation": "append"}), 1)
    monkeypatch.setattr(
        "dbt.adapters.iceberg_stream.stream.commit_queue.commit_batches",
        lambda *_: [committed, None],
    )
    tables = [TableStream(writer, StreamStatus("m")) for writer in (busy, quiet)]  # type: ignore[arg-type]
    Stream(object, tables).drain()  # type: ignore[arg-type]
    assert quiet.sink.recorded[:3] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_what_was_to_be_replaced_is_forgotten_when_another_run_was_faster() -> None:
    writer, seen = writer_of(3, commit_interval=0.0), []
    write, commit = writer.write, writer.sink.commit

    def truncates(session: Any, batch_range: BatchRange, *more: Any) -> WrittenBatch:
        first = batch_range.upper == {"n": 1}
        return replace(write(session, batch_range, *more), truncates=first)

    def conflicting(write_id: str, batches: list[WrittenBatch]) -> None:
        seen.append(writer.sink.replaces)
        if len(seen) == 1:
            # An older run has committed this very batch.
            writer.sink.progress.frontier = {"n": 1}
            raise StreamConflict("an older run committed first")
        commit(write_id, batches)

    writer.write, writer.sink.commit = truncates, conflicting  # type: ignore[method-assign]
    stream_of(writer).drain()
    assert seen == [True, False, False]


def test_writers_that_are_always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbt.adapters.iceberg_stream.stream.stream.MAX_CONFLICTS", 2)
    writer = writer_of(3, commit_interval=0.0)

    def conflicting(*_: Any) -> None:
        raise StreamConflict("Another writer has committed.")

    writer.sink.commit = conflicting  # type: ignore[method-assign]
    with pytest.raises(StreamError, match="conflicted with other writers 3 times in a row"):
        stream_of(writer).drain()


def test_a_table_that_comes_up_in_a_batch_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is committed before; the new table has nothing that waits."""
    options = {"keys": ("id",), "sequence_by": ("at", "n"), "commit_interval": 100.0}
    writer, new, sizes = writer_of(2, (5, 5), **options), writer_of(2), []
    new.source = writer.source

    def commit(write_id: str, parts: Any) -> list[None]:
        sizes.append([len(batches) for _, batches in parts])
        return [None] * len(parts)

    def add_tables(session: Any, batch_range: BatchRange) -> list[TableStream]:
        two: Any = new
        return [TableStream(two, StreamStatus("new"))] if batch_range.upper == {"n": 2} else []

    monkeypatch.setattr("dbt.adapters.iceberg_stream.stream.commit_queue.commit_batches", commit)
    one: Any = writer
    Stream(object, [TableStream(one, StreamStatus("m"))], 1, add_tables).drain()  # type: ignore[arg-type]
    assert sizes == [[1], [1, 1]]


def test_a_batch_of_other_columns() -> None:
    """The table is opened for that batch, which what else the source has need not be like."""
    writer, opened = writer_of(3), []
    writer.source.columns = ("", "more", "more")
    stream = stream_of(writer)

    def reopen(lower: Any, upper: Any) -> tuple[Any, str]:
        opened.append((lower, upper))
        writer.sink.progress.frontier = lower
        return writer, writer.source.schema_id(lower, upper)

    stream.tables[0].reopen = reopen
    stream.drain()
    assert opened == [({"n": 1}, {"n": 2})]
    assert writer.sink.commits == [[{"n": 1}], [{"n": 2}, {"n": 3}]]


@pytest.mark.parametrize("gives", [5, 3])
def test_a_table_that_is_behind_catches_up(gives: int) -> None:
    """It never goes on where the others are without what lies between."""
    ahead, behind = writer_of(5), writer_of(gives)
    ahead.sink.progress.frontier, behind.sink.progress.frontier = {"n": 5}, {"n": 2}
    source = behind.source
    ahead.source = source
    stream = Stream(object, [TableStream(w, StreamStatus("m")) for w in (ahead, behind)])  # type: ignore[arg-type]
    if gives < 5:
        with pytest.raises(StreamError, match='m stands at {"n": 3}, and other tables'):
            stream.drain()
        return
    stream.drain()
    assert ({"n": 5}, True) in source.polls
    assert source.polls[-1][1] is False
    assert [table.frontier for table in stream.tables] == [{"n": 5}] * 2


@pytest.mark.parametrize("where", ["write", "commit"])
def test_a_full_disk(where: str) -> None:
    writer = writer_of(2)

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    setattr(writer if where == "write" else writer.sink, where, full)
    if where == "commit":
        writer.bounds = (1, 2)
    with pytest.raises(
        StreamError, match="m: a file cannot be written or read: .*No space left"
    ) as e:
        stream_of(writer).drain()
    assert str(e.value).endswith(
        "The stream stands at the beginning; the next run continues there."
    )


@pytest.mark.parametrize("where", ["write", "commit"])
@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("AWS Error ACCESS_DENIED during PutObject operation", True),
        ("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation", True),
        ("AWS Error NETWORK_CONNECTION: curlCode: 28, Timeout was reached", False),
        ("[Errno 28] No space left on device", False),
    ],
)
def test_a_storage_that_refuses_the_credentials(where: str, text: str, refused: bool) -> None:
    writer = writer_of(1)

    def fail(*_: Any) -> Any:
        raise OSError(text)

    setattr(writer if where == "write" else writer.sink, where, fail)
    with pytest.raises(StreamError) as error:
        stream_of(writer).drain()
    assert text in str(error.value)
    assert (CREDENTIALS_REFUSED in str(error.value)) == refused
    assert ("refused" in str(error.value)) == refused


@pytest.mark.parametrize("first_commits", [False, True])
def test_a_failed_commit_names_all_its_tables(
    first_commits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without transactions, the first tables may be committed already."""
    writers = [writer_of(1), writer_of(1)]
    writers[1].source = writers[0].source
    tables = [
        TableStream(cast(Any, writer), StreamStatus(name))
        for writer, name in zip(writers, ("orders", "items"), strict=True)
    ]

    def fail(*_: Any) -> Any:
        if first_commits:
            writers[0].sink.progress.frontier = {"n": 1}
        raise OSError("Timeout was reached")

    monkeypatch.setattr("dbt.adapters.iceberg_stream.stream.commit_queue.commit_batches", fail)
    with pytest.raises(
        StreamError, match="orders, items: a file cannot be written or read: Timeout"
    ) as error:
        Stream(cast(Any, object), tables).drain()
    expected = (
        'orders at {"n": 1}, items at the beginning. The next run continues there.'
        if first_commits
        else "The stream stands at the beginning; the next run continues there."
    )
    assert str(error.value).endswith(expected)


def test_what_is_missing_is_told_by_the_source() -> None:
    """Spark would advise to refresh a table."""
    writer = writer_of(1)

    def failed(*_: Any) -> Any:
        raise StatementError("REFRESH TABLE tableName")

    def gone(lower: Any, upper: Any) -> None:
        raise StreamError("1 files have gone")

    writer.write = failed  # type: ignore[method-assign]
    with pytest.raises(StatementError):
        stream_of(writer).drain()
    writer.source.require = gone  # type: ignore[attr-defined]
    with pytest.raises(StreamError, match="1 files have gone"):
        stream_of(writer).drain()
