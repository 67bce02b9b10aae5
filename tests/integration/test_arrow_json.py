"""PyArrow decodes messages as Spark does, or leaves them to Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.json import decode_messages
from dbt.adapters.iceberg_stream.stream.sources.arrow.json_types import json_arrow_schema
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import envelope
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, REASON
from tests.unit.stream.sources.formats.avro_rows import numbered
from tests.unit.stream.sources.formats.json_texts import ODD, ORDINARY, array, nullable, record

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
COUNT = 500
# A column of each type, and nested ones.
INNER = "struct<n: int, price: decimal(4,2), at: timestamp, days: array<date>>"
NESTED_DDL = (
    f"id bigint, one {INNER}, several array<{INNER}>, counts array<bigint>, "
    "times array<array<timestamp_ntz>>, deep struct<x: struct<y: array<float>, done: boolean>>"
)


def inner(chance: random.Random) -> str:
    of = ORDINARY
    days = array(nullable(of["date"]))
    return record(
        chance, {"n": of["int"], "price": of["decimal(4,2)"], "at": of["timestamp"], "days": days}
    )


def nested(chance: random.Random) -> str:
    deepest = {"y": array(ORDINARY["float"]), "done": ORDINARY["boolean"]}
    times = array(nullable(ORDINARY["timestamp_ntz"]))
    return record(
        chance,
        {
            "id": ORDINARY["bigint"],
            "one": inner,
            "several": array(nullable(inner)),
            "counts": array(nullable(ORDINARY["bigint"])),
            "times": array(nullable(times)),
            "deep": lambda chance: record(chance, {"x": lambda one: record(one, deepest)}),
        },
    )


def spoiled(records: Sequence[str]) -> list[str]:
    """Records, and such as have been spoiled in one or two places."""
    chance = random.Random(5)
    made = list(records)
    for _ in range(SPOILED):
        text = chance.choice(records)
        for _ in range(chance.randint(1, 2)):
            place = chance.randrange(len(text))
            cut = chance.choice([0, 0, 1, 3])
            text = text[:place] + chance.choice([*PARTS, ""]) + text[place + cut :]
        made.append(text)
    return made


def messages_of(texts: Sequence[str]) -> pa.Table:
    return pa.table(
        {
            "key": pa.nulls(len(texts), pa.binary()),
            "value": pa.array([text.encode() for text in texts]),
            "partition": pa.array([0] * len(texts), pa.int32()),
            "offset": pa.array(range(len(texts)), pa.int64()),
        }
    )


def spark_records(spark: Session, ddl: str, texts: Sequence[str]) -> pa.Table:
    """What Spark decodes, and which messages are bad."""
    source = envelope({"columns": ddl})
    frame = source.unpack(spark.spark, spark.spark.createDataFrame(messages_of(texts)))
    names = ", ".join(field.name for field in source.fields(spark.spark))
    sql = f"select {names}, {BAD} is not null as bad from v order by __stream.minor"
    return spark.rows(sql, v=frame)


def arrow_schema(spark: Session, ddl: str) -> pa.Schema:
    schema = json_arrow_schema(envelope({"columns": ddl}).fields(spark.spark))
    assert schema is not None
    return schema


def arrow_records(schema: pa.Schema, texts: Sequence[str], zone: str = "UTC") -> pa.Table:
    batches = messages_of(texts).select(["value", "offset"]).to_batches()
    columns = {name: name for name in schema.names}
    decoded = decode_messages(batches, schema, columns, zone=zone)
    return pa.Table.from_batches(decoded).select(schema.names)


def count_decoded(schema: pa.Schema, texts: Sequence[str], expected: pa.Table) -> int:
    """Compare messages, each of which PyArrow decodes or leaves to Spark."""
    count, bad = 0, expected["bad"].to_pylist()
    for place, text in enumerate(texts):
        try:
            decoded = arrow_records(schema, [text])
        except ArrowFallback:
            continue
        count += 1
        assert not bad[place], text
        row = expected.slice(place, 1).drop_columns(["bad"])
        assert decoded.schema == row.schema
        assert numbered(decoded) == numbered(row), text
    return count


def test_spark_decodes_the_same(spark: Session) -> None:
    texts = spoiled(RECORDS)
    assert arrow_schema(spark, DDL) == SCHEMA
    count = count_decoded(SCHEMA, texts, spark_records(spark, DDL, texts))
    assert count > SPOILED / 20


def test_values_that_producers_write(spark: Session) -> None:
    """None of them is left to Spark."""
    kinds = {f"c{place}": kind for place, kind in enumerate(ORDINARY)}
    ddl = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    chance, members = random.Random(7), {name: ORDINARY[kind] for name, kind in kinds.items()}
    texts = [record(chance, members) for _ in range(COUNT)]
    expected, actual = (
        spark_records(spark, ddl, texts),
        arrow_records(arrow_schema(spark, ddl), texts),
    )
    assert not any(expected["bad"].to_pylist())
    expected = expected.drop_columns(["bad"])
    assert actual.schema == expected.schema
    assert numbered(actual) == numbered(expected)
    assert all(column.null_count < COUNT / 2 for column in actual.itercolumns())


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.variants(5)
def test_values_that_are_odd(spark: Session, kind: str) -> None:
    chance = random.Random(kind)
    texts = [f'{{"a": {ODD[kind](chance)}}}' for _ in range(COUNT)]
    expected, ddl = spark_records(spark, f"a {kind}", texts), f"a {kind}"
    good = COUNT - sum(expected["bad"].to_pylist())
    count = count_decoded(arrow_schema(spark, ddl), texts, expected)
    assert 0 < good < COUNT
    assert count > good / 10


def test_nested_records(spark: Session) -> None:
    chance = random.Random(11)
    texts = [nested(chance) for _ in range(COUNT)]
    schema, expected = arrow_schema(spark, NESTED_DDL), spark_records(spark, NESTED_DDL, texts)
    assert not any(expected["bad"].to_pylist())
    actual = arrow_records(schema, texts)
    actual.validate(full=True)
    assert actual.schema == expected.drop_columns(["bad"]).schema
    assert actual.to_pylist() == expected.drop_columns(["bad"]).to_pylist()


def test_nested_records_that_are_spoiled(spark: Session) -> None:
    chance = random.Random(13)
    texts = spoiled([nested(chance) for _ in range(50)])
    expected = spark_records(spark, NESTED_DDL, texts)
    count = count_decoded(arrow_schema(spark, NESTED_DDL), texts, expected)
    assert count > SPOILED / 10
    assert sum(expected["bad"].to_pylist()) > SPOILED / 10


def test_the_time_zone_of_the_session(spark: Session) -> None:
    """Spark reads times without a zone in that of the session, and PyArrow leaves them to Spark."""
    name, zone = "spark.sql.session.timeZone", "America/New_York"
    with_zone = [f'{{"at": "2026-{month:02}-01T10:11:12.131Z"}}' for month in range(1, 13)]
    schema, before = arrow_schema(spark, "at timestamp"), spark.spark.conf.get(name)
    spark.spark.conf.set(name, zone)
    try:
        expected = spark_records(spark, "at timestamp", with_zone)["at"]
    finally:
        spark.spark.conf.set(name, before)
    actual = arrow_records(schema, with_zone, zone)["at"]
    assert actual.cast(pa.int64()) == expected.cast(pa.int64())
    with pytest.raises(ArrowFallback):
        arrow_records(schema, [*with_zone, '{"at": "2026-11-26T10:11:12"}'], zone)


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
    decoded = spark.rows(sql, v=frame).to_pylist()
    utf8, key = "is not UTF-8", "lacks the key `a`"
    no_record = "does not fit the source's `columns`"
    assert [row["why"] for row in decoded] == [utf8, key, key, None, None, utf8, no_record]
    assert [row["bad"] for row in decoded][:3] == [
        '{"a": 1, "b": "\ufffd"}',
        '{"b": "x"}',
        '{"A": 15}',
    ]
    assert [row["a"] for row in decoded][3:5] == [None, 7]


def test_long_numbers_and_deep_arrays(spark: Session) -> None:
    """Spark has limits of its own, also in members that are not read."""
    digits, depth, member = "7" * 1500, 1500, '{"m": '
    texts = [
        f'{{"more": {digits}, "a": 1}}',
        f'{{"more": {"[" * depth}{"]" * depth}, "a": 2}}',
        f'{{"more": {member * depth}1{"}" * depth}, "a": 3}}',
        f'{{"a": 4, "b": 0.{digits}}}',
    ]
    ddl = "a bigint, b double"
    expected = spark_records(spark, ddl, texts)
    assert not any(expected["bad"].to_pylist())
    assert count_decoded(arrow_schema(spark, ddl), texts, expected) == len(texts)


def test_columns_of_debezium_with_any_name(spark: Session) -> None:
    ddl = "id bigint, `a>b` int, `c,d` int, `e``f` int, more struct<`first-name`: string>"
    row = {"id": 1, "a>b": 2, "c,d": 3, "e`f": 4, "more": {"first-name": "x"}}
    message = json.dumps({"op": "c", "after": row})
    source = envelope({"columns": ddl, "format": "debezium"})
    frame = source.unpack(spark.spark, spark.spark.createDataFrame(messages_of([message])))
    names = ", ".join(quote(name) for name in row)
    assert spark.rows(f"select {names} from v where {BAD} is null", v=frame).to_pylist() == [row]


@pytest.mark.parametrize("text", ['{"name": "x"}', '{"ID": 1}', '{"id": null}'])
def test_spark_sees_whether_a_key_is_absent(text: str) -> None:
    batch = pa.record_batch({"value": pa.array([text.encode()]), "offset": pa.array([0])})
    with pytest.raises(ArrowFallback):
        list(decode_messages([batch], SCHEMA, COLUMNS, ["id"]))
