"""What Spark decodes of messages whose schemas are in a registry."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import (
    MessageSchemas,
    SchemaMessages,
)
from dbt.adapters.iceberg_stream.stream.sources.source import REASON, WHERE


def spark_rows(
    spark: Session, envelope: Envelope, schemas: MessageSchemas, values: Sequence[bytes]
) -> pa.Table:
    """The rows, BAD and SKIPPED, in the order of the messages."""
    columns = f"* except (__stream, {REASON}, {WHERE})"
    return _decoded(spark, envelope, schemas, values, columns)


def spark_reasons(
    spark: Session, envelope: Envelope, schemas: MessageSchemas, values: Sequence[bytes]
) -> list[str | None]:
    """Why messages are bad; None for others."""
    return list(_decoded(spark, envelope, schemas, values, REASON)[REASON].to_pylist())


def _decoded(
    spark: Session,
    envelope: Envelope,
    schemas: MessageSchemas,
    values: Sequence[bytes],
    columns: str,
) -> pa.Table:
    messages = {
        "key": pa.nulls(len(values), pa.binary()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array([0] * len(values), pa.int32()),
        "offset": pa.array(range(len(values)), pa.int64()),
    }
    frame = spark.spark.createDataFrame(pa.table(messages))
    decoded = SchemaMessages(envelope, schemas).unpack(frame)
    return spark.rows(f"select {columns} from v order by __stream.minor", v=decoded)
