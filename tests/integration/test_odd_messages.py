"""A message is the same row, or the same bad record, whatever else is in its batch.

A batch is decoded in this process unless one of its messages has to be decoded by Spark.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.sources.files.json_files import json_records
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.json_numbers import NO_RECORD, OF_TIME
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import schema_header
from dbt.adapters.iceberg_stream.stream.sources.source import REASON
from tests.integration.message_ways import WAYS, Outcome, decode, in_process
from tests.unit.stream.sources.formats.odd_messages import DDL, odd_record

COLUMNS = "id bigint, x double, s string"
JSON = Envelope("json", COLUMNS, required=("id",))
DEBEZIUM = Envelope("debezium", COLUMNS, required=("id",))
MAXWELL = Envelope("maxwell", COLUMNS, required=("id",), key=("id",))
FRAMES = {
    "json": "{}",
    "debezium": '{{"op": "c", "after": {}}}',
    "maxwell": '{{"type": "insert", "table": "t", "data": {}}}',
}
TYPES = {"id": {"type": "integer"}, "x": {"type": "number"}, "s": {"type": "string"}}
SCHEMA = RegisteredSchema(7, json.dumps({"type": "object", "properties": TYPES}), "JSON")
# More digits, arrays in each other and characters than JSON parsers allow by default.
DIGITS, DEPTH, LENGTH = 1001, 1001, 20_000_001
DEEP = "[" * DEPTH + "]" * DEPTH
# Values of members that no column has: those of a row, and those that make a message bad.
GOOD = [
    *("NaN", "Infinity", "-Infinity", "+INF", "-0", "1e400", '"Inf"', '"a: Inf, b"', '": -NaN}"'),
    *("7" * DIGITS, f"0.{'7' * DIGITS}", DEEP, '{"a": ' * DEPTH + "1" + "}" * DEPTH),
    f'{{"{"n" * 50_000}": 1}}',
    f'"{"n" * 50_001}"',
    '{"a": 1, "a": 2}',
]
BAD_VALUES = [
    *("Inf", "-Inf", "-NaN", "[1, -Inf ]", '{"a": Inf}', "INF", "nan", "01", "[1,]"),
    f'{{"{"n" * 50_001}": 1}}',
]


def row(**values: object) -> list[str]:
    columns = {"id": None, "x": None, "s": None, "deleted": False}
    return [json.dumps({**columns, **values}, sort_keys=True)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FRAMES)
def test_members_that_no_column_has(spark: Session, name: str, way: str) -> None:
    envelope = {"json": JSON, "debezium": DEBEZIUM, "maxwell": MAXWELL}[name]
    cases: list[tuple[str, Outcome]] = [(value, row(id=1)) for value in GOOD]
    cases += [(value, NO_RECORD) for value in BAD_VALUES]
    rows = [f'{{"u": {value}, "id": 1}}' for value, _ in cases]
    values = [FRAMES[name].format(own).encode() for own in rows]
    assert decode(spark, way, envelope, values) == [outcome for _, outcome in cases]


@pytest.mark.parametrize("way", WAYS)
def test_members_that_no_column_has_with_a_schema(spark: Session, way: str) -> None:
    envelope, why = Envelope("json", "", required=("id",)), "is not JSON of its schema 7"
    cases: list[tuple[str, Outcome]] = [(f'{{"u": {v}, "id": 1}}', row(id=1)) for v in GOOD]
    cases += [(f'{{"u": {value}, "id": 1}}', why) for value in BAD_VALUES]
    cases += [(f'{{"u": {value}}}', "lacks the key `id`") for value in GOOD]
    cases += [('{"u": NaN, "id": null}', row())]
    values = [schema_header(7) + text.encode() for text, _ in cases]
    outcomes = decode(spark, way, envelope, values, [SCHEMA])
    assert outcomes == [outcome for _, outcome in cases]


@pytest.mark.parametrize("way", WAYS)
def test_long_strings(spark: Session, way: str) -> None:
    long = "a" * LENGTH
    texts = [f'{{"id": 1, "u": "{long}"}}', f'{{"id": 1, "s": "{long}"}}']
    outcomes = decode(spark, way, JSON, [text.encode() for text in texts])
    assert outcomes[0] == row(id=1)
    assert outcomes[1] == row(id=1, s=long)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FRAMES)
def test_keys_are_missed_beside_any_member(spark: Session, name: str, way: str) -> None:
    """Spark's function that lists the keys of an object has limits of its own."""
    envelope = {"json": JSON, "debezium": DEBEZIUM, "maxwell": MAXWELL}[name]
    texts = [FRAMES[name].format(f'{{"u": {value}}}').encode() for value in GOOD]
    assert decode(spark, way, envelope, texts) == ["lacks the key `id`"] * len(GOOD)
    nulls = [f'{{"u": {value}, "id": null}}' for value in ("NaN", "+INF", "7" * DIGITS)]
    texts = [FRAMES[name].format(text).encode() for text in nulls]
    assert decode(spark, way, envelope, texts) == [row()] * len(nulls)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FRAMES)
def test_numbers_for_times_beside_any_member(spark: Session, name: str, way: str) -> None:
    envelope = Envelope(name, "id bigint, at timestamp", key=("id",))
    texts = [f'{{"id": 1, "at": 1731508712229, "u": {value}}}' for value in GOOD]
    values = [FRAMES[name].format(text).encode() for text in texts]
    assert decode(spark, way, envelope, values) == [OF_TIME] * len(values)


@pytest.mark.parametrize("way", WAYS)
def test_keys_before_updates_of_maxwell(spark: Session, way: str) -> None:
    envelope = Envelope("maxwell", "id bigint, at timestamp", key=("id", "at"))
    moved = [f'{{"id": 1, "u": {value}}}' for value in ("NaN", "7" * DIGITS)]
    bad = ['{"at": 1731508712229}', '{"id": "x"}', f'{{"id": 1, "u": {DEEP}}}']
    frame = '{{"type": "update", "table": "t", "data": {{"id": 2}}, "old": {}}}'
    outcomes = decode(spark, way, envelope, [frame.format(o).encode() for o in (*moved, *bad)])
    rows = [
        json.dumps({"at": None, "deleted": deleted, "id": number})
        for deleted, number in ((True, 1), (False, 2))
    ]
    assert outcomes == [rows, rows, OF_TIME, NO_RECORD, NO_RECORD]


def test_lines_of_files(spark: Session, tmp_path: Path) -> None:
    lines = [f'{{"id": 1, "u": {value}}}' for value in GOOD]
    lines += [f'{{"u": {value}}}' for value in GOOD]
    (tmp_path / "a.json").write_text("\n".join(lines))
    paths, names = [tmp_path.as_uri()], ["id", "x", "s"]
    frame = json_records(spark.spark, paths, COLUMNS, names, ["id"], {})
    sql = f"select id, {REASON}, count(*) from v group by all order by id nulls last"
    count = len(GOOD)
    assert as_rows(spark.rows(sql, v=frame)) == [
        (1, None, count),
        (None, "lacks the key `id`", count),
    ]


@pytest.mark.parametrize("name", ["json", "debezium"])
def test_random_messages(spark: Session, name: str) -> None:
    """Each message alone, and in batches of this process, is what Spark makes of it."""
    chance = random.Random(name)
    envelope = Envelope(name, DDL, required=("id",))
    values = [FRAMES[name].format(odd_record(chance)).encode() for _ in range(600)]
    expected = decode(spark, "spark", envelope, values)
    alone = decode(spark, "alone", envelope, values)
    for value, one, by_spark in zip(values, alone, expected, strict=True):
        assert one == by_spark, value
    own = [n for n, value in enumerate(values) if in_process(spark, envelope, [value])]
    assert len(own) > 50
    for _ in range(200):
        places = [*chance.sample(own, 4), chance.randrange(len(values))]
        together = in_process(spark, envelope, [values[place] for place in places])
        assert together in (None, [expected[place] for place in places])
    assert 100 < sum(isinstance(outcome, str) for outcome in expected) < 500


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["double", "float"])
def test_the_two_zeros_are_two_keys(spark: Session, kind: str, way: str) -> None:
    envelope = Envelope("debezium", f"id {kind}", required=("id",), key=("id",))
    frame = '{{"op": "u", "before": {{"id": {}}}, "after": {{"id": {}}}}}'
    pairs = [("0.0", "-0.0"), ("0.0", "0.0"), ("-0.0", "-0.0")]
    outcomes = decode(spark, way, envelope, [frame.format(*pair).encode() for pair in pairs])
    old, new = '{"deleted": true, "id": 0.0}', '{"deleted": false, "id": -0.0}'
    assert outcomes == [[old, new], ['{"deleted": false, "id": 0.0}'], [new]]
