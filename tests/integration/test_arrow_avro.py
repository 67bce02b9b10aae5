"""Avro is decoded without Spark as Spark decodes it, or left to Spark."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.avro import avro_decoder
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import (
    MessageSchemas,
    message_schemas,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import zigzag_bytes
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, SKIPPED
from tests.integration.spark_messages import spark_rows
from tests.unit.stream.sources.formats.avro_rows import (
    AVRO,
    LONG,
    damaged,
    decoder_of,
    encode,
    framed,
    numbered,
    records,
    rows_of,
    schemas_of,
    topics,
)

DAMAGED = 150
UNION = Envelope("avro", "", record="Read")


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


@st.composite
def unions(draw: DrawFn) -> tuple[MessageSchemas, list[bytes]]:
    """A union, of which one record is read, and bodies of its messages."""
    some = [draw(records("Read")), draw(records("Other")), ("null", st.none()), ("long", LONG)]
    members = draw(st.permutations(some[: draw(st.integers(1, 4))]))
    schema = RegisteredSchema(1, json.dumps([kind for kind, _ in members]))
    bodies = []
    for index in draw(st.lists(st.integers(0, len(members) - 1), min_size=20, max_size=20)):
        kind, values = members[index]
        value = draw(values)
        bodies.append(zigzag_bytes(index) + (b"" if value is None else encode(kind, value)))
    return message_schemas([schema], UNION, None), bodies


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_spark_reads_the_same_of_unions(spark: Session, data: st.DataObject) -> None:
    """Rows, messages that are skipped, and nulls, which are neither."""
    schemas, bodies = data.draw(unions())
    picked = data.draw(st.lists(st.sampled_from(bodies), min_size=DAMAGED, max_size=DAMAGED))
    decoder, decoded = avro_decoder(schemas), dict[bytes, tuple[list[str], int]]()
    assert decoder is not None
    for place, body in enumerate(bodies + [data.draw(damaged(body)) for body in picked]):
        message, skipped = framed(1, body), list[int]()
        value, offset = pa.array([message], pa.binary()), pa.array([0], pa.int64())
        batch = pa.record_batch({"value": value, "offset": offset})
        names = {name: name for name in decoder.columns.names}
        try:
            batches = list(decoder.decode([batch], names, skipped.append))
        except ArrowFallback:
            assert place >= len(bodies), body
            continue
        rows = [numbered(pa.Table.from_batches([one]).select(list(names))) for one in batches]
        decoded[message] = [row for own in rows for row in own], sum(skipped)
    read = spark_rows(spark, UNION, schemas, list(decoded))
    assert read[BAD].null_count == len(read)
    is_skipped = read[SKIPPED].to_pylist()
    rows = numbered(read.drop_columns([BAD, SKIPPED]))
    # A null has no row in Spark either.
    expected = [pair for pair in decoded.values() if pair != ([], 0)]
    assert is_skipped == [bool(count) for _, count in expected]
    for own, (row, count) in zip(rows, expected, strict=True):
        assert count or row == [own]
