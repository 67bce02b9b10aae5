"""Commits of a stream, made in the background while the next batches are written."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from dbt.adapters.iceberg_stream.stream.sink.commits import commit_batches
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed

# Files of batches that are to be committed: their descriptors are held in memory.
MOST_FILES = 2000


class CommitQueue:
    """Commits the pending batches of a stream's tables, one commit after the other.

    Args:
        interval: seconds between two commits, unless MOST_FILES or more files are pending.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="stream-commit")
        self._running: tuple[Sequence[TableStream], Future[list[Committed | None]]] | None = None
        self._last = time.monotonic()

    def is_due(self, tables: Sequence[TableStream]) -> bool:
        """Whether it is time for the next commit."""
        pending = [batch for table in tables for batch in table.pending]
        if sum(len(batch.files) for batch in pending) >= MOST_FILES:
            return True
        return time.monotonic() - self._last >= self._interval

    def submit(self, tables: Sequence[TableStream]) -> None:
        """Begin to commit what is pending, once the commit before is done.

        Raises:
            StreamError: the commit before has failed.
        """
        self.wait()
        # A table that was created by the last batch has nothing of the batches before.
        changed = [table for table in tables if table.pending]
        if not changed:
            return
        parts = [(table.sink, table.take_pending()) for table in changed]
        self._last = time.monotonic()
        commit = self._executor.submit(commit_batches, uuid.uuid4().hex, parts)
        self._running = changed, commit

    def wait(self) -> None:
        """Wait for the commit that is under way.

        Raises:
            StreamError: it has failed.
        """
        if self._running is None:
            return
        (tables, commit), self._running = self._running, None
        try:
            committed = commit.result()
        except OSError as error:
            raise tables[0].storage_error(error) from error
        for table, done in zip(tables, committed, strict=True):
            if done is not None:
                table.report_commit(done)

    def flush(self, tables: Sequence[TableStream]) -> None:
        """Commit what is pending, and wait for it; raises as `wait` does."""
        self.submit(tables)
        self.wait()

    def settle(self, tables: Sequence[TableStream]) -> None:
        """Record progress that no snapshot has; raises as `wait` does."""
        self.wait()
        for table in tables:
            table.record_progress()

    def close(self) -> None:
        """Wait for the commit that is under way, whatever becomes of it."""
        self._executor.shutdown()
