"""Commit batches of a stream in the background while the next ones are written."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from dbt.adapters.iceberg_stream.stream.sink.commits import commit_batches
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream, storage_error
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed

# Pending files after which a commit is due, because memory holds their descriptors.
MAX_PENDING_FILES = 2000


class CommitQueue:
    """Commits the pending batches of a stream's tables, one commit at a time.

    Args:
        interval: seconds between two commits; `MAX_PENDING_FILES` pending files end it early.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="stream-commit")
        self._running: tuple[Sequence[TableStream], Future[list[Committed | None]]] | None = None
        self._maintaining: Future[None] | None = None
        self._submitted = time.monotonic()

    def is_due(self, tables: Sequence[TableStream]) -> bool:
        """Return whether it is time for the next commit.

        Args:
            tables: the tables with their pending batches.
        """
        pending = [batch for table in tables for batch in table.pending]
        if sum(len(batch.files) for batch in pending) >= MAX_PENDING_FILES:
            return True
        return time.monotonic() - self._submitted >= self._interval

    def submit(self, tables: Sequence[TableStream]) -> None:
        """Start to commit the pending batches, after the commit that is running.

        Args:
            tables: the tables with their pending batches.

        Raises:
            StreamError: the commit that was running failed.
        """
        self.wait()
        # A table that the last batch created has no pending batches yet.
        changed = [table for table in tables if table.pending]
        if not changed:
            return
        parts = [(table.sink, table.take_pending()) for table in changed]
        self._submitted = time.monotonic()
        commit = self._executor.submit(commit_batches, uuid.uuid4().hex, parts)
        self._running = changed, commit
        # Behind the commit, and while the next batches are written.
        self._maintaining = self._executor.submit(_maintain, changed, commit)

    def wait(self) -> None:
        """Wait for the running commit, and report it to its tables.

        Raises:
            StreamError: the commit failed; the message names all its tables.
        """
        if self._running is None:
            return
        (tables, commit), self._running = self._running, None
        try:
            committed = commit.result()
        except OSError as error:
            raise storage_error(error, tables) from error
        for table, result in zip(tables, committed, strict=True):
            if result is not None:
                table.report_commit(result)

    def flush(self, tables: Sequence[TableStream]) -> None:
        """Commit the pending batches, and wait for the commit.

        Args:
            tables: the tables with their pending batches.

        Raises:
            StreamError: the commit failed.
        """
        self.submit(tables)
        self.wait()

    def settle(self, tables: Sequence[TableStream]) -> None:
        """Wait for the running commit and what follows it, then record progress that is new.

        Args:
            tables: the tables whose progress to record.

        Raises:
            StreamError: the commit failed.
        """
        self.wait()
        if self._maintaining is not None:
            self._maintaining.result()
        for table in tables:
            table.record_progress()

    def close(self) -> None:
        """Wait for the running commit, and ignore its result."""
        self._executor.shutdown()


def _maintain(tables: Sequence[TableStream], commit: Future[list[Committed | None]]) -> None:
    if commit.exception() is None:
        for table in tables:
            table.maintenance.after_commit(table.sink)
