"""Avro is decoded without Spark as Spark decodes it, or left to Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.schema_messages import SchemaMessages
from dbt.adapters.iceberg_stream.stream.sources.source import BAD
from tests.unit.stream.sources.avro_rows import (
    damaged,
    decoder_of,
    encode,
    framed,
    numbered,
    rows_of,
    schemas_of,
    topics,
)

DAMAGED = 150


def spark_rows(spark: Session, schema: Any, values: list[bytes]) -> pa.Table:
    """The rows and BAD, in the order of the messages."""
    messages = {
        "key": pa.nulls(len(values), pa.binary()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array([0] * len(values), pa.int32()),
        "offset": pa.array(range(len(values)), pa.int64()),
    }
    frame = SchemaMessages(Envelope("avro", ""), schemas_of(schema), "topic-value").unpack(
        spark.spark.createDataFrame(pa.table(messages))
    )
    sql = "select * except (__stream, __reason, __where) from v order by __stream.minor"
    return spark.rows(sql, v=frame)


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_spark_decodes_the_same(spark: Session, data: st.DataObject) -> None:
    schema, values = data.draw(topics(20))
    bodies = [encode(schema, value) for value in values]
    picked = data.draw(st.lists(st.sampled_from(bodies), min_size=DAMAGED, max_size=DAMAGED))
    decoder, decoded = decoder_of(schema), {}
    for place, body in enumerate(bodies + [data.draw(damaged(body)) for body in picked]):
        try:
            decoded[framed(1, body)] = rows_of(decoder, [framed(1, body)])
        except ArrowFallback:
            assert place >= len(bodies), body
    # Spark does not see the others: for an array, it takes the memory that a damaged length wants.
    read = spark_rows(spark, schema, list(decoded))
    bad, rows = read[BAD].to_pylist(), read.drop_columns([BAD])
    for place, (message, decoded_row) in enumerate(decoded.items()):
        assert bad[place] is None, message
        one = rows.slice(place, 1)
        assert decoded_row.schema.types == one.schema.types
        assert numbered(decoded_row) == numbered(one), message
