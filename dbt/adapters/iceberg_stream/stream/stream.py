"""A stream: batches planned, written and committed, until it is drained or told to stop.

Article on the streaming sink, "Minting Batch Descriptions Ahead of Time".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from threading import Event

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.commit_queue import CommitQueue
from dbt.adapters.iceberg_stream.stream.errors import SchemaChanged, StreamConflict, StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, Source, describe
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from dbt.adapters.iceberg_stream.stream.write_window import WriteWindow

# Between two looks at what a busy stream has still before it: a folder is listed for it.
LAG_SECONDS = 5.0
# How often another writer may be faster, with nothing committed between.
MOST_TURNS = 20


@dataclass
class Stream:
    """One run of a stream.

    Attributes:
        session: gives the engine's session, with a token that is good now.
        tables: that it feeds, from one source, whose batches are committed together.
        window: batches that are written at once.
        grow: gives tables that a batch is the first to have rows for; for a window of one.
    """

    session: Callable[[], Session]
    tables: list[TableStream]
    window: int = 1
    grow: Callable[[Session, BatchRange], Sequence[TableStream]] | None = None
    # The tables that batches go to: all, or one that has to catch up.
    _fed: Sequence[TableStream] = field(init=False)
    _last_lag: float = float("-inf")
    _planned: Frontier | None = None
    _until: Frontier | None = None
    _overtaken: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self._fed = self.tables
        self._writing = WriteWindow(self.window, self.session)
        self._commits = CommitQueue(self._options.commit_interval)

    def drain(self, refresh: bool = False) -> None:
        """Take in what the source has now; with refresh, in place of all that is in the tables.

        Raises:
            StreamError: the stream cannot go on; what was committed before is in the tables.
        """
        self._run(Event(), False, refresh)

    def follow(self, stop: Event, refresh: bool = False) -> None:
        """Take in what comes, until told to stop; then what was begun is committed.

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
        with closing(self._writing), closing(self._commits), ExitStack() as undo:
            undo.callback(self._fail)
            while not self._done(stop, follow, refresh):
                refresh = refresh and not any(table.status.commits for table in self.tables)
            undo.pop_all()
        self._tell("stopped")

    def _done(self, stop: Event, follow: bool, refresh: bool) -> bool:
        """Go on until the end; False if it has to begin again from what is committed."""
        try:
            try:
                self._go_on(stop, follow, refresh)
                return True
            except SchemaChanged as changed:
                self._follow_schema(changed.upper)
        except StreamConflict as error:
            # An older run was faster once more, and is fenced now; or another writer has changed
            # what was looked up.
            self._abandon()
            self._let_pass(error, stop)
        return False

    def _let_pass(self, error: StreamConflict, stop: Event) -> None:
        """Wait a moment for a busy writer, but not for ever."""
        commits = sum(table.status.commits for table in self.tables)
        turns = self._overtaken[1] + 1 if self._overtaken[0] == commits else 1
        self._overtaken = commits, turns
        if turns > MOST_TURNS:
            raise StreamError(
                f"The commit conflicted with other writers {turns} times in a row. {error} Pause "
                "them, or set `delete_encoding: equality`, which looks nothing up in the table."
            ) from error
        stop.wait(min(0.05 * 2**turns, 5.0))

    def _go_on(self, stop: Event, follow: bool, refresh: bool) -> None:
        self._begin(stop, follow, refresh)
        while not stop.is_set():
            if not self._next(refresh) and not self._rest(stop, follow):
                break
        if stop.is_set() and refresh and self._replaces:
            # A part of what is to replace the tables would be worse than what they have.
            self._abandon()
            return
        self._finish()
        if refresh and self._replaces:
            self._replace_with_nothing()

    @property
    def _replaces(self) -> bool:
        return any(table.sink.replaces for table in self.tables)

    def _replace_with_nothing(self) -> None:
        """The source is empty, and so are the tables then."""
        if self._until is not None or self._planned is not None:
            return
        for table in self.tables:
            table.pending.append(WrittenBatch(BatchRange(None, None), []))
        self._flush()

    def _begin(self, stop: Event, follow: bool, refresh: bool) -> None:
        for table in self.tables:
            table.begin(refresh)
        if not refresh:
            self._catch_up(stop)
        self._planned = self.tables[0].frontier
        self._until = self._source.present(self._planned) if refresh or not follow else None
        self._tell("running")

    def _catch_up(self, stop: Event) -> None:
        """Tables that are behind come to where the others are, each by itself.

        One may be new, or without changes when the others were committed; and not every catalog
        commits to all at once.
        """
        ahead = self.tables[0].frontier
        for table in self.tables[1:]:
            if self._is_behind(ahead, table.frontier):
                ahead = table.frontier
        for table in self.tables:
            if self._is_behind(table.frontier, ahead):
                self._fed, self._planned, self._until = [table], table.frontier, ahead
                while not stop.is_set() and self._next(False):
                    pass
                self._finish()
                if stop.is_set():
                    break
                self._check_has_come_to(ahead, table)
            table.frontier = ahead
        self._fed = self.tables

    def _check_has_come_to(self, ahead: Frontier | None, table: TableStream) -> None:
        # Where the source has nothing any more for one that is new, that begins with the others.
        if table.frontier is not None and self._is_behind(table.frontier, ahead):
            raise StreamError(
                f"{table.status.name} stands at {describe(table.frontier)}, and other tables of "
                f"its group are ahead, at {describe(ahead)}. The source gives nothing of what "
                "lies between, so that the table would lose it. Rebuild the table with "
                "--full-refresh."
            )

    def _is_behind(self, lower: Frontier | None, other: Frontier | None) -> bool:
        if lower == other or other is None:
            return False
        if lower is None:
            return True
        return self._source.is_behind(lower, other)

    def _next(self, refresh: bool) -> bool:
        """Take the next batch; False if there is none."""
        self._mint()
        if not self._writing:
            return False
        batches = self._writing.take(self._flush)
        if time.monotonic() - self._last_lag >= LAG_SECONDS:
            self._measure_lag()
        truncates = any(batch.truncates for batch in batches)
        if refresh and self._replaces and not truncates and not self._is_serial:
            return True  # all in one commit: a reader sees the old rows or the new ones
        if any(batch.batch_range.lower is None for batch in batches):
            # Where the stream has begun is told at once: the latest of a topic is another one soon.
            self._flush()
            self._commits.settle(self._fed)
        if self._is_serial:
            self._flush()
        elif self._commits.is_due(self._fed):
            self._commits.submit(self._fed)
        self._record_quiet()
        return True

    def _record_quiet(self) -> None:
        """Record the progress of tables that have not changed for long; others may all the time."""
        now, longest = time.monotonic(), self._options.idle_interval
        quiet = [table for table in self._fed if now - table.recorded > longest]
        if quiet:
            self._flush()
            for table in quiet:
                table.record_progress()

    def _mint(self) -> None:
        """Describe batches ahead, and begin to write them."""
        window = 1 if self._is_serial else self._writing.size
        while len(self._writing) < window:
            # Where the others have come to, a batch ends.
            whole = self._fed is not self.tables
            upper = self._source.plan_batch(
                self._planned, self._options.batch_rows, self._until, whole
            )
            for table in self._fed:
                table.status.looked = time.time()
            if upper is None:
                return
            self._check_schema(upper)
            described = BatchRange(self._planned, upper)
            self._planned = upper
            self._grow(described)
            self._writing.submit(described, self._fed)

    def _check_schema(self, upper: Frontier) -> None:
        for table in self._fed:
            if table.schema_id != table.writer.source.schema_id(self._planned, upper):
                raise SchemaChanged("The source's next batch has other columns.", upper)

    def _follow_schema(self, upper: Frontier) -> None:
        """Commit what was begun, and open the tables for the columns of the next batch."""
        self._finish()
        for table in self._fed:
            table.follow_schema(upper)

    def _grow(self, described: BatchRange) -> None:
        # A table that catches up has the rows of its own route only.
        if self.grow is not None and self._fed is self.tables:
            for table in self.grow(self.session(), described):
                table.begin(refresh=False)
                self.tables.append(table)

    def _rest(self, stop: Event, follow: bool) -> bool:
        """Nothing new: commit what waits; False if that is the end."""
        if not follow:
            self._flush()
            return False
        if self._until is not None or self._commits.is_due(self._fed):
            self._flush()
        self._until = None
        self._tell("idle")
        self._measure_lag()
        self._record_quiet()
        stop.wait(self._options.batch_interval)
        return True

    def _measure_lag(self) -> None:
        lag = self._source.lag(self._fed[0].frontier)
        for table in self._fed:
            table.status.lag = lag
        self._last_lag = time.monotonic()

    def _finish(self) -> None:
        """Commit what was begun."""
        while self._writing:
            self._writing.take(self._flush)
        self._flush()
        self._commits.settle(self._fed)

    @property
    def _is_serial(self) -> bool:
        """Whether each batch must see what the one before it has committed."""
        return any(table.is_serial for table in self._fed)

    def _flush(self) -> None:
        """Commit what is pending, and wait for it."""
        self._commits.flush(self._fed)

    def _abandon(self) -> None:
        """Remove the files of what is not committed."""
        self._writing.discard()
        for table in self.tables:
            if pending := table.take_pending():
                table.sink.discard(pending)

    def _fail(self) -> None:
        self._tell("failed")
        self._abandon()

    def _tell(self, state: str) -> None:
        for table in self.tables:
            table.status.state = state
