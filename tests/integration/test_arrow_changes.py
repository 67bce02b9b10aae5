"""Debezium's changes are the same computed by Spark and by PyArrow, filtered and not."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.batches.arrow_batches import Selection
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.picked import SparkPart
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from tests.integration.message_ways import Messages, decoded_rows, decoder_of, spark_frame
from tests.unit.stream.sources.formats.avro_rows import (
    DEBEZIUM,
    changes,
    damaged,
    encode,
    framed,
)
from tests.unit.stream.sources.formats.decoded_messages import numbered

DAMAGED = 100
JSON = Envelope(
    "debezium",
    "id bigint, small int, name string, amount double, done boolean, price decimal(6,2), "
    "at timestamp, day date, lines array<struct<n: smallint, price: decimal(6,2)>>",
    required=("ID",),
)
VALUES: Mapping[str, Sequence[Any]] = {
    "id": [None, 0, 1, -1, 2**63 - 1],
    "small": [None, 0, 7],
    "name": [None, "", "a", "é"],
    "amount": [None, 0.5, -0.0, 1e300],
    "done": [None, True, False],
    "price": [None, 0.5, "-1.05", 1e-02, "1.500"],
    "at": [
        None,
        "2026-11-26T10:11:12.1319999Z",
        "2026-11-26 10:11:12",
        "1969-12-31T23:59:59-03:30",
    ],
    "day": [None, "2026-11-26", "0001-01-01T00:00:00Z"],
    "lines": [None, [], [None, {}, {"n": 7, "price": "1.5"}]],
}
FILTERS = [
    "id > 0",
    "not (small = 7 and done)",
    "name in ('a', 'é') or id is null",
    "amount between -1 and 1",
]


def query_of(columns: Sequence[str], where: str = "") -> StreamQuery:
    text = f"select * from v {where and f'where {where}'}"
    options = StreamOptions("sink", tuple(columns[:1]))
    return StreamQuery(get_change_sql(text, "v", of_rows=True), "v", "t", columns, options)


def arrow_changes(spark: Session, query: StreamQuery, source: Messages) -> pa.Table:
    """What PyArrow makes of the query."""
    columns = source.arrow_schema(spark, None, source.end)
    selection = Selection(query, columns, None, no_spark)
    assert selection.pick(columns) is not None
    return pa.Table.from_batches(selection.changes(decoded_rows(spark, source)))


def no_spark(part: SparkPart, rows: pa.RecordBatch) -> pa.RecordBatch:
    raise AssertionError(part.sql("rows"))


def assert_same(spark: Session, query: StreamQuery, source: Messages) -> pa.Table:
    """Compute the query by PyArrow and by Spark, and return the changes."""
    with spark_frame(spark, source) as frame:
        expected = spark.rows(query.changes(), v=frame).sort_by(f"{ORDER}1")
    actual = arrow_changes(spark, query, source)
    assert actual.schema.types == expected.select(actual.schema.names).schema.types
    assert numbered(actual) == numbered(expected.select(actual.schema.names))
    return actual


def change(chance: random.Random) -> dict[str, Any]:
    operation = chance.choice("cruuddm")
    key = chance.choice([0, 1, -1, 2**63 - 1])

    def row() -> dict[str, Any]:
        return {name: chance.choice(values) for name, values in VALUES.items()} | {"id": key}

    present = {"before": operation == "d", "after": operation in "cru"}
    images = {name: row() for name in present if present[name] or chance.random() < 0.5}
    return {**images, "op": operation, "source": {"table": "t", "lsn": 5}}


@pytest.mark.parametrize("where", ["", *FILTERS])
def test_json(spark: Session, where: str) -> None:
    chance = random.Random(where)
    sent = [change(chance) for _ in range(300)]
    source = Messages(JSON, [json.dumps(message).encode() for message in sent])
    names = source.arrow_schema(spark, None, source.end).names
    changes = assert_same(spark, query_of(names, where), source)
    deleted = changes[DELETED].to_pylist()
    assert 40 < sum(deleted) < 250
    # A change whose row is filtered out deletes it, and so does one that moves the key.
    if not where:
        assert sum(deleted) == sum(message["op"] == "d" for message in sent) + moved(sent)


def moved(sent: Sequence[dict[str, Any]]) -> int:
    images = [message for message in sent if message["op"] == "u" and "before" in message]
    return sum(own["before"]["id"] != own["after"]["id"] for own in images)


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_avro(spark: Session, data: st.DataObject) -> None:
    schema, sent = data.draw(changes(count=20))
    bodies = [encode(schema, message) for message in sent]
    picked = data.draw(st.lists(st.sampled_from(bodies), min_size=DAMAGED, max_size=DAMAGED))
    bodies += [data.draw(damaged(body)) for body in picked]
    values = [framed(1, body) for body in bodies]
    schemas = [RegisteredSchema(1, json.dumps(schema))]
    # Those that have become a truncate are left to Spark.
    decoded = decoder_of(spark, DEBEZIUM, schemas).decode(values)
    assume(len(decoded.of))
    for place in decoded.truncates[::-1]:
        del values[place]
    source = Messages(DEBEZIUM, values, schemas)
    names = source.arrow_schema(spark, None, source.end).names
    where = data.draw(st.sampled_from(["", f"{names[0]} is not null"]))
    assert_same(spark, query_of(names, where), source)
