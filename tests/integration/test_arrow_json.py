"""PyArrow decodes messages as Spark does, or leaves them to Spark."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow_json import decode_messages
from dbt.adapters.iceberg_stream.stream.sources.envelopes import envelope
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, REASON

DDL = "id bigint, small int, name string, amount double, done boolean"
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("name", pa.string()),
        ("amount", pa.float64()),
        ("done", pa.bool_()),
    ]
)
COLUMNS = {name: name for name in SCHEMA.names}
RECORDS = [
    '{"id": 1, "small": 2, "name": "x", "amount": 1.5, "done": true}',
    '{"id": null, "more": {"id": [1, null, {"id": null}]}, "amount": 2, "ID": 3}',
    '{"id": -9223372036854775808, "small": 2147483648, "amount": 4.9e-324, "done": false}',
    '{"name": "\\u00e9\\ud83d\\ude00\\"\\/\\u0000", "amount": 0.1, "name2": "é"}',
    '{"amount": 123456789012345678901234567890, "id": 1, "more": 1, "more": "2"}',
    '{"amount": -0.0, "done": null, "small": -0}',
    '{"amount": NaN, "name": "2024-01-01 00:00:00", "small": 7}',
]
PARTS = ["null", "{", "}", "[", "]", ",", ":", '"', "1", "-", "true", "e", ".", " ", "\n", '"id"']
SPOILED = 3000


def messages() -> list[str]:
    """Records, and such as have been spoiled in one or two places."""
    chance = random.Random(5)
    made = list(RECORDS)
    for _ in range(SPOILED):
        text = chance.choice(RECORDS)
        for _ in range(chance.randint(1, 2)):
            place = chance.randrange(len(text))
            cut = chance.choice([0, 0, 1, 3])
            text = text[:place] + chance.choice([*PARTS, ""]) + text[place + cut :]
        made.append(text)
    return made


def arrow_record(text: str) -> dict[str, object] | None:
    batch = pa.record_batch({"value": pa.array([text.encode()]), "offset": pa.array([0])})
    try:
        [record] = pa.Table.from_batches(decode_messages([batch], SCHEMA, COLUMNS)).to_pylist()
    except ArrowFallback:
        return None
    return {name: record[name] for name in SCHEMA.names}


def test_spark_decodes_the_same(spark: Session) -> None:
    texts = messages()
    rows = pa.table(
        {
            "key": pa.nulls(len(texts), pa.binary()),
            "value": pa.array([text.encode() for text in texts]),
            "partition": pa.array([0] * len(texts), pa.int32()),
            "offset": pa.array(range(len(texts)), pa.int64()),
        }
    )
    frame = envelope({"columns": DDL}).unpack(spark.spark, spark.spark.createDataFrame(rows))
    sql = f"select {', '.join(SCHEMA.names)}, {BAD} as bad from v order by __stream.minor"
    expected = spark.rows(sql, v=frame).to_pylist()
    count = 0
    for text, row in zip(texts, expected, strict=True):
        here = arrow_record(text)
        if here is not None:
            count += 1
            bad = row.pop("bad")
            assert bad is None, text
            assert json.dumps(here) == json.dumps(row), text  # NaN is not equal to itself
    assert count > SPOILED / 20


def test_messages_that_are_no_good(spark: Session) -> None:
    """What is no UTF-8, and a key that is absent; one that is null on purpose is allowed."""
    values = [
        b'{"a": 1, "b": "\xff"}',
        b'{"b": "x"}',
        b'{"A": 15}',
        b'{"a": null}',
        b'{"a": 7}',
        b"\xff\xfe",
        b"{",
    ]
    messages = {
        "key": pa.nulls(len(values), pa.binary()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array([0] * len(values), pa.int32()),
        "offset": pa.array(range(len(values)), pa.int64()),
    }
    source = envelope({"columns": "a bigint, b string"}, required=["A"])
    frame = source.unpack(spark.spark, spark.spark.createDataFrame(pa.table(messages)))
    sql = f"select a, b, {BAD} as bad, {REASON} as why from v order by __stream.minor"
    found = spark.rows(sql, v=frame).to_pylist()
    utf8, key = "is not UTF-8", "lacks the key `a`"
    no_record = "does not fit the source's `columns`"
    assert [row["why"] for row in found] == [utf8, key, key, None, None, utf8, no_record]
    assert [row["bad"] for row in found][:3] == [
        '{"a": 1, "b": "\ufffd"}',
        '{"b": "x"}',
        '{"A": 15}',
    ]
    assert [row["a"] for row in found][3:5] == [None, 7]


@pytest.mark.parametrize("text", ['{"name": "x"}', '{"ID": 1}', '{"id": null}'])
def test_spark_sees_whether_a_key_is_absent(text: str) -> None:
    batch = pa.record_batch({"value": pa.array([text.encode()]), "offset": pa.array([0])})
    with pytest.raises(ArrowFallback):
        list(decode_messages([batch], SCHEMA, COLUMNS, ["id"]))
