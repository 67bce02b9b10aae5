"""Write one table of a stream: its batches in order, its progress and its status."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sink.watermark import as_json, from_json
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier, describe
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.table_maintenance import TableMaintenance
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome, read_outcome
from dbt.adapters.iceberg_stream.tables.commit.table_change import TableChange
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError

logger = Logger()


@dataclass
class TableStream:
    """One table of a stream.

    Attributes:
        writer: writes the files of a batch.
        status: the table's status.
        on_commit: called with the status and the outcome after each commit.
        schema_id: identifies the source's columns that the writer was opened with.
        reopen: returns a writer for the columns of a batch, given its two frontiers, and the
            writer's schema id.
        pending: batches that are written but not committed.
        frontier: the end of the last batch in `pending`, or of the last commit.
        is_late: whether a change arrived that is older than the row it changes.
        recorded: last record of progress, in seconds of the monotonic clock.
        change: what all commits changed.
    """

    writer: BatchWriter
    status: StreamStatus
    on_commit: Callable[[StreamStatus, Outcome], None] = lambda status, outcome: None
    schema_id: str = ""
    reopen: Callable[[Frontier | None, Frontier], tuple[BatchWriter, str]] | None = None
    pending: list[WrittenBatch] = field(default_factory=list)
    frontier: Frontier | None = None
    is_late: bool = False
    recorded: float = field(default_factory=time.monotonic)
    change: TableChange = field(default_factory=TableChange)
    _watermark: Any = None
    # The name of the stream's own table for Spark, while commits go to a staged one.
    _relation: str = ""

    def __post_init__(self) -> None:
        options = self.writer.options
        self.maintenance = TableMaintenance(options.compaction_share, options.converts_deletes)

    @property
    def sink(self) -> Sink:
        return self.writer.sink

    @property
    def is_serial(self) -> bool:
        """Return whether a batch can be written only after the commit of the one before."""
        return self.is_late or self.writer.reads_target

    def begin(self, refresh: bool) -> None:
        """Take over the table from earlier runs of the stream.

        Args:
            refresh: whether the first commit replaces all rows of the table.

        Raises:
            StreamError: the query's columns do not fit the table.
        """
        try:
            # After a conflict, drop the replacement that the attempt before had prepared.
            self.sink.forget_replacement()
            # A full refresh continues from what it has committed to its staged table.
            refresh = refresh and not self.sink.is_staged
            self.sink.claim(None if refresh else self.writer.schema, refresh)
            if refresh:
                self.sink.replace_with(self.writer.schema)
            options = self.writer.options
            if options.sequence_by and options.scd_type != 2:
                self.sink.order_by(options.sequence_by)
            self.writer.open_index(refresh)
            compares = options.keys and options.sequence_by and not self.writer.reads_target
            if compares and self.sink.index is None:
                self.sink.compare_rows(options.sequence_by)
        except ColumnError as error:
            raise StreamError(f"{self.status.name}: {error} {_position([self])}") from error
        progress = self.sink.progress
        self.frontier = None if refresh else progress.frontier
        self._watermark = None if refresh else from_json(progress.watermark)

    def stage(self) -> None:
        """Let commits go to a staged table, because readers must not see a part of a refresh."""
        query, own = self.writer.query, self.sink.name
        self.sink.stage()
        self._relation = query.relation
        staged = renamed_relation(query.relation, own[1], self.sink.name[1])
        self.writer.query = replace(query, relation=staged)

    def take_over(self) -> None:
        """Let the next commit give the stream's own table the rows of the staged one."""
        progress = self.sink.take_over()
        self.writer.query = replace(self.writer.query, relation=self._relation)
        whole = BatchRange(None, progress.frontier)
        self.pending.append(WrittenBatch(whole, [], watermark=progress.watermark))

    def drop_staged(self) -> None:
        """Drop the staged table of a full refresh; if that fails, the next run does."""
        try:
            self.sink.drop_staged()
        except (CatalogError, StreamError, OSError) as error:
            logger.warning(
                f"The staged table of the full refresh of {self.status.name} was not dropped; the "
                f"next run drops it: {reason(error)}"
            )

    def follow_schema(self, upper: Frontier) -> None:
        """Reopen the writer for the columns of the next batch.

        Args:
            upper: the end of that batch.
        """
        assert self.reopen is not None, "a source whose columns change has `reopen`"
        before, sink = self.writer.query, self.sink
        self.writer.close()
        self.writer, self.schema_id = self.reopen(self.frontier, upper)
        self.writer.query = replace(
            self.writer.query, where=before.where, deletes_others=before.deletes_others
        )
        if sink.is_staged:
            self.writer.sink = sink
            self.writer.query = replace(self.writer.query, relation=before.relation)
        # Its entries stay good; the next run checks that the keys have the same types.
        self.sink.index = sink.index

    def write(self, session: Session, batch_range: BatchRange, late: bool) -> WrittenBatch:
        """Write the files of a batch; the batches before it may still be uncommitted.

        Args:
            session: the engine's session.
            batch_range: the batch.
            late: whether to drop changes that are older than the rows they change.

        Raises:
            StreamError: the batch cannot be written; its files are removed.
        """
        # The names of the files contain the id, so that a failed write removes its own files.
        name, writer = uuid.uuid4().hex, self.writer
        try:
            return writer.write(session, batch_range, name, late or writer.is_late)
        except OSError as error:
            raise storage_error(error, [self]) from error
        except StatementError:
            # Spark's message is about a table; the source knows which files are missing.
            if batch_range.upper is not None:
                writer.source.require(batch_range.lower, batch_range.upper)
            raise

    def reconcile(
        self, batch: WrittenBatch, session: Callable[[], Session], flush: Callable[[], None]
    ) -> WrittenBatch:
        """Return the batch, checked against the batches before it.

        The batch is written again if some of its changes are older than the rows they change.

        Args:
            batch: the next batch to commit.
            session: returns the engine's session.
            flush: commits the batches before it.
        """
        if self._has_late_changes(batch):
            # Only the committed rows show which changes are older than their rows.
            self.sink.discard([batch])
            self.is_late = True
            flush()
            batch = self.write(session(), batch.batch_range, late=True)
        if batch.truncates:
            flush()
            self.sink.replace_rows()
        return replace(batch, watermark=as_json(self._next_watermark(batch)))

    def enqueue(self, batch: WrittenBatch) -> None:
        """Add a batch to the pending ones."""
        try:
            batch = self.sink.add_to_index(batch, self._watermark, joins=bool(self.pending))
        except OSError as error:
            raise storage_error(error, [self]) from error
        self.pending.append(batch)
        self.frontier = batch.batch_range.upper
        self._watermark = from_json(batch.watermark)
        status = self.status
        status.state = "running"
        status.batches += 1
        status.changes += batch.changes
        status.bad_records += batch.bad
        status.skipped_records += batch.skipped
        status.upserts += sum(delta.upserts for delta in batch.deltas)
        status.deletes += sum(delta.deletes for delta in batch.deltas)

    def take_pending(self) -> list[WrittenBatch]:
        """Remove and return the pending batches."""
        batches, self.pending = self.pending, []
        return batches

    def report_commit(self, committed: Committed) -> None:
        """Update the status after a commit, and call `on_commit`."""
        self.recorded = time.monotonic()
        if self.sink.is_staged:
            return
        self.status.commits += 1
        self.status.committed = time.time()
        self.status.snapshot_id = committed.snapshot.snapshot_id
        outcome = read_outcome(committed.snapshot)
        self.status.delete_files = outcome.total_delete_files
        self.change.add(outcome)
        self.on_commit(self.status, outcome)

    def store_index(self) -> None:
        """Store the key index beside the table, so that the next run starts faster."""
        if self.sink.is_staged:
            return  # the stream was stopped before its full refresh was complete
        try:
            self.sink.store_index()
        except (CatalogError, OSError) as error:
            logger.warning(
                f"The key index of {self.status.name} cannot be stored, so the next run builds it "
                f"again: {reason(error)}"
            )

    def record_progress(self) -> None:
        """Record progress that is in no snapshot, in the table's property."""
        recorded = self.frontier in (None, self.sink.progress.frontier)
        if self.frontier is not None and not recorded and not self.pending:
            self.sink.record(self.frontier)
        self.recorded = time.monotonic()

    def _has_late_changes(self, batch: WrittenBatch) -> bool:
        first = from_json(batch.first)
        if first is None or batch.not_late or self.writer.reads_target:
            return False
        watermark, rows = self._watermark, self.sink.newest_rows
        if watermark is not None and type(first) is not type(watermark):
            raise StreamError(
                f"{self.status.name}: `sequence_by` changed type from "
                f"{type(watermark).__name__} to {type(first).__name__}. Cast it in the "
                "query, or rebuild the table with --full-refresh."
            )
        if self.sink.index is not None:
            # The index leaves them out.
            return False
        if rows is not None and not self.sink.replaces and rows.may_precede([batch]):
            return True
        # Where several columns order changes, those after the first may differ.
        several = len(self.writer.options.sequence_by) > 1
        return watermark is not None and bool(first < watermark or (several and first == watermark))

    def _next_watermark(self, batch: WrittenBatch) -> Any:
        """Return the highest value of the first `sequence_by` column in all batches so far."""
        values = (self._watermark, from_json(batch.last))
        return max((value for value in values if value is not None), default=None)


def renamed_relation(relation: str, identifier: str, other: str) -> str:
    """Return the name of a table, for Spark, with another identifier in the same namespace.

    Args:
        relation: the table's name.
        identifier: the last part of it.
        other: the identifier to put in its place.
    """
    own = quote(identifier) if relation.endswith("`") else identifier
    return f"{relation.removesuffix(own)}{quote(other)}"


def storage_error(error: OSError, tables: Sequence[TableStream]) -> StreamError:
    """Return the error for a file that cannot be written, or read from the source.

    Args:
        error: PyArrow's error.
        tables: the tables of the batch or the commit.
    """
    names = ", ".join(table.status.name for table in tables)
    parts = [f"{names}: a file cannot be written or read: {error}."]
    # Advice for one table is as good for the others: they are in one catalog.
    parts += [advice for table in tables[:1] if (advice := table.sink.storage_advice(error))]
    if len(tables) == 1:
        parts.append("Nothing of this batch was written.")
    return StreamError(" ".join([*parts, _position(tables)]))


def _position(tables: Sequence[TableStream]) -> str:
    positions = {table.status.name: describe(table.sink.progress.frontier) for table in tables}
    if len(set(positions.values())) == 1:
        return f"The stream stands at {positions.popitem()[1]}; the next run continues there."
    each = ", ".join(f"{name} at {position}" for name, position in positions.items())
    return f"The stream stands at different positions: {each}. The next run continues there."
