"""Numbers that Spark would read for hours, or as wrong times, are bad records in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.sources.files.json_files import json_records
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.json_numbers import OF_TIME
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import (
    SchemaMessages,
    message_schemas,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import schema_header
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, REASON

DDL = "id bigint, price decimal(10,2), note string, more struct<rates: array<decimal(5,1)>>"
MESSAGES = "topic string, partition int, offset bigint, key binary, value binary"
HUGE = (
    "1e1000000000",
    "-1.5E-2000000000",
    "0e+00000123456789",
    '"1e1000000000"',
    '" -2E+1000000000"',
)
# A text is no number, whatever it looks like.
GOOD = [
    {"id": 1, "price": 1.5, "note": "1e1000000000"},
    {"id": 2, "price": 2e1, "note": 'a "quoted" : 1e1000000000, \\'},
]
FORMATS = {
    "json": "{}",
    "debezium": '{{"op": "c", "after": {}}}',
    "maxwell": '{{"type": "insert", "table": "t", "data": {}}}',
}


def rows_of(spark: Session, envelope: Envelope, texts: list[str]) -> list[tuple[object, ...]]:
    messages = [("t", 0, offset, None, text.encode()) for offset, text in enumerate(texts)]
    frame = envelope.unpack(spark.spark, spark.spark.createDataFrame(messages, MESSAGES))
    sql = f"select id, cast(price as string), {BAD} from m order by __stream.minor"
    return as_rows(spark.rows(sql, m=frame))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", FORMATS)
def test_of_messages(spark: Session, name: str) -> None:
    good = [json.dumps(row) for row in GOOD]
    bad = [f'{{"id": 3, "price": {number}}}' for number in HUGE]
    bad += [f'{{"id": 4, "more": {{"rates": [1, {number}]}}}}' for number in HUGE]
    bad.append('{"id": 5, "price": "1e1000000000"')
    texts = [FORMATS[name].format(row) for row in (*good, *bad)]
    rows = rows_of(spark, Envelope(name, DDL), texts)
    assert rows[:2] == [(1, "1.50", None), (2, "20.00", None)]
    assert [bad for *_, bad in rows[2:]] == texts[2:]


TIMES = "id bigint, at timestamp, day date, more struct<times: array<timestamp_ntz>>, m map<string, timestamp>"


@pytest.mark.parametrize("name", FORMATS)
def test_times(spark: Session, name: str) -> None:
    """Spark takes any number for seconds, and does not check the range."""
    good: list[dict[str, object]] = [
        {"id": 17, "at": "2026-11-27T10:00:00Z", "day": "2026-11-27"},
        {"id": 1731508712229, "m": {"2024": "2026-11-27T10:00:00Z", "2025": None}},
        {"id": 3, "more": {"times": ["2026-11-27T10:00:00"]}},
    ]
    bad: list[dict[str, object]] = [{"at": n} for n in (1731508712, 1731508712229224, -1, 1.5, 1e3)]
    bad += [{"day": 20000}, {"more": {"times": [None, 5]}}, {"m": {"2024": 5}}, {"at": "20000"}]
    texts = [FORMATS[name].format(json.dumps(row)) for row in (*good, *bad)]
    messages = [("t", 0, offset, None, text.encode()) for offset, text in enumerate(texts)]
    envelope = Envelope(name, TIMES)
    frame = envelope.unpack(spark.spark, spark.spark.createDataFrame(messages, MESSAGES))
    sql = f"select unix_seconds(at), {BAD}, {REASON} from m order by __stream.minor"
    rows = as_rows(spark.rows(sql, m=frame))
    assert rows[:3] == [(1795773600, None, None), (None, None, None), (None, None, None)]
    assert [row[1] for row in rows[3:]] == texts[3:]
    assert {row[2] for row in rows[3:]} == {OF_TIME}


@pytest.mark.timeout(120)
def test_of_a_json_schema(spark: Session) -> None:
    parameters = {"scale": "2", "connect.decimal.precision": "10"}
    title = "org.apache.kafka.connect.data.Decimal"
    price = {"type": "number", "title": title, "connect.parameters": parameters}
    properties = {"id": {"type": "integer"}, "price": price, "note": {"type": "string"}}
    text = json.dumps({"type": "object", "properties": properties})
    envelope = Envelope("json", "")
    schemas = message_schemas([RegisteredSchema(7, text, "JSON")], envelope, None)
    texts = [json.dumps(row) for row in GOOD]
    texts += [f'{{"id": 3, "price": {number}}}' for number in HUGE]
    messages = [
        ("t", 0, offset, None, schema_header(7) + text.encode())
        for offset, text in enumerate(texts)
    ]
    frame = SchemaMessages(envelope, schemas).unpack(
        spark.spark.createDataFrame(messages, MESSAGES)
    )
    sql = f"select id, cast(price as string), {BAD} from m order by __stream.minor"
    rows = as_rows(spark.rows(sql, m=frame))
    assert rows[:2] == [(1, "1.50", None), (2, "20.00", None)]
    assert [bad for *_, bad in rows[2:]] == texts[2:]


@pytest.mark.timeout(120)
def test_of_files(spark: Session, tmp_path: Path) -> None:
    bad = [f'{{"id": 3, "price": {number}}}' for number in sorted(HUGE)]
    lines = [*(json.dumps(row) for row in GOOD), *bad]
    (tmp_path / "a.json").write_text("\n".join(lines))
    columns = "id bigint, price decimal(10,2), note string"
    frame = json_records(
        spark.spark, [tmp_path.as_uri()], columns, ["id", "price"], ["id"], {"multiLine": "false"}
    )
    sql = f"select id, cast(price as string), {BAD} from m order by {BAD} nulls first, id"
    rows = as_rows(spark.rows(sql, m=frame))
    assert rows[:2] == [(1, "1.50", None), (2, "20.00", None)]
    assert sorted(text for *_, text in rows[2:]) == sorted(bad)
