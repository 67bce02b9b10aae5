"""A stream: batches minted, written and committed, until it is drained or told to stop.

Article on the streaming sink, "Minting Batch Descriptions Ahead of Time".
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from dbt.adapters.iceberg_stream.commit.committer import Committed
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.files.casting import ColumnError
from dbt.adapters.iceberg_stream.stream.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.errors import Overtaken, StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.sink import Sink
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, Source
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.watermark import as_json, from_json
from dbt.adapters.iceberg_stream.stream.written import Description, WrittenBatch

# Files of a commit that wait: descriptors are held in memory.
MOST_FILES = 2000
# Between two looks at what a busy stream has still before it: a folder is listed for it.
LAG_SECONDS = 5.0


@dataclass
class Stream:
    """One run of a stream.

    Attributes:
        session: gives the engine's session, with a token that is good now.
        writer: makes files of batches.
        window: batches that are written at once.
        told: is called after each commit.
    """

    session: Callable[[], Session]
    writer: BatchWriter
    status: StreamStatus
    window: int = 1
    told: Callable[[StreamStatus], None] = lambda status: None
    _writing: deque[Future[WrittenBatch]] = field(default_factory=deque)
    _pending: list[WrittenBatch] = field(default_factory=list)
    _commit: Future[Committed | None] | None = None
    _last_commit: float = field(default_factory=time.monotonic)
    _last_record: float = field(default_factory=time.monotonic)
    _last_lag: float = float("-inf")
    _minted: Frontier | None = None
    _frontier: Frontier | None = None
    _until: Frontier | None = None
    _watermark: Any = None
    _late: bool = False

    def __post_init__(self) -> None:
        self._writers = ThreadPoolExecutor(self.window, thread_name_prefix="stream-write")
        self._committers = ThreadPoolExecutor(1, thread_name_prefix="stream-commit")

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

    @property
    def sink(self) -> Sink:
        return self.writer.sink

    @property
    def _source(self) -> Source:
        return self.writer.source

    @property
    def _options(self) -> StreamOptions:
        return self.writer.options

    def _run(self, stop: Event, follow: bool, refresh: bool) -> None:
        with self._writers, self._committers, ExitStack() as undo:
            undo.callback(self._fail)
            self._begin(follow, refresh)
            while not self._done(stop, follow, refresh):
                # An older run was faster once more, and is fenced now; or another writer has
                # changed what was looked up.
                self._abandon()
                refresh = refresh and not self.status.commits
                self._begin(follow, refresh)
            undo.pop_all()
        self.status.state = "stopped"

    def _done(self, stop: Event, follow: bool, refresh: bool) -> bool:
        """Go on until the end; False if it has to begin again from what is committed."""
        try:
            while not stop.is_set():
                if not self._next(refresh) and not self._rest(stop, follow):
                    break
            if stop.is_set() and refresh and self.sink.replaces:
                # A part of what is to replace the table would be worse than what it has.
                self._abandon()
                return True
            self._finish()
            if refresh and self.sink.replaces:
                self._replace_with_nothing()
        except Overtaken:
            return False
        return True

    def _replace_with_nothing(self) -> None:
        """The source is empty, and so is the table then."""
        if self._until is not None or self._frontier is not None:
            return
        empty = WrittenBatch(Description(None, None), [])
        self._pending.append(empty)
        self._flush()

    def _begin(self, follow: bool, refresh: bool) -> None:
        try:
            self.sink.claim(None if refresh else self.writer.schema, refresh)
            if refresh:
                self.sink.replace_with(self.writer.schema)
        except ColumnError as error:
            raise StreamError(f"{self.status.name}: {error}") from error
        progress = self.sink.progress
        self._frontier = self._minted = None if refresh else progress.frontier
        self._watermark = None if refresh else from_json(progress.watermark)
        self._until = self._source.present(self._frontier) if refresh or not follow else None
        self.status.state = "running"

    def _next(self, refresh: bool) -> bool:
        """Take the next batch; False if there is none."""
        self._mint()
        if not self._writing:
            return False
        self.status.state = "running"
        batch = self._in_turn(self._writing.popleft().result())
        self._pending.append(batch)
        self._note(batch)
        if time.monotonic() - self._last_lag >= LAG_SECONDS:
            self._measure_lag()
        if refresh and self.sink.replaces and not batch.truncates and not self._is_serial():
            return True  # all in one commit: a reader sees the old table or the new one
        if self._is_due() or self._is_serial():
            self._submit()
        if self._is_serial():
            self._wait()
        if time.monotonic() - self._last_record > self._options.idle_interval:
            self._flush()
            self._settle()
        return True

    def _mint(self) -> None:
        """Describe batches ahead, and begin to write them."""
        window = 1 if self._is_serial() else self.window
        while len(self._writing) < window:
            upper = self._source.mint(self._minted, self._options.batch_rows, self._until)
            self.status.looked = time.time()
            if upper is None:
                return
            described = Description(self._minted, upper)
            self._minted = upper
            # Its files have a name of their own: what fails is swept away by it.
            name = uuid.uuid4().hex
            late = self._late or self.writer.is_late
            writing = self._writers.submit(self.writer.write, self.session(), described, name, late)
            self._writing.append(writing)

    def _in_turn(self, batch: WrittenBatch) -> WrittenBatch:
        """The batch as it must be after those before it."""
        with ExitStack() as undo:
            undo.callback(self.sink.discard, [batch])
            batch = self._set_right(batch)
            undo.pop_all()
        return replace(batch, watermark=as_json(self._high(batch)))

    def _set_right(self, batch: WrittenBatch) -> WrittenBatch:
        if self._comes_late(batch):
            # Some changes are older than what was written: the table must be asked which.
            self.sink.discard([batch])
            self._late = True
            self._flush()
            name = uuid.uuid4().hex
            batch = self.writer.write(self.session(), batch.described, name, late=True)
        if batch.truncates:
            self._flush()
            self.sink.replaces = True
        return batch

    def _comes_late(self, batch: WrittenBatch) -> bool:
        first = from_json(batch.first)
        if first is None or self._watermark is None or batch.not_late or self.writer.looks_up:
            return False
        if type(first) is not type(self._watermark):
            raise StreamError(
                f"{self.status.name}: `sequence_by` is {type(first).__name__} now, and the stream "
                f"has gone by {type(self._watermark).__name__} until now. Cast it, or begin anew "
                "with --full-refresh."
            )
        # Where several columns order changes, those after the first may differ.
        several = len(self._options.sequence_by) > 1
        return bool(first < self._watermark or (several and first == self._watermark))

    def _high(self, batch: WrittenBatch) -> Any:
        """The highest value of the first column that orders changes, of all so far."""
        values = (self._watermark, from_json(batch.last))
        return max((value for value in values if value is not None), default=None)

    def _note(self, batch: WrittenBatch) -> None:
        self._frontier = batch.described.upper
        self._watermark = from_json(batch.watermark)
        self.status.batches += 1
        self.status.changes += batch.changes
        self.status.bad_records += batch.bad
        self.status.upserts += sum(delta.upserts for delta in batch.deltas)
        self.status.deletes += sum(delta.deletes for delta in batch.deltas)

    def _rest(self, stop: Event, follow: bool) -> bool:
        """Nothing new: commit what waits; False if that is the end."""
        if not follow:
            self._flush()
            return False
        if self._until is not None or self._is_due():
            self._flush()
        self._until = None
        self.status.state = "idle"
        self._measure_lag()
        if time.monotonic() - self._last_record > self._options.idle_interval:
            self._flush()
            self._settle()
        stop.wait(self._options.batch_interval)
        return True

    def _measure_lag(self) -> None:
        self.status.lag = self._source.lag(self._frontier)
        self._last_lag = time.monotonic()

    def _finish(self) -> None:
        """Commit what was begun."""
        while self._writing:
            batch = self._in_turn(self._writing.popleft().result())
            self._pending.append(batch)
            self._note(batch)
        self._flush()
        self._settle()

    def _is_serial(self) -> bool:
        """Whether each batch must see what the one before it has committed."""
        return self._late or self.writer.looks_up

    def _is_due(self) -> bool:
        if sum(len(batch.files) for batch in self._pending) >= MOST_FILES:
            return True
        return time.monotonic() - self._last_commit >= self._options.commit_interval

    def _flush(self) -> None:
        """Commit what waits, and wait for it."""
        if self._pending:
            self._submit()
        self._wait()

    def _submit(self) -> None:
        """Commit what waits, while the next batches are written."""
        self._wait()
        batches, self._pending = self._pending, []
        self._last_commit = time.monotonic()
        self._commit = self._committers.submit(self.sink.commit, uuid.uuid4().hex, batches)

    def _wait(self) -> None:
        commit, self._commit = self._commit, None
        if commit is None:
            return
        committed = commit.result()
        if committed is not None:
            self._last_record = time.monotonic()
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
        self._last_record = time.monotonic()

    def _abandon(self) -> None:
        """What waits is not committed: its files go."""
        writing, self._writing = self._writing, deque()
        batches, self._pending = self._pending, []
        batches += [one.result() for one in writing if one.exception() is None]
        if batches:
            self.sink.discard(batches)

    def _fail(self) -> None:
        self.status.state = "failed"
        self._abandon()
