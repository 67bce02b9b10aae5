"""Records that this process decodes for Spark, if only Spark computes the query.

PyArrow decodes them into a Parquet file. Spark reads that in less time than it needs to decode the
messages of a topic itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.catalog.locations import file_uri, spark_path
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback, StreamError
from dbt.adapters.iceberg_stream.stream.sources.source import (
    BAD,
    CHANGE,
    MAJOR,
    MINOR,
    REASON,
    ROW_DELETED,
    SKIPPED,
    WHERE,
    Frontier,
    MessageSource,
)
from dbt.adapters.iceberg_stream.tables.files.temporary_folder import TemporaryFolder

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

# A decoder yields good records only.
GOOD = {
    BAD: "cast(null as string)",
    REASON: "cast(null as string)",
    WHERE: "cast(null as string)",
    SKIPPED: "false",
}


class DecodedRecords:
    """The records of one batch, in a file of a temporary folder.

    Attributes:
        skipped: how many records of other types were left out.
    """

    def __init__(self) -> None:
        self._folder = TemporaryFolder("records")
        self.skipped = 0

    def __enter__(self) -> DecodedRecords:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.close()

    def read(
        self, session: Session, source: MessageSource, lower: Frontier | None, upper: Frontier
    ) -> DataFrame | None:
        """Decode a batch, and return it as `Source.read` does.

        Args:
            session: of the engine, which runs on this machine.
            source: of the records.
            lower: the frontier that the batch begins at.
            upper: the frontier that it ends at.

        Returns:
            The frame; None if Spark has to decode the batch, or if it has no rows.

        Raises:
            ArrowFallback: Spark has to decode the batch.
            StreamError: the temporary folder cannot be written.
        """
        rows = source.arrow_rows(session, lower, upper, _all_columns, self._skip)
        path = self._folder.path / "records.parquet"
        schema = None if rows is None else _write(rows, path)
        return None if schema is None else _frame(session, source, path, schema)

    def _skip(self, count: int) -> None:
        self.skipped += count


def _all_columns(schema: pa.Schema) -> Mapping[str, str]:
    return {name: name for name in schema.names}


def _write(rows: Iterator[pa.RecordBatch], path: Path) -> pa.Schema | None:
    """Write rows to a file, and return their schema; None if there are none.

    Raises:
        ArrowFallback: Parquet does not have one of the types.
    """
    first = next(rows, None)
    if first is None:
        return None
    # The file is read once, at once.
    options = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}
    try:
        with _explained(path), pq.ParquetWriter(path, first.schema, **options) as writer:
            writer.write_batch(first)
            for batch in rows:
                writer.write_batch(batch)
    except pa.ArrowNotImplementedError as error:
        raise ArrowFallback from error  # Parquet has no structs without fields
    return first.schema


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


def _frame(session: Session, source: MessageSource, path: Path, schema: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    # PyArrow counts days as the proleptic Gregorian calendar does, whatever the session expects.
    reader = session.spark.read.schema(columns).option("datetimeRebaseMode", "CORRECTED")
    rows = reader.parquet(spark_path(file_uri(path)))
    hidden = (MAJOR, MINOR, ROW_DELETED)
    deleted = ROW_DELETED if ROW_DELETED in schema.names else "false"
    change = (
        f"named_struct('major', {MAJOR}, 'minor', {MINOR}, 'deleted', {deleted}, "
        f"'truncated', false) as {CHANGE}"
    )
    names = [quote(name) for name in schema.names if name not in hidden]
    constants = [f"{GOOD[name]} as {name}" for name in source.record_columns]
    return rows.selectExpr(*names, change, *constants)
