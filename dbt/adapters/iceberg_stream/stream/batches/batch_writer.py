"""Write one batch: a range of the source, through the model's query, into the table's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.stream.batches.arrow_batches import (
    Fallbacks,
    Partitions,
    Selection,
)
from dbt.adapters.iceberg_stream.stream.batches.bad_records import (
    BadRecords,
    RecordCounts,
    readable,
    with_counts,
    with_observation,
)
from dbt.adapters.iceberg_stream.stream.batches.copy_on_write import (
    CopyOnWrite,
    Rewriter,
    rewrite_here,
)
from dbt.adapters.iceberg_stream.stream.batches.located_rows import (
    as_of_snapshot,
    with_located_rows,
)
from dbt.adapters.iceberg_stream.stream.batches.message_records import MessageRecords
from dbt.adapters.iceberg_stream.stream.batches.runners import (
    Runner,
    in_process,
    in_tasks,
    write_here,
)
from dbt.adapters.iceberg_stream.stream.batches.spark_rows import SparkRows
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback, StreamError
from dbt.adapters.iceberg_stream.stream.key_index.snapshot_index import NotIndexable
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import Positions, find_positions
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import Delta, TooManyKeys
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import DeltaPlan, deleted_schema
from dbt.adapters.iceberg_stream.stream.row_deltas.written import (
    NOTHING_READ,
    BatchRange,
    EarlyDeletes,
    TargetDeletes,
    WrittenBatch,
)
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sink.table_index import ChangeOrder
from dbt.adapters.iceberg_stream.stream.sink.watermark import as_json
from dbt.adapters.iceberg_stream.stream.sources.source import (
    Frontier,
    RecordSource,
    Source,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id
from dbt.adapters.iceberg_stream.tables.files.casting import conform

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

# Makes a batch one sub-batch, in which rows are deleted by position and not by equality deletes.
ALL_KEYS = 1 << 62
TOMBSTONES, NO_ROWS = "__stream_tombstones", "__stream_no_rows"
# Where it is true, names in other letters are other names.
CASE_SENSITIVE = "spark.sql.caseSensitive"
logger = Logger()


@dataclass
class BatchWriter:
    """Writes the batches of one stream; several at once, unless they read the table.

    Attributes:
        source: the source of the changes.
        query: the model's query.
        sink: the table that the changes go to.
        options: the model's options.
        runner: writes files, in this process or in Spark's tasks.
        bad_records: handles records that cannot be read.
        schema: of the table's columns, with the types that the query returns.
        partitions: computes the partition values of rows as the query does; None if only Spark can.
        rewriter: rewrites files of the table, in this process or in Spark's tasks.
    """

    source: Source
    query: StreamQuery
    sink: Sink
    options: StreamOptions
    runner: Runner
    bad_records: BadRecords
    schema: pa.Schema
    partitions: Partitions | None = None
    rewriter: Rewriter = rewrite_here
    _fallbacks: Fallbacks = field(default_factory=Fallbacks, init=False)
    _is_explained: bool = field(default=False, init=False)

    @property
    def reads_target(self) -> bool:
        """Return whether a batch can be written only after the commit of the one before."""
        return self._locates_rows or self.query.reads_target

    @property
    def is_late(self) -> bool:
        """Return whether batches drop changes that are older than their rows."""
        versions = self.options.scd_type == 2
        return self.reads_target and bool(self.options.sequence_by) and not versions

    def close(self) -> None:
        """Close the connections of the source; no batch is being written."""
        self.source.close()

    def open_index(self, refresh: bool) -> None:
        """Index the table's keys, if deletes by position are wanted and possible.

        Args:
            refresh: whether the run replaces all rows of the table.
        """
        if not self.options.indexes_keys:
            return
        order, prefix = None, 0
        if self.options.scd_type == 2:
            # The versions of a key are found by it, and ordered again.
            prefix = len(self.options.keys)
        elif self.options.sequence_by:
            order = ChangeOrder(self.options.sequence_by, self.options.deleted_keys_days)
        try:
            self.sink.load_index(self.options.max_indexed_rows, refresh, order, prefix)
        except NotIndexable as error:
            if order is not None and self.options.delete_encoding == "position":
                raise StreamError(
                    f"The keys of {'.'.join(self.sink.name)} cannot be indexed: {error}. A stream "
                    "with `sequence_by` needs this index to delete rows by position. Remove "
                    "`delete_encoding: position`, and the stream writes equality deletes."
                ) from error
            if self.options.delete_encoding == "position":
                instead = "Spark scans the table for the rows that each batch changes"
            elif self.options.converts_deletes:
                instead = (
                    "Its stream writes equality deletes, and converts them to deletes by position "
                    "between its commits, as `compaction_share` allows"
                )
            else:
                instead = "Its stream writes equality deletes, which slow readers down"
            logger.warning(
                f"The keys of {'.'.join(self.sink.name)} cannot be indexed: {error}. {instead}."
            )

    def write(
        self, session: Session, batch_range: BatchRange, write_id: str, late: bool = False
    ) -> WrittenBatch:
        """Write the files of a batch.

        Args:
            session: the engine's session.
            batch_range: the range of the source.
            write_id: id of the batch, in the names of its files.
            late: whether to drop changes that are older than the rows they change.

        Raises:
            StreamError: the batch cannot be written; no file of it is left.
        """
        unreadable = self._unreadable(batch_range)
        batch = self._write_readable(session, batch_range, write_id, late)
        if not unreadable:
            return batch
        with ExitStack() as undo:
            undo.callback(self.sink.discard, [batch])
            bad = self.bad_records.handle_once(
                (batch_range, "files"), lambda: self.bad_records.handle_files(unreadable)
            )
            undo.pop_all()
        return replace(batch, bad=batch.bad + bad)

    def _unreadable(self, batch_range: BatchRange) -> Mapping[str, str]:
        """Return why files of the batch cannot be read; raise StreamError if that is an error."""
        unreadable = self.source.unreadable(batch_range.lower, _end(batch_range))
        if self.bad_records.write is None:
            self.bad_records.handle_files(unreadable)
        return unreadable

    def _write_readable(
        self, session: Session, batch_range: BatchRange, write_id: str, late: bool
    ) -> WrittenBatch:
        if isinstance(self.source, RecordSource):
            return self._write_messages(session, batch_range, write_id, late, self.source)
        if self.runner is in_process and not late and self._fallbacks.allow_arrow():
            selection = self._selection(session)
            try:
                changes = self._arrow_changes(session, batch_range, selection)
                if changes is not None:
                    batch = self._write_arrow(changes, batch_range, write_id)
                    self._fallbacks.reset()
                    return batch
            except ArrowFallback as error:
                self._fall_back(error)
        frame = self.source.read(session.spark, batch_range.lower, _end(batch_range))
        return self._write_frame(session, batch_range, write_id, late, frame)

    def _write_messages(
        self,
        session: Session,
        batch_range: BatchRange,
        write_id: str,
        late: bool,
        source: RecordSource,
    ) -> WrittenBatch:
        """Write a batch whose records this process decodes."""
        records = MessageRecords(source, session, batch_range, self.bad_records)
        batch = None if late else self._write_records(records, write_id)
        if batch is None:
            with records.frame(self.is_remote) as frame:
                counts = records.counts
                batch = self._write(session, batch_range, write_id, late, frame, lambda: counts)
        with ExitStack() as undo:
            undo.callback(self.sink.discard, [batch])
            bad = self.bad_records.handle_once(
                (batch_range, "records"), lambda: self.bad_records.handle_records(records.bad)
            )
            undo.pop_all()
        return replace(batch, bad=bad, skipped=records.counts.skipped)

    def _write_records(self, records: MessageRecords, write_id: str) -> WrittenBatch | None:
        """Write records whose query PyArrow computes; return None if Spark has to."""
        if self._needs_spark(records.session) or not self._fallbacks.allow_arrow():
            return None
        selection = self._selection(records.session)
        if selection.pick(records.columns) is None:
            self._explain(selection)
            return None
        try:
            changes = selection.changes(records.rows())
            batch = self._write_arrow(changes, records.batch_range, write_id)
        except ArrowFallback as error:
            self._fall_back(error)
            return None
        self._fallbacks.reset()
        return batch

    def _selection(self, session: Session) -> Selection:
        compute = SparkRows(session, self.is_remote).compute
        return Selection(self.query, self.schema, self.partitions, compute)

    def _needs_spark(self, session: Session) -> bool:
        """Return whether Spark has to compute the changes, whatever the query is."""
        if self.reads_target or (self.query.partition and self.partitions is None):
            return True
        return session.setting(CASE_SENSITIVE).lower() == "true"

    @property
    def is_remote(self) -> bool:
        """Return whether Spark runs on other machines, too."""
        return self.runner is in_tasks

    def _write_frame(
        self,
        session: Session,
        batch_range: BatchRange,
        write_id: str,
        late: bool,
        frame: DataFrame,
    ) -> WrittenBatch:
        if not self.query.reads_target:
            counted = with_observation(frame, self.source)
            return self._write(session, batch_range, write_id, late, *counted)
        # The query reads the batch several times.
        frame = frame.persist()
        try:
            counted = with_counts(session, frame, self.source)
            return self._write(session, batch_range, write_id, late, *counted)
        finally:
            frame.unpersist()

    def _arrow_changes(
        self, session: Session, batch_range: BatchRange, selection: Selection
    ) -> Iterator[pa.RecordBatch] | None:
        """Return the changes as PyArrow reads them; None if Spark has to read the batch."""
        source = self.source
        if self._needs_spark(session):
            return None
        rows = source.arrow_rows(session, batch_range.lower, _end(batch_range), selection.pick)
        self._explain(selection)
        return None if rows is None else selection.changes(rows)

    def _fall_back(self, error: ArrowFallback) -> None:
        self._fallbacks.add()
        logger.debug(f"Spark reads a batch for {'.'.join(self.sink.name)} again. {error}")

    def _explain(self, selection: Selection) -> None:
        """Log once why Spark computes whole rows."""
        if selection.unsupported and not self._is_explained:
            self._is_explained = True
            logger.debug(
                f"Spark reads all columns of the rows of {'.'.join(self.sink.name)}, which takes "
                f"longer, because of {selection.unsupported}. See docs/stream_queries.md."
            )

    def _write_arrow(
        self, changes: Iterator[pa.RecordBatch], batch_range: BatchRange, write_id: str
    ) -> WrittenBatch:
        plan = self._plan(write_id, in_order=True)
        if not (plan.ordered or plan.max_keys):
            raise ArrowFallback
        try:
            delta = write_here(plan, changes)
        except TooManyKeys as error:
            raise ArrowFallback from error
        return self._batch(plan, batch_range, [delta])

    def _write(
        self,
        session: Session,
        batch_range: BatchRange,
        write_id: str,
        late: bool,
        frame: DataFrame,
        get_counts: Callable[[], RecordCounts],
    ) -> WrittenBatch:
        plan, query = self._plan(write_id), self.query
        views = {query.view: frame}
        read_from: int | None = NOTHING_READ
        if self.sink.replaces:
            query = self._without_rows(session, views)
        elif late or query.reads_target:
            # Before the rows are read: a commit in between is a conflict, too.
            metadata = self.sink.table().metadata
            read_from = current_snapshot_id(metadata)
            query = replace(query, relation=as_of_snapshot(query.relation, metadata))
            if query.reads_target:
                query = with_located_rows(session, query, self.sink, self.schema, views)
        self._require_order(session, views, batch_range)
        if late or query.period:
            views |= self._deleted_keys(session, plan)
        tombstones = TOMBSTONES if TOMBSTONES in views else None
        sql = query.changes_not_late(tombstones) if late else query.changes(tombstones)
        batch = self._written(session, plan, sql, views, batch_range, self.sink.replaces)
        with ExitStack() as undo:
            undo.callback(self.sink.discard, [batch])
            counts = get_counts()
            if counts.bad:
                counts = self._handle_bad_records(session, batch_range, counts)
            batch = replace(batch, bad=counts.bad)
            if query.period:
                batch = replace(batch, early_deletes=self._early_deletes(session, plan, views))
            may_truncate = counts.truncates or self.options.truncates is not None
            if not may_truncate or not self._count_truncates(session, frame):
                undo.pop_all()
                return replace(batch, not_late=late, read_from=read_from)
        batch = self._after_truncate(session, plan, batch_range, frame)
        return replace(batch, bad=counts.bad)

    def _deleted_keys(self, session: Session, plan: DeltaPlan) -> dict[str, DataFrame]:
        """Return a view of the keys that were deleted, with their order; empty for none."""
        from pyspark.sql.pandas.types import from_arrow_schema

        # Files from before a column was widened have its narrower type.
        schema = self._deleted_schema(plan)
        paths = self.sink.deleted_keys(schema, bool(self.query.period))
        if not paths:
            return {}
        reader = session.spark.read
        # Spark has no type for UUIDs.
        if not any(isinstance(field.type, pa.BaseExtensionType) for field in schema):
            reader = reader.schema(from_arrow_schema(schema, prefer_timestamp_ntz=True))
        return {TOMBSTONES: reader.parquet(*paths)}

    def _deleted_schema(self, plan: DeltaPlan) -> pa.Schema:
        """Return the schema of deleted keys: the key columns, and those of the delete's time."""
        by = self.query.period[:1] or self.options.sequence_by
        return deleted_schema(replace(plan, keys=self.options.keys, sequence_by=by))

    def _early_deletes(
        self, session: Session, plan: DeltaPlan, views: dict[str, DataFrame]
    ) -> EarlyDeletes | None:
        """Return the deletes of a batch: the versions that they end may come later."""
        rows = session.rows(self.query.deletes(), **views)
        if not rows.num_rows:
            return None
        schema = self._deleted_schema(plan)
        keys = [conform(batch, schema) for batch in rows.to_batches()]
        return EarlyDeletes(pa.Table.from_batches(keys, schema), self.options.deleted_keys_days)

    def _require_order(
        self, session: Session, views: dict[str, DataFrame], batch_range: BatchRange
    ) -> None:
        """Raise StreamError if the source does not order several changes of a key."""
        source, options = self.source, self.options
        if not options.keys or options.sequence_by:
            return
        if not source.lacks_order(batch_range.lower):
            return
        if keys := session.rows(self.query.unknown_order(), **views).to_pylist():
            raise StreamError(
                "The source has several rows of a key in files that were rewritten, for example by "
                "a compaction, or whose snapshots have expired, so that it is not known which is "
                f"the last one: {keys[0]}. "
                "Nothing was written. Set `sequence_by` to columns that order the rows of a key."
            )

    def _after_truncate(
        self, session: Session, plan: DeltaPlan, batch_range: BatchRange, frame: DataFrame
    ) -> WrittenBatch:
        self._require_single_partition(batch_range)
        views = {self.query.view: frame}
        query = self._without_rows(session, views)
        sql = query.after_truncate()
        batch = self._written(session, plan, sql, views, batch_range, replaces=True)
        # No change is late in an empty table.
        return replace(batch, truncates=True, not_late=True)

    def _require_single_partition(self, batch_range: BatchRange) -> None:
        """Raise StreamError if the source does not order a truncate among other changes."""
        source = self.source
        count = source.partitions(_end(batch_range))
        if count > 1:
            raise StreamError(
                f"The source has a truncate, and {count} partitions, between which the order is "
                "not known, so that the rows to delete are not known either. Nothing of this batch "
                "was written. Use a topic of one partition, or let Debezium skip truncates "
                "(`skipped.operations: t`), and rebuild the table with --full-refresh."
            )

    def _without_rows(self, session: Session, views: dict[str, DataFrame]) -> StreamQuery:
        """Return the query on an empty table, because the table's rows will be replaced."""
        from pyspark.sql.pandas.types import from_arrow_schema

        if not self.query.reads_target:
            return self.query
        schema = from_arrow_schema(self.schema, prefer_timestamp_ntz=True)
        views[NO_ROWS] = session.spark.createDataFrame([], schema)
        return replace(self.query, relation=NO_ROWS)

    def _written(
        self,
        session: Session,
        plan: DeltaPlan,
        sql: str,
        views: dict[str, DataFrame],
        batch_range: BatchRange,
        replaces: bool,
    ) -> WrittenBatch:
        deltas = self.runner(session, plan, sql, views)
        batch = self._batch(plan, batch_range, deltas)
        if not self._locates_rows:
            return batch
        with ExitStack() as undo:
            undo.callback(self.sink.discard, [batch])
            target_deletes = self._locate_rows(session, plan, batch, replaces)
            undo.pop_all()
        self.sink.remove(sorted({*batch.files} - {*target_deletes.files}))
        return target_deletes

    def _batch(self, plan: DeltaPlan, batch_range: BatchRange, deltas: list[Delta]) -> WrittenBatch:
        first, last = _bounds(deltas) if self.options.sequence_by else (None, None)
        batch = WrittenBatch(batch_range, deltas, as_json(first), as_json(last))
        # A key index compares them with the rows first.
        return (
            batch if plan.keeps_keys else batch.with_early_deletes(self.options.deleted_keys_days)
        )

    def _locate_rows(
        self, session: Session, plan: DeltaPlan, batch: WrittenBatch, replaces: bool
    ) -> WrittenBatch:
        """Locate the table's rows that the batch deletes, and replace its equality deletes."""
        base = self.sink.table()
        snapshot_id = current_snapshot_id(base.metadata)
        paths = [] if replaces else batch.equality_deletes
        positions: Positions = {}
        if paths:
            relation = as_of_snapshot(self.query.relation, base.metadata)
            positions = find_positions(session, relation, self.query.keys, paths)
        if self.options.delete_encoding == "position":
            return batch.by_position(TargetDeletes(snapshot_id, positions))
        copy_on_write = CopyOnWrite(session, self.rewriter, base, plan)
        rewritten = copy_on_write.remove_dead_rows(batch)
        with ExitStack() as undo:
            undo.callback(self.sink.discard, [rewritten])
            replaced = [] if replaces else copy_on_write.rewrite_table_files(positions)
            undo.pop_all()
        return rewritten.by_position(TargetDeletes(snapshot_id, replaced=replaced))

    def _count_truncates(self, session: Session, frame: DataFrame) -> int:
        """Count the changes that the query returns and that delete all rows."""
        views = {self.query.view: frame}
        return int(session.rows(self.query.count_truncates(), **views)["n"][0].as_py())

    @contextmanager
    def readable_records(self, session: Session, batch_range: BatchRange) -> Iterator[DataFrame]:
        """Give the records of a batch that can be read to Spark.

        Args:
            session: of the engine.
            batch_range: the range of the source.
        """
        if isinstance(self.source, RecordSource):
            records = MessageRecords(self.source, session, batch_range, self.bad_records)
            with records.frame(self.is_remote) as frame:
                yield frame
            return
        frame = self.source.read(session.spark, batch_range.lower, _end(batch_range))
        yield readable(frame, self.source)

    def _handle_bad_records(
        self, session: Session, batch_range: BatchRange, counts: RecordCounts
    ) -> RecordCounts:
        """Write or report bad records of files that Spark has read."""
        source, lower, upper = self.source, batch_range.lower, _end(batch_range)
        bad = self.bad_records.handle_once(
            (batch_range, "records"),
            lambda: self.bad_records.handle(session, source.read(session.spark, lower, upper)),
        )
        return replace(counts, bad=bad)

    def _plan(self, write_id: str, in_order: bool = False) -> DeltaPlan:
        in_order = in_order or (self.source.ordered and self.query.keeps_order)
        ordered = in_order and not self.options.sequence_by
        versions = self.options.scd_type == 2
        return self.sink.plan(
            write_id,
            ordered=ordered,
            max_keys=self._max_keys(ordered),
            sequence_by=() if versions else self.options.sequence_by,
            keeps_keys=self.sink.index is not None,
        )

    @property
    def _locates_rows(self) -> bool:
        """Return whether the rows that a batch deletes are located by a query or by rewriting."""
        encoding = self.options.delete_encoding
        locates = encoding == "copy_on_write" or (
            encoding == "position" and self.sink.index is None
        )
        return locates and bool(self.query.keys)

    def _max_keys(self, ordered: bool) -> int:
        if self._locates_rows:
            return ALL_KEYS
        choice = self.options.sequence_numbers
        return self.options.max_keys if choice == "one" or (choice == "auto" and not ordered) else 0


def _end(batch_range: BatchRange) -> Frontier:
    assert batch_range.upper is not None, "a batch without an end is not read"
    return batch_range.upper


def _bounds(deltas: Sequence[Delta]) -> tuple[Any, Any]:
    """Return the lowest and highest value of the first order column, of all tasks."""
    firsts = [delta.first for delta in deltas if delta.first is not None]
    lasts = [delta.last for delta in deltas if delta.last is not None]
    return min(firsts, default=None), max(lasts, default=None)
