"""Parquet files read by PyArrow where the query takes their columns as they are.

The rows do not go through Spark's JVM, which is most of what a batch of files costs. Files that
PyArrow and Spark could see differently are left to Spark, the whole batch with them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Few, as a value that a file holds once may be in each row.
ROWS = 8192
# A row group is held as a whole, as it is in the file.
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
# How other writers have PyArrow hold what is the same in the file.
SMALLER = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
# Files of Spark before 3.0, and of Hive: days and times before 1582 are of another calendar.
OTHER_CALENDAR = b"org.apache.spark.legacyDateTime"
SPARK_VERSION, THIS_CALENDAR = b"org.apache.spark.version", 3
# How Spark reads days and times of files that do not tell their calendar.
REBASE = "spark.sql.parquet.datetimeRebaseModeInRead"


def is_arrow_readable(kind: pa.DataType) -> bool:
    """Whether PyArrow and Spark see the same in a column of such a type."""
    return kind in TYPES or pa.types.is_decimal128(kind)


def parquet_arrow_schema(columns: StructType) -> pa.Schema:
    """Those of Spark's columns that may be read here."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for column in columns:
        # Arrow does not have all types, and the query may not pick such a column.
        with contextlib.suppress(PySparkTypeError):
            fields.append(pa.field(column.name, to_arrow_type(column.dataType)))
    return pa.schema([field for field in fields if is_arrow_readable(field.type)])


def read_arrow(
    filesystem: fs.FileSystem,
    files: Sequence[tuple[str, int]],
    schema: pa.Schema,
    columns: Mapping[str, str],
) -> Iterator[pa.RecordBatch]:
    """Columns of files of such a schema, and where their rows stand.

    The files come in their order, each with its MAJOR.

    Raises:
        ArrowFallback: a file cannot be read, or has something else than the schema says.
    """
    needed = pa.schema([schema.field(name) for name in dict.fromkeys(columns.values())])
    for path, major in files:
        try:
            with filesystem.open_input_file(path) as opened:
                yield from _rows(pq.ParquetFile(opened), major, needed, columns)
        except (OSError, pa.ArrowException) as error:
            raise ArrowFallback(f"{path}: {error}") from error


def _rows(
    parquet: pq.ParquetFile, major: int, schema: pa.Schema, columns: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    _check(parquet, schema)
    begin = 0
    for batch in parquet.iter_batches(ROWS, columns=schema.names):
        count = batch.num_rows
        ones = pa.repeat(pa.scalar(1, pa.int64()), count)
        found = {
            name: batch[column].cast(schema.field(column).type) for name, column in columns.items()
        }
        found[MAJOR] = pa.repeat(pa.scalar(major, pa.int64()), count)
        found[MINOR] = pc.cumulative_sum(ones, start=begin - 1)
        yield pa.record_batch(found)
        begin += count


def _check(parquet: pq.ParquetFile, schema: pa.Schema) -> None:
    """Spark knows columns by their names in any case, and some types by what is told beside."""
    metadata, found = parquet.metadata, parquet.schema_arrow
    told = metadata.metadata or {}
    version = re.match(rb"(\d+)\.", told.get(SPARK_VERSION, b"4."))
    names = [name.lower() for name in found.names]
    for field in schema:
        if found.names.count(field.name) != 1 or names.count(field.name.lower()) != 1:
            raise ArrowFallback(f"it has no column {field.name}, or several")
        kind = found.field(field.name).type
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if SMALLER.get(value, value) != field.type:
            raise ArrowFallback(f"{field.name} is {kind}")
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    if OTHER_CALENDAR in told or version is None or int(version[1]) < THIS_CALENDAR:
        raise ArrowFallback("it may be of another calendar")
    if any(group.total_byte_size > ROW_GROUP_BYTES for group in groups):
        raise ArrowFallback("its row groups are large")
