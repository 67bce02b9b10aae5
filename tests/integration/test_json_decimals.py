"""Numbers that Spark would read for hours are bad records, in every format of JSON."""

from __future__ import annotations

import json

import pytest

from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.sources.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.source import BAD

DDL = "id bigint, price decimal(10,2), note string, more struct<rates: array<decimal(5,1)>>"
MESSAGES = "topic string, partition int, offset bigint, key binary, value binary"
HUGE = ("1e1000000000", "-1.5E-2000000000", "0e+00000123456789")
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
    bad.append(f'{{"id": 4, "more": {{"rates": [1, {HUGE[0]}]}}}}')
    texts = [FORMATS[name].format(row) for row in (*good, *bad)]
    rows = rows_of(spark, Envelope(name, DDL), texts)
    assert rows[:2] == [(1, "1.50", None), (2, "20.00", None)]
    assert [bad for *_, bad in rows[2:]] == texts[2:]
