"""Read Parquet files by PyArrow, if the query only picks their columns.

Most of the cost of a batch of files is to pass the rows through Spark's JVM. If PyArrow and Spark
could read a file differently, Spark reads the whole batch.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# A small number: a long value that a file stores once may be repeated in each row.
ROWS = 8192
# PyArrow reads a whole row group into memory.
ROW_GROUP_BYTES = 256 * 1024 * 1024
TYPES = {
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
}
# Types that PyArrow reads from files of other writers, and that are stored alike.
SMALLER = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
# Files of Spark before 3.0 and of Hive: dates before 1582 are in the Julian calendar.
LEGACY_CALENDAR = b"org.apache.spark.legacyDateTime"
SPARK_VERSION, GREGORIAN_VERSION = b"org.apache.spark.version", 3
# How Spark reads dates and times of files that do not name their calendar.
REBASE = "spark.sql.parquet.datetimeRebaseModeInRead"


def is_arrow_readable(kind: pa.DataType) -> bool:
    """Return whether PyArrow and Spark read a column of a type alike."""
    return kind in TYPES or pa.types.is_decimal128(kind)


def parquet_arrow_schema(columns: StructType) -> pa.Schema:
    """Return the Arrow schema of those of Spark's columns that PyArrow may read."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for column in columns:
        # Arrow lacks some of Spark's types; the query may not pick their columns.
        with contextlib.suppress(PySparkTypeError):
            fields.append(pa.field(column.name, to_arrow_type(column.dataType)))
    return pa.schema([field for field in fields if is_arrow_readable(field.type)])


def read_arrow(
    filesystem: fs.FileSystem,
    files: Sequence[tuple[str, int]],
    schema: pa.Schema,
    columns: Collection[str],
) -> Iterator[pa.RecordBatch]:
    """Read columns of files, with MAJOR and MINOR.

    Args:
        filesystem: where the files are.
        files: paths in their order, each with the MAJOR of its rows.
        schema: of the files.
        columns: those to return.

    Raises:
        ArrowFallback: a file cannot be read, or Spark may read it differently.
    """
    needed = pa.schema([field for field in schema if field.name in columns])
    for path, major in files:
        try:
            with filesystem.open_input_file(path) as opened:
                yield from _rows(pq.ParquetFile(opened), major, needed)
        except (OSError, pa.ArrowException) as error:
            raise ArrowFallback(f"{path}: {error}") from error


def _rows(parquet: pq.ParquetFile, major: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    _check(parquet, schema)
    begin = 0
    for batch in parquet.iter_batches(ROWS, columns=schema.names):
        count = batch.num_rows
        ones = pa.repeat(pa.scalar(1, pa.int64()), count)
        rows = {field.name: batch[field.name].cast(field.type) for field in schema}
        rows[MAJOR] = pa.repeat(pa.scalar(major, pa.int64()), count)
        rows[MINOR] = pc.cumulative_sum(ones, start=begin - 1)
        yield pa.record_batch(rows)
        begin += count


def _check(parquet: pq.ParquetFile, schema: pa.Schema) -> None:
    """Raise ArrowFallback if Spark may read the file differently.

    Spark matches names of columns in any case, and reads some types by the file's key-value
    metadata.
    """
    metadata, stored = parquet.metadata, parquet.schema_arrow
    key_values = metadata.metadata or {}
    version = re.match(rb"(\d+)\.", key_values.get(SPARK_VERSION, b"4."))
    names = [name.lower() for name in stored.names]
    for field in schema:
        if stored.names.count(field.name) != 1 or names.count(field.name.lower()) != 1:
            raise ArrowFallback(f"it has no column {field.name}, or several")
        kind = stored.field(field.name).type
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if SMALLER.get(value, value) != field.type:
            raise ArrowFallback(f"{field.name} is {kind}")
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    if LEGACY_CALENDAR in key_values or version is None or int(version[1]) < GREGORIAN_VERSION:
        raise ArrowFallback("its dates may be in the Julian calendar")
    if any(group.total_byte_size > ROW_GROUP_BYTES for group in groups):
        raise ArrowFallback("its row groups are large")
