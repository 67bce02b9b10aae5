"""Batches of a stream that are being written, several at once, in the order of the source."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream


@dataclass(frozen=True)
class _Writing:
    """A batch that is being written, and the tables that it goes to."""

    tables: Sequence[TableStream]
    files: Future[list[WrittenBatch]]


class WriteWindow:
    """Writes batches ahead of their commits.

    Args:
        size: batches that are written at once.
        session: gives the engine's session, with a token that is good now.
    """

    def __init__(self, size: int, session: Callable[[], Session]) -> None:
        self.size = size
        self._session = session
        self._executor = ThreadPoolExecutor(size, thread_name_prefix="stream-write")
        self._writing: deque[_Writing] = deque()

    def __len__(self) -> int:
        return len(self._writing)

    def submit(self, batch: BatchRange, tables: Sequence[TableStream]) -> None:
        """Begin to write a batch."""
        tables = list(tables)
        late = [table.is_late for table in tables]
        files = self._executor.submit(_write, self._session(), batch, late, tables)
        self._writing.append(_Writing(tables, files))

    def take(self, flush: Callable[[], None]) -> list[WrittenBatch]:
        """Have the oldest batch wait for its commit, as it must be after those before it.

        Args:
            flush: commits the batches before it.

        Raises:
            StreamError: it cannot be written; nothing of it is left behind.
        """
        writing = self._writing.popleft()
        written = writing.files.result()
        with ExitStack() as undo:
            undo.callback(_discard, writing.tables, written)
            for number, table in enumerate(writing.tables):
                written[number] = table.reconcile(written[number], self._session, flush)
            undo.pop_all()
        for table, batch in zip(writing.tables, written, strict=True):
            table.enqueue(batch)
        return written

    def discard(self) -> None:
        """Remove the files of all batches that nobody has taken."""
        writing, self._writing = self._writing, deque()
        for one in writing:
            if one.files.exception() is None:
                _discard(one.tables, one.files.result())

    def close(self) -> None:
        """Wait for what is being written."""
        self._executor.shutdown()


def _write(
    session: Session, batch: BatchRange, late: Sequence[bool], tables: Sequence[TableStream]
) -> list[WrittenBatch]:
    """The files of a batch for each table; none is left if one fails."""
    written: list[WrittenBatch] = []
    with ExitStack() as undo:
        for table, is_late in zip(tables, late, strict=True):
            files = table.write(session, batch, is_late)
            undo.callback(table.sink.discard, [files])
            written.append(files)
        undo.pop_all()
    return written


def _discard(tables: Sequence[TableStream], written: Sequence[WrittenBatch]) -> None:
    for table, batch in zip(tables, written, strict=True):
        table.sink.discard([batch])
