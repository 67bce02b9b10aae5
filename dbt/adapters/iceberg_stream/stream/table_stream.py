"""One table that a stream feeds: its batches in their order, and what is known of it meanwhile."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sink.watermark import as_json, from_json
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, LosableSource, describe
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError


@dataclass
class TableStream:
    """A table and its part of the stream.

    Attributes:
        writer: makes files of batches.
        status: what is told of it.
        told: is called after each commit.
        schema_id: of the source's columns that the writer is for.
        reopen: gives a writer, and its schema id, for a batch between two frontiers.
        pending: batches that wait for their commit.
        frontier: of the source, to which its batches have come.
        is_late: whether changes have come that are older than their rows.
        recorded: when its progress was told last, by the monotonic clock.
    """

    writer: BatchWriter
    status: StreamStatus
    told: Callable[[StreamStatus], None] = lambda status: None
    schema_id: str = ""
    reopen: Callable[[Frontier | None, Frontier], tuple[BatchWriter, str]] | None = None
    pending: list[WrittenBatch] = field(default_factory=list)
    frontier: Frontier | None = None
    is_late: bool = False
    recorded: float = field(default_factory=time.monotonic)
    _watermark: Any = None

    @property
    def sink(self) -> Sink:
        return self.writer.sink

    @property
    def is_serial(self) -> bool:
        """Whether each batch must see what the one before it has committed."""
        return self.is_late or self.writer.looks_up

    def begin(self, refresh: bool) -> None:
        """Take the table over from other runs; with refresh, all its rows are to be replaced.

        Raises:
            StreamError: the table cannot take the rows in.
        """
        try:
            # What was to be replaced before another run was faster is that run's affair.
            self.sink.replaces, self.sink.updates = False, ()
            self.sink.claim(None if refresh else self.writer.schema, refresh)
            if refresh:
                self.sink.replace_with(self.writer.schema)
        except ColumnError as error:
            raise StreamError(f"{self.status.name}: {error} {self._stands}") from error
        progress = self.sink.progress
        self.frontier = None if refresh else progress.frontier
        self._watermark = None if refresh else from_json(progress.watermark)

    def follow_schema(self, upper: Frontier) -> None:
        """Write what comes with the columns of the next batch, which ends there."""
        assert self.reopen is not None, "a source that changes its columns can be opened again"
        where = self.writer.query.where
        self.writer, self.schema_id = self.reopen(self.frontier, upper)
        self.writer.query = replace(self.writer.query, where=where)

    def write(self, session: Session, described: BatchRange, late: bool) -> WrittenBatch:
        """Write the files of a batch, which may be before its turn."""
        # Its files have a name of their own: what fails is swept away by it.
        name, writer = uuid.uuid4().hex, self.writer
        try:
            return writer.write(session, described, name, late or writer.is_late)
        except OSError as error:
            raise self.storage_refuses(error) from error
        except StatementError:
            # Spark's advice is of tables; what is missing is told by the source.
            if isinstance(writer.source, LosableSource) and described.upper is not None:
                writer.source.require(described.lower, described.upper)
            raise

    def storage_refuses(self, error: OSError) -> StreamError:
        """What to say when a file of the table cannot be written, or one of the source read."""
        return StreamError(
            f"{self.status.name}: a file cannot be written or read: {error}. Nothing of this batch "
            f"was written. {self._stands}"
        )

    @property
    def _stands(self) -> str:
        stands = describe(self.sink.progress.frontier)
        return f"The stream stands at {stands}, and will go on there."

    def set_right(
        self, batch: WrittenBatch, session: Callable[[], Session], flush: Callable[[], None]
    ) -> WrittenBatch:
        """The batch as it must be after those before it, which `flush` commits."""
        if self._comes_late(batch):
            # Some changes are older than what was written: the table must be asked which.
            self.sink.discard([batch])
            self.is_late = True
            flush()
            batch = self.write(session(), batch.described, late=True)
        if batch.truncates:
            flush()
            self.sink.replaces = True
        return replace(batch, watermark=as_json(self._high(batch)))

    def take(self, batch: WrittenBatch) -> None:
        """Have a batch wait for its commit."""
        self.pending.append(batch)
        self.frontier = batch.described.upper
        self._watermark = from_json(batch.watermark)
        status = self.status
        status.state = "running"
        status.batches += 1
        status.changes += batch.changes
        status.bad_records += batch.bad
        status.upserts += sum(delta.upserts for delta in batch.deltas)
        status.deletes += sum(delta.deletes for delta in batch.deltas)

    def take_pending(self) -> list[WrittenBatch]:
        """The batches that wait, which do not wait any more."""
        batches, self.pending = self.pending, []
        return batches

    def committed(self, done: Committed) -> None:
        """Tell of a commit."""
        self.recorded = time.monotonic()
        self.status.commits += 1
        self.status.committed = time.time()
        self.status.snapshot_id = done.snapshot.snapshot_id
        self.told(self.status)

    def settle(self) -> None:
        """Record progress that no snapshot tells."""
        recorded = self.frontier in (None, self.sink.progress.frontier)
        if self.frontier is not None and not recorded and not self.pending:
            self.sink.record(self.frontier)
        self.recorded = time.monotonic()

    def _comes_late(self, batch: WrittenBatch) -> bool:
        first = from_json(batch.first)
        if first is None or self._watermark is None or batch.not_late or self.writer.looks_up:
            return False
        if type(first) is not type(self._watermark):
            raise StreamError(
                f"{self.status.name}: `sequence_by` changed type from "
                f"{type(self._watermark).__name__} to {type(first).__name__}. Cast it in the "
                "query, or rebuild the table with --full-refresh."
            )
        # Where several columns order changes, those after the first may differ.
        several = len(self.writer.options.sequence_by) > 1
        return bool(first < self._watermark or (several and first == self._watermark))

    def _high(self, batch: WrittenBatch) -> Any:
        """The highest value of the first column that orders changes, of all so far."""
        values = (self._watermark, from_json(batch.last))
        return max((value for value in values if value is not None), default=None)
