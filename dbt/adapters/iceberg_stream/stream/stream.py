"""A stream: batches minted, written and committed, until it is drained or told to stop."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.commit.committer import Committed
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.files.casting import ColumnError
from dbt.adapters.iceberg_stream.stream.bad_records import BadRecords, counted, observed
from dbt.adapters.iceberg_stream.stream.batch_writer import Runner
from dbt.adapters.iceberg_stream.stream.errors import Overtaken, StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query import StreamQuery
from dbt.adapters.iceberg_stream.stream.row_delta import Delta
from dbt.adapters.iceberg_stream.stream.sink import Sink, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, Source
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.sub_batch import DeltaPlan
from dbt.adapters.iceberg_stream.stream.watermark import as_json, from_json

TOMBSTONES = "stream_tombstones"
# Files of a commit that wait: descriptors are held in memory.
MOST_FILES = 2000
# Between two looks at what a busy stream has still before it: a folder is listed for it.
LAG_SECONDS = 5.0


@dataclass
class Stream:
    """One run of a stream.

    Attributes:
        session: gives the engine's session, with a token that is good now.
        source, query, sink: where changes come from, what they become, and where they go.
        runner: where files are written.
        schema: of the table's columns, as the query gives them.
        bad_records: takes what cannot be read.
        told: is called after each commit.
    """

    session: Callable[[], Session]
    source: Source
    query: StreamQuery
    sink: Sink
    options: StreamOptions
    runner: Runner
    status: StreamStatus
    bad_records: BadRecords
    schema: pa.Schema
    told: Callable[[StreamStatus], None] = lambda status: None
    _pending: list[WrittenBatch] = field(default_factory=list)
    _write_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _commit: Future[Committed | None] | None = None
    _last_commit: float = field(default_factory=time.monotonic)
    _last_lag: float = float("-inf")
    _frontier: Frontier | None = None
    _watermark: Any = None
    _late: bool = False

    def drain(self, refresh: bool = False) -> None:
        """Take in what the source has now; with refresh, in place of all that is in the table.

        Raises:
            StreamError: the stream cannot go on; what was committed before is in the table.
        """
        self._run(Event(), False, refresh)

    def follow(self, stop: Event, refresh: bool = False) -> None:
        """Take in what comes, until told to stop; then what was begun is committed.

        Raises:
            StreamError: as for `drain`.
        """
        self._run(stop, True, refresh)

    def _run(self, stop: Event, follow: bool, refresh: bool) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="stream-commit") as pool:
            self._begin(refresh)
            try:
                while not stop.is_set():
                    try:
                        if not self._next(pool, refresh) and not self._rest(pool, stop, follow):
                            break
                    except Overtaken:
                        # An older run was faster once more; it is fenced now.
                        self._abandon()
                        self._begin(refresh)
                self._flush(pool)
                self._settle()
                self.status.state = "stopped"
            except BaseException:
                self.status.state = "failed"
                self._abandon()
                raise

    def _begin(self, refresh: bool) -> None:
        try:
            self.sink.claim(None if refresh else self.schema)
            if refresh:
                self.sink.replace_with(self.schema)
        except ColumnError as error:
            raise StreamError(f"{self.status.name}: {error}") from error
        progress = self.sink.progress
        self._frontier = None if refresh else progress.frontier
        self._watermark = None if refresh else from_json(progress.watermark)
        self.status.state = "running"

    def _next(self, pool: ThreadPoolExecutor, refresh: bool) -> bool:
        """Write the next batch; False if there is none."""
        upper = self.source.mint(self._frontier, self.options.batch_rows)
        self.status.looked = time.time()
        if upper is None:
            return False
        self.status.state = "running"
        batch = self._write(pool, upper)
        self._pending.append(batch)
        self._frontier = upper
        self._count(batch)
        if time.monotonic() - self._last_lag >= LAG_SECONDS:
            self._measure_lag()
        if self.sink.replaces and refresh and not batch.truncates:
            return True  # all in one commit: a reader sees the old table or the new one
        if self._is_due() or self._is_serial():
            self._submit(pool)
        if self._is_serial():
            self._settle()
        return True

    def _rest(self, pool: ThreadPoolExecutor, stop: Event, follow: bool) -> bool:
        """Nothing new: commit what waits; False if that is the end."""
        self._flush(pool)
        if not follow:
            return False
        self.status.state = "idle"
        self._measure_lag()
        if time.monotonic() - self._last_commit > self.options.idle_interval:
            self._settle()
            self._last_commit = time.monotonic()
        stop.wait(self.options.batch_interval)
        return True

    def _measure_lag(self) -> None:
        self.status.lag = self.source.lag(self._frontier)
        self._last_lag = time.monotonic()

    def _write(self, pool: ThreadPoolExecutor, upper: Frontier) -> WrittenBatch:
        batch = self._write_once(upper, self._late)
        if self._comes_late(batch):
            # Some changes are older than what was written: the table must be asked which.
            self.sink.discard([batch])
            self._late = True
            self._flush(pool)
            batch = self._write_once(upper, True)
        if batch.truncates:
            self._flush(pool)
            self.sink.replaces = True
        return batch

    def _write_once(self, upper: Frontier, late: bool) -> WrittenBatch:
        session, query = self.session(), self.query
        frame = self.source.read(session.spark, self._frontier, upper)
        if self.options.scd_type == 2:
            frame, seen = counted(session, frame, self.source.has_bad)
        else:
            frame, seen = observed(frame, self.source.has_bad)
        plan = self._plan()
        sql, views = query.changes(), {query.view: frame}
        if late:
            paths = self.sink.equality_deletes()
            views |= {TOMBSTONES: session.spark.read.parquet(*paths)} if paths else {}
            sql = query.changes_not_late(TOMBSTONES if paths else None)
        deltas = self.runner(session, plan, sql, views)
        found = seen()
        truncates = bool(found.truncates or self._truncates(session, upper))
        batch = WrittenBatch(upper, deltas, as_json(self._high(deltas)))
        if found.bad:
            self._take_bad(session, batch, upper)
        if truncates:
            self.sink.discard([batch])
            frame = self.source.read(session.spark, self._frontier, upper)
            deltas = self.runner(session, plan, query.after_truncate(), {query.view: frame})
            batch = WrittenBatch(upper, deltas, as_json(self._high(deltas)), True)
        return batch

    def _truncates(self, session: Session, upper: Frontier) -> int:
        """How many changes delete all rows, by the option's condition."""
        if self.options.truncates is None:
            return 0
        frame = self.source.read(session.spark, self._frontier, upper)
        counted = session.rows(self.query.count_truncates(), **{self.query.view: frame})
        return int(counted["n"][0].as_py())

    def _take_bad(self, session: Session, batch: WrittenBatch, upper: Frontier) -> None:
        frame = self.source.read(session.spark, self._frontier, upper)
        try:
            self.status.bad_records += self.bad_records.take(session, frame)
        except BaseException:
            self.sink.discard([batch])
            raise

    def _plan(self) -> DeltaPlan:
        versions = self.options.scd_type == 2
        return self.sink.plan(
            self._write_id,
            ordered=self._ordered(),
            max_keys=self._max_keys(),
            sequence_by=() if versions else self.options.sequence_by,
        )

    def _ordered(self) -> bool:
        return not self.options.sequence_by and self.source.ordered

    def _max_keys(self) -> int:
        choice = self.options.sequence_numbers
        if choice == "one" or (choice == "auto" and not self._ordered()):
            return self.options.max_keys
        return 0

    def _comes_late(self, batch: WrittenBatch) -> bool:
        if self._watermark is None or self._is_serial() or not self.options.sequence_by:
            return False
        firsts = [delta.first for delta in batch.deltas if delta.first is not None]
        return bool(firsts) and min(firsts) < self._watermark

    def _high(self, deltas: Sequence[Delta]) -> Any:
        """The highest value of the first column that orders changes, of all so far."""
        if not self.options.sequence_by:
            return None
        seen = [delta.last for delta in deltas if delta.last is not None]
        return max([*seen, *([] if self._watermark is None else [self._watermark])], default=None)

    def _count(self, batch: WrittenBatch) -> None:
        self._watermark = from_json(batch.watermark)
        self.status.batches += 1
        self.status.changes += batch.changes
        self.status.upserts += sum(delta.upserts for delta in batch.deltas)
        self.status.deletes += sum(delta.deletes for delta in batch.deltas)

    def _is_serial(self) -> bool:
        """Whether each batch must see what the one before it has committed."""
        return self._late or self.query.looks_up

    def _is_due(self) -> bool:
        if sum(len(batch.files) for batch in self._pending) >= MOST_FILES:
            return True
        return time.monotonic() - self._last_commit >= self.options.commit_interval

    def _flush(self, pool: ThreadPoolExecutor) -> None:
        """Commit what waits, and wait for it."""
        if self._pending:
            self._submit(pool)
        self._wait()

    def _submit(self, pool: ThreadPoolExecutor) -> None:
        """Commit what waits, while the next batch is written."""
        self._wait()
        batches, write_id = self._pending, self._write_id
        self._pending, self._write_id = [], uuid.uuid4().hex
        self._last_commit = time.monotonic()
        self._commit = pool.submit(self.sink.commit, write_id, batches)

    def _wait(self) -> None:
        commit, self._commit = self._commit, None
        if commit is None:
            return
        committed = commit.result()
        if committed is not None:
            self.status.commits += 1
            self.status.committed = time.time()
            self.status.snapshot_id = committed.snapshot.snapshot_id
            self.told(self.status)

    def _settle(self) -> None:
        """Record progress that no snapshot tells."""
        self._wait()
        recorded = self._frontier in (None, self.sink.progress.frontier)
        if self._frontier is not None and not recorded and not self._pending:
            self.sink.record(self._frontier)

    def _abandon(self) -> None:
        """What waits is not committed: its files go."""
        batches, self._pending = self._pending, []
        if batches:
            self.sink.discard(batches)
