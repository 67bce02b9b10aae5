"""Which batches PyArrow computes in place of Spark, and how."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import pyarrow as pa

from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.query.picked import ComputePart, Picked
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER, PARTITION
from dbt.adapters.iceberg_stream.stream.sources.source import (
    HIDDEN,
    MAJOR,
    MINOR,
    ROW_DELETED,
    TRUNCATED,
)

# Batches in a row that fall back to Spark, until PyArrow is not tried for a while; and how many
# batches Spark then computes, so that what PyArrow computes in vain takes a hundredth of the time.
MOST_FALLBACKS = 3
BATCHES_OF_SPARK = 100
# Bytes of rows of which Spark computes a part of the query at a time.
PART_BYTES = 32 * 1024 * 1024
Partitions = Callable[[pa.RecordBatch], pa.StructArray]


class Fallbacks:
    """Counts the batches that PyArrow has left to Spark."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._batches_of_spark = 0

    def allow_arrow(self) -> bool:
        """Return whether to try PyArrow for the next batch."""
        if self._batches_of_spark:
            self._batches_of_spark -= 1
            return False
        return True

    def add(self) -> None:
        """Count a batch that fell back to Spark."""
        self._in_a_row += 1
        if self._in_a_row >= MOST_FALLBACKS:
            self._batches_of_spark = BATCHES_OF_SPARK

    def reset(self) -> None:
        """Begin to count again, after a batch that PyArrow has computed."""
        self._in_a_row = 0


class Selection:
    """Selects the changes of a query among the rows of its source, which this process has read.

    Args:
        query: the query.
        target: the table's columns, with the types that the query returns.
        partitions: computes partition values; None if there are none.
        compute: lets Spark compute a part of the query.
    """

    def __init__(
        self,
        query: StreamQuery,
        target: pa.Schema,
        partitions: Partitions | None,
        compute: ComputePart,
    ) -> None:
        self._query = query
        self._target = target
        self._partitions = partitions
        self._compute = compute
        self._picked = Picked({})
        # Why Spark has to compute whole rows.
        self.unsupported = ""

    def pick(self, schema: pa.Schema) -> Collection[str] | None:
        """Return the columns to read; see `Pick`."""
        try:
            self._picked = self._query.pick(schema, self._target)
        except Unsupported as error:
            self.unsupported = str(error)
            return None
        return self._picked.source_columns

    def changes(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows with the columns that `StreamQuery.changes` returns.

        Args:
            rows: with the columns of `pick`, and HIDDEN columns.

        Raises:
            ArrowFallback: Spark has to compute the batch.
        """
        return map(self._changes, _parts(rows) if self._picked.parts else rows)

    def _changes(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if TRUNCATED in rows.schema.names:
            # Spark leaves out the rows that come before a truncate.
            raise ArrowFallback
        try:
            rows = self._picked.select(rows, self._compute)
        except (pa.ArrowException, StatementError) as error:
            # Spark says what is wrong with the whole query.
            raise ArrowFallback(str(error)) from error
        columns = {name: rows[name] for name in rows.schema.names if name not in HIDDEN}
        # Their places in the batch say which of them counts most.
        for number, name in enumerate((*self._query.options.sequence_by, MAJOR, MINOR)):
            columns[f"{ORDER}{number}"] = rows[name]
        if ROW_DELETED in rows.schema.names:
            columns[DELETED] = rows[ROW_DELETED]
        else:
            columns[DELETED] = pa.repeat(pa.scalar(False), rows.num_rows)
        if self._query.partition and self._partitions is not None:
            columns[PARTITION] = self._partitions(rows)
        return pa.record_batch(columns)


def _parts(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows in parts that are large enough to be worth a query, and fit into memory."""
    part, nbytes = list[pa.RecordBatch](), 0
    for batch in rows:
        # Only some batches may have a flag.
        if part and (nbytes > PART_BYTES or batch.schema != part[0].schema):
            yield _joined(part)
            part, nbytes = [], 0
        part.append(batch)
        nbytes += batch.nbytes
    if part:
        yield _joined(part)


def _joined(part: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return part[0] if len(part) == 1 else pa.concat_batches(part)
