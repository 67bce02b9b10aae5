"""Give rows of this process to Spark, and take what it computes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.catalog.locations import file_uri, spark_path
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.query.picked import ROW, SparkPart
from dbt.adapters.iceberg_stream.tables.files.temporary_folder import TemporaryFolder

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

# Rows of fewer bytes are sent; Spark reads more of them faster from a file on this machine.
SENT_BYTES = 1024 * 1024
# Of what Spark computes for the rows of a part.
MOST_BYTES = 1024 * 1024 * 1024
VIEW = "__stream_rows"


@dataclass(frozen=True)
class SparkRows:
    """Gives rows to Spark.

    Attributes:
        session: of the engine.
        is_remote: whether Spark runs on other machines, too, which do not see this one's files.
    """

    session: Session
    is_remote: bool

    @contextmanager
    def frame(self, rows: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[DataFrame]:
        """Return rows as a frame of Spark's.

        Args:
            rows: the rows, each batch with the same columns.
            schema: their columns.

        Raises:
            StreamError: the temporary folder cannot be written.
        """
        first, nbytes = list[pa.RecordBatch](), 0
        for batch in rows:
            first.append(batch)
            nbytes += batch.nbytes
            if nbytes > SENT_BYTES and not self._is_sent(schema):
                break
        else:
            yield self._sent(schema, first)
            return
        with ExitStack() as end:
            folder = TemporaryFolder("records")
            end.callback(folder.close)
            path = folder.path / "records.parquet"
            _write(schema, first, rows, path)
            yield self._read(schema, path)

    def compute(self, part: SparkPart, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that a part of a query selects, with what it computes.

        Args:
            part: the part.
            rows: with the columns that it needs.

        Raises:
            StatementError: Spark refuses a row.
            pa.ArrowCapacityError: what it computes does not fit into memory.
            StreamError: the temporary folder cannot be written.
        """
        numbers = pa.array(np.arange(rows.num_rows))
        needed = pa.record_batch(
            {ROW: numbers, **{name: rows[column] for name, column in part.columns.items()}}
        )
        with self.frame(iter([needed]), needed.schema) as frame:
            schema, *batches = self.session.stream(part.sql(VIEW), **{VIEW: frame})
        table = pa.Table.from_batches(batches, schema)
        if table.nbytes > MOST_BYTES:
            raise pa.ArrowCapacityError(f"{table.nbytes} bytes")
        [computed] = table.combine_chunks().to_batches() or [
            pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
        ]
        order = np.argsort(computed[ROW].to_numpy(), kind="stable")
        if (order[1:] < order[:-1]).any():
            computed = computed.take(pa.array(order))
        selected = rows if computed[ROW].equals(numbers) else rows.take(computed[ROW])
        for name, column in zip(part.names, computed.columns[1:], strict=True):
            selected = selected.append_column(name, column)
        return selected

    def _is_sent(self, schema: pa.Schema) -> bool:
        return self.is_remote or not _is_stored(schema)

    def _sent(self, schema: pa.Schema, rows: Sequence[pa.RecordBatch]) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        table = pa.Table.from_batches(rows, schema)
        return self.session.spark.createDataFrame(table, columns)

    def _read(self, schema: pa.Schema, path: Path) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        # PyArrow counts days as the proleptic Gregorian calendar does, whatever the session
        # expects.
        reader = self.session.spark.read.schema(columns).option("datetimeRebaseMode", "CORRECTED")
        return reader.parquet(spark_path(file_uri(path)))


def _is_stored(schema: pa.Schema) -> bool:
    """Return whether Parquet has all types: it has no structs without fields."""
    kinds = [field.type for field in schema]
    while kinds:
        kind = kinds.pop()
        if pa.types.is_struct(kind) and not kind.num_fields:
            return False
        kinds += [kind.field(place).type for place in range(kind.num_fields)]
    return True


def _write(
    schema: pa.Schema, first: Sequence[pa.RecordBatch], rest: Iterator[pa.RecordBatch], path: Path
) -> None:
    # The file is read once, at once.
    options = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}
    with _explained(path), pq.ParquetWriter(path, schema, **options) as writer:
        for batch in itertools.chain(first, rest):
            writer.write_batch(batch)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say where there is no space, which is not where the table is."""
    try:
        yield
    except OSError as error:
        raise StreamError(
            f"The temporary folder {path.parent} does not take the messages of a batch: {error}. "
            "Nothing was written. Free space there, or set TMPDIR to another folder."
        ) from error
