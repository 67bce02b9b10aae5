"""The rows of the table that a batch changes, located by the key index and not by a scan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sink.table_index import RowLookup
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

# Keys of a batch up to which rows are located; more of them are in most files of the table anyway.
MOST_KEYS = 100_000
# Rows with these keys up to which they are located; a key may have many versions.
MOST_ROWS = 1_000_000
# Size of rows that are sent to Spark, whose memory (2 GiB by default) has to hold some copies.
MOST_BYTES = 64 * 1024 * 1024
LOCATED = "__stream_located_rows"


def with_located_rows(
    session: Session,
    query: StreamQuery,
    sink: Sink,
    schema: pa.Schema,
    views: dict[str, DataFrame],
) -> StreamQuery:
    """Return a query that reads the rows that its changes need, in place of the whole table.

    Args:
        session: of the engine.
        query: that reads the table's rows.
        sink: the table.
        schema: of the table's columns, as Spark reads them.
        views: that the query reads; a view of the rows is added to them.

    Returns:
        The query; as it was if the rows cannot be located, or are too many.

    Raises:
        StreamConflict: another writer is changing the table.
        OSError: the storage refuses a file.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if sink.index is None:
        return query
    keys = session.rows(query.changed_keys(MOST_KEYS + 1), **views)
    # Spark takes 0.0 and -0.0 for equal, the index does not.
    has_floats = any(pa.types.is_floating(field.type) for field in keys.schema)
    if keys.num_rows > MOST_KEYS or has_floats:
        return query
    columns = (*query.columns, *query.added_columns)
    rows = sink.rows_of(RowLookup(keys, columns, MOST_ROWS, MOST_BYTES, query.period))
    if rows is None or not _is_read_alike(rows.schema, schema):
        return query
    spark_schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    # Spark takes no Arrow table without rows.
    views[LOCATED] = session.spark.createDataFrame(rows if rows.num_rows else [], spark_schema)
    return replace(query, relation=LOCATED)


def as_of_snapshot(relation: str, metadata: Metadata) -> str:
    """Return a relation that reads a table's current snapshot, even if others commit meanwhile.

    A commit that is rolled back while rows are read would not be noticed. If the columns have
    changed since the snapshot, it has the former ones: then the table itself is read.

    Args:
        relation: the table's name for Spark.
        metadata: of the table.
    """
    snapshot = parent_snapshot(metadata, MAIN)
    if snapshot is None or snapshot.get("schema-id") != metadata["current-schema-id"]:
        return relation
    return f"{relation} version as of {snapshot['snapshot-id']}"


def _is_read_alike(schema: pa.Schema, by_spark: pa.Schema) -> bool:
    """Return whether PyArrow and Spark read columns with the same types, apart from time zones."""
    return all(_without_zone(f.type) == _without_zone(by_spark.field(f.name).type) for f in schema)


def _without_zone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind
