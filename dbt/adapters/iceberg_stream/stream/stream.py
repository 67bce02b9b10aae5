"""Run a stream: plan, write and commit batches until the source is drained or the run stops.

Article on the streaming sink, "Minting Batch Descriptions Ahead of Time".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Event

from dbt.adapters.iceberg_stream.catalog.errors import CommitStateUnknown
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.commit_queue import CommitQueue
from dbt.adapters.iceberg_stream.stream.errors import SchemaChanged, StreamConflict, StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sources.source import (
    Frontier,
    Source,
    describe,
)
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from dbt.adapters.iceberg_stream.stream.write_window import WriteWindow

# Seconds between two measurements of the lag: each lists the source's folder.
LAG_SECONDS = 5.0
# Conflicts in a row, with no commit between them, after which the stream fails.
MAX_CONFLICTS = 20


@dataclass
class Stream:
    """One run of a stream.

    Attributes:
        session: returns the engine's session, with a valid token.
        tables: the tables that the stream writes; they share one source, and one commit has the
            batches of all of them.
        window: number of batches that are written at the same time.
        add_tables: returns new tables that a batch has the first rows for; needs a window of 1.
    """

    session: Callable[[], Session]
    tables: list[TableStream]
    window: int = 1
    add_tables: Callable[[Session, BatchRange], Sequence[TableStream]] | None = None
    # The tables that get the next batches: all of them, or one that catches up.
    _active_tables: Sequence[TableStream] = field(init=False)
    _lag_measured: float = float("-inf")
    # The end of the last planned batch.
    _planned: Frontier | None = None
    # Where planning ends; None while the stream follows its source.
    _end: Frontier | None = None
    # Conflicts since the last commit, and the number of commits at that time.
    _conflicts: int = 0
    _commits_at_conflict: int = 0
    # Whether a full refresh is incomplete: readers must not see what it commits until then.
    _refreshes: bool = False

    def __post_init__(self) -> None:
        self._active_tables = self.tables
        self._writing = WriteWindow(self.window, self.session)
        self._commits = CommitQueue(self._options.commit_interval)

    def drain(self, refresh: bool = False) -> None:
        """Write everything that the source has at the start of the run.

        Args:
            refresh: whether it replaces all rows of the tables.

        Raises:
            StreamError: the stream failed; its earlier commits stay in the tables.
        """
        self._run(Event(), False, refresh)

    def follow(self, stop: Event, refresh: bool = False) -> None:
        """Write what arrives until `stop` is set, then commit the batches that were started.

        Args:
            stop: ends the run.
            refresh: as for `drain`.

        Raises:
            StreamError: as for `drain`.
        """
        self._run(stop, True, refresh)

    @property
    def _source(self) -> Source:
        return self.tables[0].writer.source

    @property
    def _options(self) -> StreamOptions:
        return self.tables[0].writer.options

    def _run(self, stop: Event, follow: bool, refresh: bool) -> None:
        with ExitStack() as end, ExitStack() as undo:
            end.callback(self._close)
            undo.callback(self._fail)
            while not self._try_run(stop, follow, refresh):
                refresh = refresh and not any(table.status.commits for table in self.tables)
            for table in self.tables:
                table.store_index()
            self._forget()
            undo.pop_all()
        self._set_state("stopped")

    def _try_run(self, stop: Event, follow: bool, refresh: bool) -> bool:
        """Run to the end; return False if the stream must restart from its last commit."""
        try:
            try:
                return self._run_batches(stop, follow, refresh)
            except SchemaChanged as changed:
                self._follow_schema(changed.upper)
        except StreamConflict as error:
            # An older run of the stream committed once more and is fenced now, or another writer
            # changed rows that this stream had looked up.
            self._abandon()
            self._wait_after_conflict(error, stop)
        return False

    def _wait_after_conflict(self, error: StreamConflict, stop: Event) -> None:
        """Wait longer after each conflict in a row; fail after `MAX_CONFLICTS`."""
        commits = sum(table.status.commits for table in self.tables)
        if commits != self._commits_at_conflict:
            self._commits_at_conflict, self._conflicts = commits, 0
        self._conflicts += 1
        if self._conflicts > MAX_CONFLICTS:
            raise StreamError(
                f"The commit conflicted with other writers {self._conflicts} times in a row. "
                f"{error} Pause them, or set `delete_encoding: equality`, which looks nothing up "
                "in the table."
            ) from error
        stop.wait(min(0.05 * 2**self._conflicts, 5.0))

    def _run_batches(self, stop: Event, follow: bool, refresh: bool) -> bool:
        """Write batches until the end; return False if the stream goes on after a full refresh."""
        self._begin(stop, follow, refresh)
        while not stop.is_set():
            if not self._take_batch() and not self._idle(stop, follow):
                break
        if stop.is_set() and self._refreshes:
            # The tables keep their old rows: only a complete refresh may replace them.
            self._abandon()
            return True
        if self._is_staged:
            self._take_over()
            return not follow
        self._refreshes = False
        self._commit_all()
        if refresh and self._replaces:
            self._empty_tables()
        return True

    @property
    def _is_staged(self) -> bool:
        return any(table.sink.is_staged for table in self.tables)

    def _take_over(self) -> None:
        """Give the tables the rows of their staged ones, in one commit."""
        self._commit_all()
        self._refreshes = False
        try:
            for table in self.tables:
                table.take_over()
            self._flush()
        except CommitStateUnknown:
            raise  # the tables may have the files, and the next run drops the staged tables
        except Exception:
            self._drop_staged()
            raise
        self._drop_staged()

    def _drop_staged(self) -> None:
        for table in self.tables:
            table.drop_staged()

    def _stage(self) -> None:
        for table in self.tables:
            if not table.sink.is_staged:
                table.stage()

    @property
    def _replaces(self) -> bool:
        return any(table.sink.replaces for table in self.tables)

    def _empty_tables(self) -> None:
        """Replace the tables' rows by none, if the source has never had a batch."""
        if self._end is not None or self._planned is not None:
            return
        for table in self.tables:
            table.pending.append(WrittenBatch(BatchRange(None, None), []))
        self._flush()

    def _begin(self, stop: Event, follow: bool, refresh: bool) -> None:
        source, is_staged = self._source, self._is_staged
        self._refreshes = refresh
        for table in self.tables:
            table.begin(refresh)
            source.share_reads(table.writer.source)
        if refresh and self._is_serial:
            self._stage()
        if is_staged or not refresh:
            self._catch_up(stop)
        self._planned = self.tables[0].frontier
        self._end = self._source.present(self._planned) if refresh or not follow else None
        self._set_state("running")

    def _catch_up(self, stop: Event) -> None:
        """Bring each table that is behind to the frontier of the others, one table at a time.

        A table is behind if it is new, if it had no changes when the others were committed, or if
        the catalog cannot commit several tables at once.
        """
        ahead = self.tables[0].frontier
        for table in self.tables[1:]:
            if self._is_behind(ahead, table.frontier):
                ahead = table.frontier
        for table in self.tables:
            if self._is_behind(table.frontier, ahead):
                self._active_tables = [table]
                self._planned, self._end = table.frontier, ahead
                while not stop.is_set() and self._take_batch():
                    pass
                self._commit_all()
                if stop.is_set():
                    break
                self._check_caught_up(ahead, table)
            table.frontier = ahead
        self._active_tables = self.tables

    def _check_caught_up(self, ahead: Frontier | None, table: TableStream) -> None:
        # A new table for which the source has nothing left starts where the others are.
        if table.frontier is not None and self._is_behind(table.frontier, ahead):
            raise StreamError(
                f"{table.status.name} stands at {describe(table.frontier)}, and other tables of "
                f"its group are ahead, at {describe(ahead)}. The source no longer has the data "
                "between, so the table would lose it. Rebuild the table with --full-refresh."
            )

    def _is_behind(self, lower: Frontier | None, other: Frontier | None) -> bool:
        if lower == other or other is None:
            return False
        if lower is None:
            return True
        return self._source.is_behind(lower, other)

    def _take_batch(self) -> bool:
        """Queue the next written batch for a commit; return False if there is none."""
        self._plan_batches()
        if not self._writing:
            return False
        batches = self._writing.take(self._flush)
        if time.monotonic() - self._lag_measured >= LAG_SECONDS:
            self._measure_lag()
        if self._refreshes and not self._is_staged:
            return True  # a refresh is one commit: readers see the old rows or the new ones
        if any(batch.batch_range.lower is None for batch in batches):
            # Record the stream's start at once: `latest` of a topic moves on.
            self._flush()
            self._commits.settle(self._active_tables)
        if self._is_serial:
            self._flush()
        elif self._commits.is_due(self._active_tables):
            self._commits.submit(self._active_tables)
        self._record_unchanged_tables()
        return True

    def _record_unchanged_tables(self) -> None:
        """Record the progress of tables that have had no commit for some time."""
        now, longest = time.monotonic(), min(self._options.idle_interval, self._source.idle_seconds)
        unchanged = [table for table in self._active_tables if now - table.recorded > longest]
        if unchanged:
            self._flush()
            for table in unchanged:
                table.record_progress()

    def _plan_batches(self) -> None:
        """Plan batches until the window is full, and start to write them."""
        window = 1 if self._is_serial else self._writing.size
        while len(self._writing) < window:
            # A table that catches up must end exactly at the frontier of the others.
            whole = self._active_tables is not self.tables
            upper = self._source.plan_batch(
                self._planned, self._options.batch_rows, self._end, whole
            )
            for table in self._active_tables:
                table.status.polled = time.time()
            if upper is None:
                return
            upper = self._pinned(upper)
            self._check_schema(upper)
            batch = BatchRange(self._planned, upper)
            self._planned = upper
            self._add_tables(batch)
            self._writing.submit(batch, self._active_tables)

    def _pinned(self, upper: Frontier) -> Frontier:
        """Return the end of a batch with what the sources of all tables read their records with."""
        for table in self._active_tables:
            source = table.writer.source
            if source is not self._source:
                upper = source.pin(self._planned, upper)
        return upper

    def _check_schema(self, upper: Frontier) -> None:
        for table in self._active_tables:
            if table.schema_id != table.writer.source.schema_id(self._planned, upper):
                raise SchemaChanged("The source's next batch has other columns.", upper)

    def _follow_schema(self, upper: Frontier) -> None:
        """Commit the batches written so far, and reopen the tables for the new columns."""
        self._commit_all()
        for table in self._active_tables:
            table.follow_schema(upper)

    def _add_tables(self, batch: BatchRange) -> None:
        # A table that catches up gets only the rows of its own route.
        if self.add_tables is not None and self._active_tables is self.tables:
            for table in self.add_tables(self.session(), batch):
                table.begin(refresh=False)
                self.tables.append(table)

    def _idle(self, stop: Event, follow: bool) -> bool:
        """Commit pending batches that are due and wait; return False at the end of a drain."""
        if self._is_staged:
            return False
        self._refreshes = False
        if not follow:
            self._flush()
            return False
        if self._end is not None or self._commits.is_due(self._active_tables):
            self._flush()
        self._end = None
        self._set_state("idle")
        self._measure_lag()
        self._record_unchanged_tables()
        stop.wait(self._options.batch_interval)
        return True

    def _measure_lag(self) -> None:
        lag = self._source.lag(self._active_tables[0].frontier)
        for table in self._active_tables:
            table.status.lag = lag
        self._lag_measured = time.monotonic()
        self._forget()

    def _forget(self) -> None:
        """Let the source forget what all tables have."""
        least: Frontier | None = None
        for table in self.tables:
            own = table.sink.progress.frontier
            if own is None or table.sink.is_staged:
                return
            least = own if least is None or self._is_behind(own, least) else least
        if least is not None:
            self._source.committed(least)

    def _commit_all(self) -> None:
        """Commit every batch that was planned, and record the progress."""
        while self._writing:
            self._writing.take(self._flush)
        self._flush()
        self._commits.settle(self._active_tables)

    @property
    def _is_serial(self) -> bool:
        """Return whether a batch can be written only after the commit of the one before."""
        return any(table.is_serial for table in self._active_tables)

    def _flush(self) -> None:
        """Commit the pending batches, and wait for the commit."""
        if self._refreshes:
            self._stage()
        self._commits.flush(self._active_tables)

    def _abandon(self) -> None:
        """Remove the files of batches that are not committed."""
        self._writing.discard()
        for table in self.tables:
            if pending := table.take_pending():
                table.sink.discard(pending)

    def _fail(self) -> None:
        self._set_state("failed")
        self._abandon()

    def _close(self) -> None:
        with ExitStack() as end:
            for table in self.tables:
                end.callback(table.writer.close)
                if table.sink.is_staged:
                    end.callback(table.drop_staged)
            end.callback(self._writing.close)
            end.callback(self._commits.close)

    def _set_state(self, state: str) -> None:
        for table in self.tables:
            table.status.state = state
