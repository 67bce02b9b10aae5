"""Debezium's changes are the same with Spark and without, filtered and not, or are left to Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER
from dbt.adapters.iceberg_stream.stream.sources.arrow.debezium import decode_debezium
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import SchemaMessages
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, MAJOR, MINOR, ROW_DELETED
from tests.unit.stream.sources.formats.avro_rows import (
    DEBEZIUM,
    changes,
    damaged,
    decoder_of,
    encode,
    framed,
    numbered,
    schemas_of,
)

DAMAGED = 100
JSON = Envelope(
    "debezium",
    "id bigint, small int, name string, amount double, done boolean, price decimal(6,2), "
    "at timestamp, day date, lines array<struct<n: smallint, price: decimal(6,2)>>",
    required=("ID",),
)
LINE = pa.struct([("n", pa.int16()), ("price", pa.decimal128(6, 2))])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("name", pa.string()),
        ("amount", pa.float64()),
        ("done", pa.bool_()),
        ("price", pa.decimal128(6, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("lines", pa.list_(pa.field("element", LINE))),
    ]
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


def messages_of(values: Sequence[bytes]) -> pa.Table:
    return pa.table(
        {
            "key": pa.nulls(len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([0] * len(values), pa.int32()),
            "offset": pa.array(range(len(values)), pa.int64()),
        }
    )


def query_of(columns: Sequence[str], where: str = "") -> StreamQuery:
    text = f"select * from v {where and f'where {where}'}"
    options = StreamOptions("sink", tuple(columns[:1]))
    return StreamQuery(get_change_sql(text, "v", of_rows=True), "v", "t", columns, options)


def arrow_changes(query: StreamQuery, schema: pa.Schema, decode: Any) -> pa.Table:
    """What the query makes of decoded rows."""
    picked = query.pick(schema, schema)
    selected: Iterator[pa.RecordBatch] = map(picked.select, decode(picked.columns))
    names = {MAJOR: f"{ORDER}0", MINOR: f"{ORDER}1", ROW_DELETED: DELETED}
    table = pa.Table.from_batches(selected)
    return table.rename_columns([names.get(name, name) for name in table.schema.names])


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
    values = [json.dumps(change(chance)).encode() for _ in range(300)]
    messages, query = messages_of(values), query_of(SCHEMA.names, where)
    frame = JSON.unpack(spark.spark, spark.spark.createDataFrame(messages)).drop(BAD)
    expected = spark.rows(query.changes(), v=frame).sort_by(f"{ORDER}1")
    batches = messages.select(["value", "offset"]).to_batches()
    actual = arrow_changes(
        query, SCHEMA, lambda picked: decode_debezium(batches, SCHEMA, picked, ["id"])
    )
    assert actual.schema.types == expected.select(actual.schema.names).schema.types
    assert numbered(actual) == numbered(expected.select(actual.schema.names))
    deleted = actual[DELETED].to_pylist()
    assert 40 < sum(deleted) < 250


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_avro(spark: Session, data: st.DataObject) -> None:
    schema, sent = data.draw(changes(20).filter(lambda drawn: drawn[1][0]["op"] != "m"))
    bodies = [encode(schema, message) for message in sent]
    picked = data.draw(st.lists(st.sampled_from(bodies), min_size=DAMAGED, max_size=DAMAGED))
    decoder = decoder_of(schema, envelope=DEBEZIUM)
    bodies += [data.draw(damaged(body)) for body in picked]

    def decoded(values: Sequence[bytes]) -> pa.Table:
        batches = messages_of(values).select(["value", "offset"]).to_batches()
        return arrow_changes(
            query, decoder.schema, lambda columns: decoder.decode(batches, columns)
        )

    names = decoder.columns.names
    query = query_of(names, data.draw(st.sampled_from(["", f"{names[0]} is not null"])))
    values = []
    for place, body in enumerate(bodies):
        [message] = messages_of([framed(1, body)]).select(["value", "offset"]).to_batches()
        try:
            list(decoder.decode([message], {}))
            values.append(framed(1, body))
        except ArrowFallback:
            assert place >= len(sent), body
    messages = spark.spark.createDataFrame(messages_of(values))
    schemas = schemas_of(schema, envelope=DEBEZIUM)
    frame = SchemaMessages(DEBEZIUM, schemas).unpack(messages)
    assert spark.rows(f"select * from v where {BAD} is not null", v=frame).num_rows == 0
    expected = spark.rows(query.changes(), v=frame).sort_by(f"{ORDER}1")
    actual = decoded(values)
    assert actual.schema.types == expected.select(actual.schema.names).schema.types
    assert numbered(actual) == numbered(expected.select(actual.schema.names))
