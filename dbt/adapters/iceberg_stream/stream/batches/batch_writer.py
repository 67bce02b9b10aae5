"""One batch: a range of the source, through the model's query, into files of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.batches.bad_records import (
    BadRecords,
    Seen,
    counted,
    observed,
)
from dbt.adapters.iceberg_stream.stream.batches.copy_on_write import (
    CopyOnWrite,
    Rewriter,
    in_threads,
)
from dbt.adapters.iceberg_stream.stream.batches.runners import Runner, in_process, write_here
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback, StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import Positions, find_positions
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import Delta
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import DeltaPlan
from dbt.adapters.iceberg_stream.stream.row_deltas.written import (
    BatchRange,
    TargetDeletes,
    WrittenBatch,
)
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink, current_snapshot_id
from dbt.adapters.iceberg_stream.stream.sink.watermark import as_json
from dbt.adapters.iceberg_stream.stream.sources.source import (
    BAD,
    MAJOR,
    MINOR,
    ArrowSource,
    FileSource,
    Frontier,
    PartitionedSource,
    Source,
    UnorderedSource,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

# Rows of one sub-batch have their positions in it: a batch is one where nothing else may delete.
ALL_KEYS = 1 << 62
# Batches one after the other that Spark had to decode after all.
MOST_NOT_PLAIN = 3
TOMBSTONES, NO_ROWS = "__stream_tombstones", "__stream_no_rows"


@dataclass
class BatchWriter:
    """Writes batches of one stream; several at once, where none looks at the table.

    Attributes:
        source, query, sink: where changes come from, what they become, and where they go.
        runner: where files are written.
        bad_records: takes what cannot be read.
        schema: of the table's columns, as the query gives them.
        rewriter: where files of the table are rewritten.
    """

    source: Source
    query: StreamQuery
    sink: Sink
    options: StreamOptions
    runner: Runner
    bad_records: BadRecords
    schema: pa.Schema
    rewriter: Rewriter = in_threads
    _not_plain: int = field(default=0, init=False)

    @property
    def reads_target(self) -> bool:
        """Whether each batch must see what the one before it has committed."""
        return self._locates or self.query.reads_target

    @property
    def is_late(self) -> bool:
        """Whether each batch leaves out what is older than its row."""
        versions = self.options.scd_type == 2
        return self.reads_target and bool(self.options.sequence_by) and not versions

    def write(
        self, session: Session, batch_range: BatchRange, write_id: str, late: bool = False
    ) -> WrittenBatch:
        """Write the files of a batch; with `late`, changes older than their rows are left out.

        Raises:
            StreamError: the stream cannot go on; nothing is left of the batch.
        """
        unreadable = self._unreadable(batch_range)
        batch = self._write_readable(session, batch_range, write_id, late)
        if not unreadable:
            return batch
        with ExitStack() as undo:
            undo.callback(self.sink.discard, [batch])
            bad = batch.bad + self.bad_records.take_files(unreadable)
            undo.pop_all()
        return replace(batch, bad=bad)

    def _unreadable(self, batch_range: BatchRange) -> Mapping[str, str]:
        """Files that cannot be read, and why; StreamError if they are to stop the stream."""
        if not isinstance(self.source, FileSource):
            return {}
        unreadable = self.source.unreadable(batch_range.lower, _end(batch_range))
        if self.bad_records.keep is None:
            self.bad_records.take_files(unreadable)
        return unreadable

    def _write_readable(
        self, session: Session, batch_range: BatchRange, write_id: str, late: bool
    ) -> WrittenBatch:
        source = self.source
        plain = self._plain_changes(session, batch_range)
        if plain is not None:
            with suppress(ArrowFallback):
                return self._write_plain(plain, batch_range, write_id)
            self._not_plain += 1
        frame = source.read(session.spark, batch_range.lower, _end(batch_range))
        if not self.query.reads_target:
            watched = observed(frame, source.has_bad, source.has_truncates)
            return self._write(session, batch_range, write_id, late, *watched)
        # The query reads the batch several times.
        frame = frame.persist()
        try:
            watched = counted(session, frame, source.has_bad, source.has_truncates)
            return self._write(session, batch_range, write_id, late, *watched)
        finally:
            frame.unpersist()

    def _plain_changes(
        self, session: Session, batch_range: BatchRange
    ) -> Iterator[pa.RecordBatch] | None:
        """Changes without Spark's reading, if that has done for most batches."""
        source = self.source
        if not isinstance(source, ArrowSource) or self._not_plain >= MOST_NOT_PLAIN:
            return None
        if self.reads_target or self.runner is not in_process:
            return None
        rows = source.arrow_rows(session, batch_range.lower, _end(batch_range), self.query.picked)
        return None if rows is None else map(_as_changes, rows)

    def _write_plain(
        self, changes: Iterator[pa.RecordBatch], batch_range: BatchRange, write_id: str
    ) -> WrittenBatch:
        delta = write_here(self._plan(write_id, in_order=True), changes)
        self._not_plain = 0
        return WrittenBatch(batch_range, [delta])

    def _write(
        self,
        session: Session,
        batch_range: BatchRange,
        write_id: str,
        late: bool,
        frame: DataFrame,
        seen: Callable[[], Seen],
    ) -> WrittenBatch:
        plan, query = self._plan(write_id), self.query
        views = {query.view: frame}
        if self.sink.replaces:
            query = self._without_rows(session, views)
        self._require_order(session, views, batch_range)
        sql = query.changes()
        if late:
            paths = self.sink.equality_deletes()
            views |= {TOMBSTONES: session.spark.read.parquet(*paths)} if paths else {}
            sql = query.changes_not_late(TOMBSTONES if paths else None)
        batch = self._written(session, plan, sql, views, batch_range, self.sink.replaces)
        with ExitStack() as undo:
            undo.callback(self.sink.discard, [batch])
            found = seen()
            if found.bad:
                batch = replace(batch, bad=self._take_bad(session, batch_range))
            watches = found.truncates or self.options.truncates is not None
            if not watches or not self._truncates(session, batch_range):
                undo.pop_all()
                return replace(batch, not_late=late)
        return self._after_truncate(session, plan, batch_range)

    def _require_order(
        self, session: Session, views: dict[str, DataFrame], batch_range: BatchRange
    ) -> None:
        """Raise StreamError if it is not known which of a key's changes is the last."""
        source, options = self.source, self.options
        if not options.keys or options.sequence_by:
            return
        if not isinstance(source, UnorderedSource) or not source.lacks_order(batch_range.lower):
            return
        if found := session.rows(self.query.unknown_order(), **views).to_pylist():
            raise StreamError(
                "The source has several rows of a key in files that were rewritten since, by a "
                f"compaction for example, so that it is not known which is the last: {found[0]}. "
                "Nothing was written. Set `sequence_by` to columns that order the rows of a key."
            )

    def _after_truncate(
        self, session: Session, plan: DeltaPlan, batch_range: BatchRange
    ) -> WrittenBatch:
        self._require_one_order(batch_range)
        views = {self.query.view: self.good(session, batch_range)}
        query = self._without_rows(session, views)
        sql = query.after_truncate()
        batch = self._written(session, plan, sql, views, batch_range, replaces=True)
        # Nothing is older than a row where none is left.
        return replace(batch, truncates=True, not_late=True)

    def _require_one_order(self, batch_range: BatchRange) -> None:
        """Raise StreamError where it is not known which changes come before a truncate."""
        source = self.source
        count = source.partitions(_end(batch_range)) if isinstance(source, PartitionedSource) else 1
        if count > 1:
            raise StreamError(
                f"The source has a truncate, and {count} partitions, between which the order is "
                "not known: which rows came before it cannot be told. Nothing of this batch was "
                "written. Use a topic of one partition, or have Debezium leave truncates out "
                "(`skipped.operations: t`), and rebuild the table with --full-refresh."
            )

    def _without_rows(self, session: Session, views: dict[str, DataFrame]) -> StreamQuery:
        """The query with a table without rows: what is to be replaced decides nothing."""
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
        first, last = _bounds(deltas) if self.options.sequence_by else (None, None)
        batch = WrittenBatch(batch_range, deltas, as_json(first), as_json(last))
        if not self._locates:
            return batch
        with ExitStack() as undo:
            undo.callback(self.sink.discard, [batch])
            target_deletes = self._located(session, plan, batch, replaces)
            undo.pop_all()
        self.sink.remove(sorted({*batch.files} - {*target_deletes.files}))
        return target_deletes

    def _located(
        self, session: Session, plan: DeltaPlan, batch: WrittenBatch, replaces: bool
    ) -> WrittenBatch:
        """The batch with the rows that it deletes, for its keys are looked up now."""
        base = self.sink.table()
        snapshot_id = current_snapshot_id(base.metadata)
        paths = [] if replaces else batch.equality_deletes
        positions: Positions = {}
        if paths:
            positions = find_positions(session, self.query.relation, self.query.keys, paths)
        if self.options.delete_encoding == "position":
            return batch.by_position(TargetDeletes(snapshot_id, positions))
        rewriting = CopyOnWrite(session, self.rewriter, base, plan)
        rest = rewriting.own(batch)
        with ExitStack() as undo:
            undo.callback(self.sink.discard, [rest])
            replaced = [] if replaces else rewriting.of_table(positions)
            undo.pop_all()
        return rest.by_position(TargetDeletes(snapshot_id, replaced=replaced))

    def _truncates(self, session: Session, batch_range: BatchRange) -> int:
        """How many changes that come through the query delete all rows."""
        views = {self.query.view: self.good(session, batch_range)}
        return int(session.rows(self.query.count_truncates(), **views)["n"][0].as_py())

    def good(self, session: Session, batch_range: BatchRange) -> DataFrame:
        """The records of a batch that can be read."""
        frame = self.source.read(session.spark, batch_range.lower, _end(batch_range))
        return frame.where(f"{BAD} is null") if self.source.has_bad else frame

    def _take_bad(self, session: Session, batch_range: BatchRange) -> int:
        frame = self.source.read(session.spark, batch_range.lower, _end(batch_range))
        return self.bad_records.take(session, frame)

    def _plan(self, write_id: str, in_order: bool = False) -> DeltaPlan:
        in_order = in_order or (self.source.ordered and self.query.keeps_order)
        ordered = in_order and not self.options.sequence_by
        versions = self.options.scd_type == 2
        return self.sink.plan(
            write_id,
            ordered=ordered,
            max_keys=self._max_keys(ordered),
            sequence_by=() if versions else self.options.sequence_by,
        )

    @property
    def _locates(self) -> bool:
        """Whether the rows that a batch deletes are looked for in the table."""
        by_place = self.options.delete_encoding in ("position", "copy_on_write")
        return by_place and bool(self.query.keys)

    def _max_keys(self, ordered: bool) -> int:
        if self._locates:
            return ALL_KEYS
        choice = self.options.sequence_numbers
        return self.options.max_keys if choice == "one" or (choice == "auto" and not ordered) else 0


def _as_changes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that change nothing but their own key, as `StreamQuery.changes` has them."""
    names = {MAJOR: f"{ORDER}0", MINOR: f"{ORDER}1"}
    renamed = rows.rename_columns([names.get(name, name) for name in rows.schema.names])
    return renamed.append_column(DELETED, pa.repeat(pa.scalar(False), rows.num_rows))


def _end(batch_range: BatchRange) -> Frontier:
    assert batch_range.upper is not None, "a batch that is read has an end"
    return batch_range.upper


def _bounds(deltas: Sequence[Delta]) -> tuple[Any, Any]:
    """The first and the last value of what orders the changes of all tasks."""
    firsts = [delta.first for delta in deltas if delta.first is not None]
    lasts = [delta.last for delta in deltas if delta.last is not None]
    return min(firsts, default=None), max(lasts, default=None)
