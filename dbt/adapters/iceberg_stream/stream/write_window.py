"""Write several batches of a stream at the same time, and return them in the source's order."""

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
    """A batch that is being written, and its tables."""

    tables: Sequence[TableStream]
    written: Future[list[WrittenBatch]]


class WriteWindow:
    """Writes batches ahead of their commits.

    Args:
        size: number of batches that are written at the same time.
        session: returns the engine's session, with a valid token.
    """

    def __init__(self, size: int, session: Callable[[], Session]) -> None:
        self.size = size
        self._session = session
        self._executor = ThreadPoolExecutor(size, thread_name_prefix="stream-write")
        self._writing: deque[_Writing] = deque()

    def __len__(self) -> int:
        return len(self._writing)

    def submit(self, batch: BatchRange, tables: Sequence[TableStream]) -> None:
        """Start to write a batch.

        Args:
            batch: the range of the source to write.
            tables: the tables to write it to.
        """
        tables = list(tables)
        late = [table.is_late for table in tables]
        written = self._executor.submit(_write, self._session(), batch, late, tables)
        self._writing.append(_Writing(tables, written))

    def take(self, flush: Callable[[], None]) -> list[WrittenBatch]:
        """Wait for the oldest batch, and queue it for the next commit of its tables.

        Args:
            flush: commits the batches before it.

        Returns:
            The batch, once for each table.

        Raises:
            StreamError: the batch cannot be written; its files are removed.
        """
        writing = self._writing.popleft()
        written = writing.written.result()
        with ExitStack() as undo:
            undo.callback(_discard, writing.tables, written)
            for number, table in enumerate(writing.tables):
                written[number] = table.reconcile(written[number], self._session, flush)
            # Where one table's index fails, `discard` removes the files of all.
            for table, batch in zip(writing.tables, written, strict=True):
                table.enqueue(batch)
            undo.pop_all()
        return written

    def discard(self) -> None:
        """Remove the files of all batches that were not taken."""
        writing, self._writing = self._writing, deque()
        for batch in writing:
            if batch.written.exception() is None:
                _discard(batch.tables, batch.written.result())

    def close(self) -> None:
        """Wait for the batches that are being written."""
        self._executor.shutdown()


def _write(
    session: Session, batch: BatchRange, late: Sequence[bool], tables: Sequence[TableStream]
) -> list[WrittenBatch]:
    """Write a batch for each table; if one fails, remove the files of all."""
    written: list[WrittenBatch] = []
    with ExitStack() as undo:
        for table, is_late in zip(tables, late, strict=True):
            result = table.write(session, batch, is_late)
            undo.callback(table.sink.discard, [result])
            written.append(result)
        undo.pop_all()
    return written


def _discard(tables: Sequence[TableStream], written: Sequence[WrittenBatch]) -> None:
    for table, batch in zip(tables, written, strict=True):
        table.sink.discard([batch])
