"""The records of a batch that this process decodes: for PyArrow, or for Spark's query."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords, RecordCounts
from dbt.adapters.iceberg_stream.stream.batches.spark_rows import SparkRows
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange
from dbt.adapters.iceberg_stream.stream.sources.source import (
    CHANGE,
    HIDDEN,
    MAJOR,
    MINOR,
    ROW_DELETED,
    TRUNCATED,
    BadRecord,
    Frontier,
    RecordSource,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame


@dataclass
class MessageRecords:
    """The records of one batch.

    Attributes:
        source: decodes them.
        session: of the engine.
        batch_range: the batch.
        bad_records: stops the stream if there are too many bad ones.
        bad: records that cannot be read, once all were decoded.
        counts: how many records are no rows, once all were decoded.
    """

    source: RecordSource
    session: Session
    batch_range: BatchRange
    bad_records: BadRecords
    bad: list[BadRecord] = field(default_factory=list)
    counts: RecordCounts = field(default_factory=RecordCounts)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the rows, without those that say what changes."""
        return self.source.arrow_schema(self.session, self.batch_range.lower, self._upper)

    @property
    def _upper(self) -> Frontier:
        assert self.batch_range.upper is not None, "a batch without an end is not read"
        return self.batch_range.upper

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Decode the records, and yield the rows in them.

        Raises:
            StreamError: bad records stop the stream, or are too many; or the source refuses.
        """
        self.bad, skipped, truncates = [], 0, 0
        for records in self.source.decode(self.session, self.batch_range.lower, self._upper):
            skipped += records.skipped
            if records.bad:
                self.bad += records.bad
                self.bad_records.check(self.bad)
            if records.rows.num_rows:
                if TRUNCATED in records.rows.schema.names:
                    truncates += records.rows[TRUNCATED].true_count
                yield records.rows
        self.counts = RecordCounts(truncates=truncates, skipped=skipped)

    @contextmanager
    def frame(self, is_remote: bool) -> Iterator[DataFrame]:
        """Decode the records, and give them to Spark.

        Args:
            is_remote: whether Spark runs on other machines, too.

        Raises:
            StreamError: as for `rows`, or the temporary folder cannot be written.
        """
        rows = map(_with_flags, self.rows())
        first = next(rows, None)
        if first is None:
            source, lower = self.source, self.batch_range.lower
            yield source.empty(self.session.spark, lower, self._upper)
            return
        batches = itertools.chain([first], rows)
        with SparkRows(self.session, is_remote).frame(batches, first.schema) as frame:
            yield _with_change(frame, first.schema)


def _with_flags(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with all flags, also if none of them is deleted."""
    for name in (ROW_DELETED, TRUNCATED):
        if name not in rows.schema.names:
            rows = rows.append_column(name, pa.repeat(pa.scalar(False), rows.num_rows))
    return rows.select([n for n in rows.schema.names if n not in HIDDEN] + list(HIDDEN))


def _with_change(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    change = (
        f"named_struct('major', {MAJOR}, 'minor', {MINOR}, 'deleted', {ROW_DELETED}, "
        f"'truncated', {TRUNCATED}) as {CHANGE}"
    )
    names = [quote(name) for name in schema.names if name not in HIDDEN]
    return rows.selectExpr(*names, change)
