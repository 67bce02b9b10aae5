"""JSON with a schema is decoded without Spark as Spark decodes it, or left to Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.json_schema import json_decoder
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, SKIPPED
from tests.integration.spark_messages import spark_reasons, spark_rows
from tests.unit.stream.sources.formats.avro_rows import as_text, framed, numbered, rows_of
from tests.unit.stream.sources.formats.json_schema_rows import (
    DEBEZIUM,
    JSON,
    Style,
    connect,
    messages_of,
    schemas_of,
    topics,
)

DAMAGED = 150
DECIMAL = connect(
    "bytes",
    "org.apache.kafka.connect.data.Decimal",
    "number",
    **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "4"}},
)
# Without an `e`: it would give a long number an exponent for which Spark needs minutes.
PARTS = ["null", "{", "}", "[", ",", ":", '"', "1", "-", ".", " ", "AA==", "7"]


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
    bad, actual = read[BAD].to_pylist(), read.drop_columns([BAD, SKIPPED])
    assert numbered(actual.slice(0, len(texts))) == [*map(as_text, rows)]
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
        one = actual.slice(place, 1)
        assert decoded.schema.types == one.schema.types
        assert numbered(decoded) == numbered(one), message


def test_messages_that_lack_a_key(spark: Session) -> None:
    """They are bad records; a key that is null on purpose is allowed."""
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    envelope = Envelope("json", "", required=("ID",))
    schemas = schemas_of(schema, envelope=envelope)
    texts = ['{"id": 1}', '{"id": null}', '{"ID": 1}', "{}", "null"]
    messages = [*messages_of(texts), framed(1, b'{"id": 1, "x": "\xff"}')]
    read = spark_rows(spark, envelope, schemas, messages)
    assert read["id"].to_pylist()[:2] == [1, None]
    assert read[BAD].to_pylist() == [None, None, *texts[2:], '{"id": 1, "x": "\ufffd"}']


@settings(max_examples=4, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.data())
def test_changes_of_debezium(spark: Session, data: st.DataObject) -> None:
    """Spark and PyArrow read the same rows of them, and which are deleted."""
    row, texts, _ = data.draw(topics(Style(data.draw(st.booleans())), 20))
    definitions = row.pop("definitions")
    image, text = {"oneOf": [{"type": "null"}, row]}, {"type": "string"}
    properties = {"before": image, "after": image, "op": text, "ts_ms": {"type": "object"}}
    schema = {"type": "object", "properties": properties, "definitions": definitions}
    schemas, ops = schemas_of(schema, envelope=DEBEZIUM), st.sampled_from(["c", "r", "u", "d", "m"])
    changes = [
        f'{{"op": "{data.draw(ops)}", "ts_ms": 5, "before": {text}, "after": {text}}}'
        for text in texts
    ]
    messages = messages_of([*changes, f'{{"op": "d", "before": {texts[0]}}}', '{"op": "m"}'])
    expected = spark_rows(spark, DEBEZIUM, schemas, messages)
    assert expected[BAD].null_count == len(expected)
    decoder = json_decoder(schemas, (), "UTC")
    assert decoder is not None
    batch = pa.record_batch(
        {"value": pa.array(messages, pa.binary()), "offset": pa.array(range(len(messages)))}
    )
    names = {name: name for name in decoder.columns.names}
    decoded = pa.Table.from_batches(decoder.decode([batch], names))
    assert numbered(decoded.select(names)) == numbered(expected.select(names))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "integer"}, '"1"'),
        ({"type": "integer"}, "1.5"),
        ({"type": "boolean"}, "1"),
        ({"type": "string", "format": "date"}, '"today"'),
        ({"type": "array", "items": {"type": "integer"}}, '[1, "2"]'),
        ({"type": "object", "properties": {"x": {"type": "integer"}}}, "[]"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"x": "y"}'),
        (DECIMAL, '"AYag"'),
        (DECIMAL, "1000"),
        (DECIMAL, "[]"),
    ],
)
def test_fields_of_bad_messages_are_named(spark: Session, kind: Any, value: str) -> None:
    """Also in the rows of changes, and whichever form decimals have."""
    properties = {"id": {"type": "integer"}, "price": DECIMAL, "bad": kind}
    row = {"type": "object", "properties": properties}
    text = {"type": "string"}
    change = {"type": "object", "properties": {"before": row, "after": row, "op": text}}
    # A message has decimals in one form.
    prices = ('"AQ=="', "null", "null" if "AYag" in value else "1.5")
    texts = [f'{{"id": 1, "price": {price}, "bad": {value}}}' for price in prices]
    texts.append('{"id": 1, "bad": null}')
    changes = [f'{{"op": "c", "after": {own}}}' for own in texts]
    why = (
        "has the schema 1, whose field `bad` has a value that is not of its type. Set the "
        "source's `columns` to choose another type"
    )
    for envelope, schema, messages in ((JSON, row, texts), (DEBEZIUM, change, changes)):
        schemas = schemas_of(schema, envelope=envelope)
        reasons = spark_reasons(spark, envelope, schemas, messages_of(messages))
        assert reasons == [why, why, why, None]
