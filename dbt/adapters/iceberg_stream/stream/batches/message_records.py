"""The records of a batch that this process decodes: for PyArrow, or for Spark's query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.catalog.locations import file_uri, spark_path
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords, RecordCounts
from dbt.adapters.iceberg_stream.stream.errors import StreamError
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
    MessageSource,
)
from dbt.adapters.iceberg_stream.tables.files.temporary_folder import TemporaryFolder

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

    source: MessageSource
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

        Spark reads a file on this machine in less time than rows that it is sent.

        Args:
            is_remote: whether Spark runs on other machines, too.

        Raises:
            StreamError: as for `rows`, or the temporary folder cannot be written.
        """
        with ExitStack() as end:
            rows = self.rows()
            first = next(rows, None)
            if first is None:
                source, lower = self.source, self.batch_range.lower
                yield source.empty(self.session.spark, lower, self._upper)  # type: ignore[attr-defined]
                return
            if is_remote or not _is_stored(first.schema):
                yield _sent(self.session, first.schema, [first, *rows])
                return
            folder = TemporaryFolder("records")
            end.callback(folder.close)
            path = folder.path / "records.parquet"
            _write(first, rows, path)
            yield _read(self.session, path, first.schema)


def _is_stored(schema: pa.Schema) -> bool:
    """Return whether Parquet has all types: it has no structs without fields."""
    kinds = [field.type for field in schema]
    while kinds:
        kind = kinds.pop()
        if pa.types.is_struct(kind) and not kind.num_fields:
            return False
        kinds += [kind.field(place).type for place in range(kind.num_fields)]
    return True


def _write(first: pa.RecordBatch, rows: Iterator[pa.RecordBatch], path: Path) -> None:
    # The file is read once, at once.
    options = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}
    schema = _with_flags(first).schema
    with _explained(path), pq.ParquetWriter(path, schema, **options) as writer:
        writer.write_batch(_with_flags(first))
        for batch in rows:
            writer.write_batch(_with_flags(batch))


def _with_flags(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with all flags, also if none of them is deleted."""
    for name in (ROW_DELETED, TRUNCATED):
        if name not in rows.schema.names:
            rows = rows.append_column(name, pa.repeat(pa.scalar(False), rows.num_rows))
    return rows.select([n for n in rows.schema.names if n not in HIDDEN] + list(HIDDEN))


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


def _read(session: Session, path: Path, schema: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    stored = pa.schema([*(f for f in schema if f.name not in HIDDEN), *HIDDEN_FIELDS])
    columns = from_arrow_schema(stored, prefer_timestamp_ntz=True)
    # PyArrow counts days as the proleptic Gregorian calendar does, whatever the session expects.
    reader = session.spark.read.schema(columns).option("datetimeRebaseMode", "CORRECTED")
    return _with_change(reader.parquet(spark_path(file_uri(path))), schema)


def _sent(session: Session, schema: pa.Schema, rows: Sequence[pa.RecordBatch]) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    table = pa.Table.from_batches(map(_with_flags, rows))
    columns = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    return _with_change(session.spark.createDataFrame(table, columns), schema)


def _with_change(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    change = (
        f"named_struct('major', {MAJOR}, 'minor', {MINOR}, 'deleted', {ROW_DELETED}, "
        f"'truncated', {TRUNCATED}) as {CHANGE}"
    )
    names = [quote(name) for name in schema.names if name not in HIDDEN]
    return rows.selectExpr(*names, change)


HIDDEN_FIELDS = [
    pa.field(MAJOR, pa.int64()),
    pa.field(MINOR, pa.int64()),
    pa.field(ROW_DELETED, pa.bool_()),
    pa.field(TRUNCATED, pa.bool_()),
]
