"""JSON with a schema is decoded without Spark as Spark decodes it, or left to Spark."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow_json_schema import json_decoder
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, SKIPPED
from tests.integration.spark_messages import spark_rows
from tests.unit.stream.sources.avro_rows import as_text, numbered, rows_of
from tests.unit.stream.sources.json_schema_rows import JSON, Style, messages_of, schemas_of, topics

DAMAGED = 150
PARTS = ["null", "{", "}", "[", ",", ":", '"', "1", "-", "true", "e", ".", " ", "AA==", "2026"]


@st.composite
def damaged(draw: DrawFn, text: str) -> str:
    """A message of which some characters are changed, missing or added."""
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, len(text)))
        part = draw(st.sampled_from([*PARTS, ""]))
        text = text[:place] + part + text[place + draw(st.integers(0, 3)) :]
    return text


@settings(max_examples=8, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.data())
def test_spark_decodes_the_same(spark: Session, data: st.DataObject) -> None:
    style = Style(data.draw(st.booleans()), data.draw(st.booleans()))
    schema, texts, rows = data.draw(topics(style, 20))
    picked = data.draw(st.lists(st.sampled_from(texts), min_size=DAMAGED, max_size=DAMAGED))
    spoiled = [data.draw(damaged(text)) for text in picked]
    schemas, messages = schemas_of(schema), messages_of(texts + spoiled)
    read = spark_rows(spark, JSON, schemas, messages)
    bad, found = read[BAD].to_pylist(), read.drop_columns([BAD, SKIPPED])
    assert numbered(found.slice(0, len(texts))) == [*map(as_text, rows)]
    assert bad[: len(texts)] == [None] * len(texts)
    decoder = json_decoder(schemas, (), "UTC")
    if decoder is None:
        return
    for place, message in enumerate(messages):
        try:
            decoded = rows_of(decoder, [message])
        except ArrowFallback:
            assert place >= len(texts), message
            continue
        assert bad[place] is None, message
        one = found.slice(place, 1)
        assert decoded.schema.types == one.schema.types
        assert numbered(decoded) == numbered(one), message
