"""Which batches PyArrow computes in place of Spark, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.query.inputs import Setting
from dbt.adapters.iceberg_stream.stream.query.picked import Picked
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
    """Selects the changes of a query among the rows that PyArrow reads."""

    def __init__(
        self,
        query: StreamQuery,
        target: pa.Schema,
        partitions: Partitions | None,
        setting: Setting,
    ) -> None:
        self._query = query
        self._setting = setting
        self._target = target
        self._partitions = partitions
        self._picked = Picked({})
        self._renamed: Mapping[str, str] = {}
        # What PyArrow does not compute.
        self.unsupported = ""

    def pick(self, schema: pa.Schema) -> Mapping[str, str] | None:
        """Return the columns to read; see `Pick`."""
        try:
            self._picked = self._query.pick(schema, self._target, self._setting)
        except Unsupported as error:
            self.unsupported = str(error)
            return None
        return self._picked.columns

    def can_compute(self, columns: pa.Schema) -> bool:
        """Return whether PyArrow computes the query, if records have all columns of the source.

        Args:
            columns: of the records.
        """
        picked = self.pick(columns)
        if picked is None:
            return False
        self._renamed = picked
        return True

    def changes_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes of rows that have all columns of the source; see `changes`."""
        columns = {name: rows[column] for name, column in self._renamed.items()}
        columns |= {name: rows[name] for name in rows.schema.names if name in HIDDEN}
        return self.changes(pa.record_batch(columns))

    def changes(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the columns that `StreamQuery.changes` returns.

        Raises:
            ArrowFallback: Spark has to compute the batch.
        """
        if TRUNCATED in rows.schema.names:
            # Spark leaves out the rows that come before a truncate.
            raise ArrowFallback
        rows = self._picked.select(rows)
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
