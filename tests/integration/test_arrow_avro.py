"""Avro is decoded without Spark as Spark decodes it, or left to Spark."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, SKIPPED
from tests.integration.spark_messages import spark_rows
from tests.unit.stream.sources.avro_rows import (
    AVRO,
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
    read = spark_rows(spark, AVRO, schemas_of(schema), list(decoded))
    bad, rows = read[BAD].to_pylist(), read.drop_columns([BAD, SKIPPED])
    for place, (message, decoded_row) in enumerate(decoded.items()):
        assert bad[place] is None, message
        one = rows.slice(place, 1)
        assert decoded_row.schema.types == one.schema.types
        assert numbered(decoded_row) == numbered(one), message
