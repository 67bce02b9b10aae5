"""Protobuf is decoded without Spark as Spark's workers decode it, or left to Spark."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.protobuf import protobuf_decoder
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import message_schemas
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, SKIPPED
from tests.integration.spark_messages import spark_rows
from tests.unit.stream.sources.formats.avro_rows import damaged, numbered, rows_of
from tests.unit.stream.sources.formats.protobuf_rows import HEADER, ID, Schema, messages, schemas

FIRST, OTHER = HEADER + b"\0", HEADER + b"\2\2"
ENVELOPE = Envelope("protobuf", "", record="Row")


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_spark_decodes_the_same(spark: Session, data: st.DataObject) -> None:
    """Maps, groups and proto2, damaged messages, and another message of the schema."""
    syntax = data.draw(st.sampled_from(["proto2", "proto3"]))
    text = f"{data.draw(schemas(syntax))} message Other {{ }}"
    kind = Schema(text, syntax=syntax).message()
    sent = data.draw(st.lists(messages(kind), min_size=1, max_size=8))
    good = [FIRST + message.SerializeToString() for message in sent]
    spoiled = [FIRST + data.draw(damaged(value[len(FIRST) :])) for value in good * 3]
    values = [*good, *spoiled, OTHER]
    registered = message_schemas(
        [RegisteredSchema(ID, f'syntax = "{syntax}"; {text}', "PROTOBUF")], ENVELOPE, None
    )
    decoder = protobuf_decoder(registered)
    assert decoder is not None
    read = spark_rows(spark, ENVELOPE, registered, values)
    assert read[SKIPPED].to_pylist() == [*[False] * (len(values) - 1), True]
    bad, rows = read[BAD].to_pylist(), read.drop_columns([BAD, SKIPPED])
    for place, value in enumerate(values[:-1]):
        try:
            decoded = rows_of(decoder, [value])
        except ArrowFallback:
            assert bad[place] is not None, value
            continue
        assert bad[place] is None, value
        assert numbered(decoded) == numbered(rows.slice(place, 1)), value
