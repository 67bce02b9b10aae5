"""A message is the same row, or the same bad record, whatever else is in its batch."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pyarrow.fs as fs
import pytest

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.sources.files.definition import files_source
from dbt.adapters.iceberg_stream.stream.sources.files.json_files import JsonFilesSource
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.json_records import TOO_DEEP
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import (
    NO_RECORD,
    MessageDecoder,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.values import OF_TIME
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import schema_header
from tests.integration.message_ways import WAYS, Outcome, decode, outcomes
from tests.unit.stream.sources.formats.odd_messages import COLUMNS as ODD_COLUMNS
from tests.unit.stream.sources.formats.odd_messages import odd_record

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
# More digits, levels and characters than JSON parsers allow by default.
DIGITS, MOST_LEVELS, LENGTH = 1001, 500, 20_000_001
# Values of members that no column has: those of a row, and those that make a message bad.
GOOD = [
    *("NaN", "Infinity", "-Infinity", "+INF", "INF", "-INF", "-0", "1e400", "1e1000000000"),
    *('"Inf"', '"a: Inf, b"', '": -NaN}"', "7" * DIGITS, f"0.{'7' * DIGITS}"),
    f'{{"{"n" * 50_001}": 1}}',
    f'"{"n" * 50_001}"',
    '{"a": 1, "a": 2}',
]
# One level is that of the row, and another that of the change.
LEVELS = MOST_LEVELS - 2
GOOD += ["[" * LEVELS + "]" * LEVELS, '{"a": ' * LEVELS + "NaN" + "}" * LEVELS]
DEEP = ["[" * MOST_LEVELS + "]" * MOST_LEVELS, '{"a": ' * MOST_LEVELS + "1" + "}" * MOST_LEVELS]
BAD_VALUES = [
    "Inf",
    "-Inf",
    "-NaN",
    "[1, -Inf ]",
    '{"a": Inf}',
    "nan",
    "01",
    "[1,]",
    "'a'",
    "1,000",
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
    cases += [(value, TOO_DEEP) for value in DEEP]
    rows = [f'{{"u": {value}, "id": 1}}' for value, _ in cases]
    values = [FRAMES[name].format(own).encode() for own in rows]
    assert decode(spark, way, envelope, values) == [outcome for _, outcome in cases]


@pytest.mark.parametrize("way", WAYS)
def test_members_that_no_column_has_with_a_schema(spark: Session, way: str) -> None:
    envelope, why = Envelope("json", "", required=("id",)), "is not JSON of its schema 7"
    cases: list[tuple[str, Outcome]] = [(f'{{"u": {v}, "id": 1}}', row(id=1)) for v in GOOD]
    cases += [(f'{{"u": {value}, "id": 1}}', why) for value in BAD_VALUES]
    cases += [(f'{{"u": {value}, "id": 1}}', TOO_DEEP) for value in DEEP]
    cases += [(f'{{"u": {value}}}', "lacks the key `id`") for value in GOOD]
    cases += [('{"u": NaN, "id": null}', row())]
    values = [schema_header(7) + text.encode() for text, _ in cases]
    found = decode(spark, way, envelope, values, [SCHEMA])
    assert found == [outcome for _, outcome in cases]


@pytest.mark.parametrize("way", WAYS)
def test_messages_that_end_in_the_id_of_a_schema(spark: Session, way: str) -> None:
    """They are no beginning of others."""
    good = schema_header(7) + b'{"id": 1}'
    short = [good[:size] for size in range(5)]
    values = [good, *short, b"{}", good, schema_header(7), schema_header(8), good]
    found = decode(spark, way, Envelope("json", ""), values, [SCHEMA])
    assert [own for own in found if isinstance(own, list)] == [row(id=1)] * 3
    assert all("does not begin with a byte 0" in found[place] for place in range(1, 6))
    assert "is JSON without the id of a schema" in found[6]
    assert found[8] == "is not JSON of its schema 7"
    assert found[9] == "has the schema id 8, which the registry does not have"


@pytest.mark.parametrize("way", WAYS)
def test_long_strings(spark: Session, way: str) -> None:
    long = "a" * LENGTH
    texts = [f'{{"id": 1, "u": "{long}"}}', f'{{"id": 1, "s": "{long}"}}']
    found = decode(spark, way, JSON, [text.encode() for text in texts])
    assert found == [row(id=1), row(id=1, s=long)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FRAMES)
def test_keys_are_missed_beside_any_member(spark: Session, name: str, way: str) -> None:
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
    bad = ['{"at": 1731508712229}', '{"id": "x"}', f'{{"id": 1, "u": {DEEP[0]}}}']
    frame = '{{"type": "update", "table": "t", "data": {{"id": 2}}, "old": {}}}'
    found = decode(spark, way, envelope, [frame.format(o).encode() for o in (*moved, *bad)])
    rows = [
        json.dumps({"at": None, "deleted": deleted, "id": number})
        for deleted, number in ((True, 1), (False, 2))
    ]
    no_key = "has a key in `old` that does not fit the source's `columns`"
    assert found == [rows, rows, no_key, no_key, TOO_DEEP]


def test_lines_of_files(spark: Session, tmp_path: Path) -> None:
    lines = [f'{{"id": 1, "u": {value}}}' for value in (*GOOD, *BAD_VALUES, *DEEP)]
    lines += [f'{{"u": {value}}}' for value in GOOD]
    (tmp_path / "a.json").write_text("\n".join(lines))
    spec = {"path": tmp_path.as_uri(), "columns": COLUMNS}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path), ["id"])
    upper = source.plan_batch(None, 10)
    assert isinstance(source, JsonFilesSource) and upper is not None
    records = list(source.decode(spark, None, upper))
    ids = [id for part in records for id in part.rows["id"].to_pylist()]
    assert ids == [1] * len(GOOD)
    assert Counter(bad.reason for part in records for bad in part.bad) == {
        NO_RECORD: len(BAD_VALUES),
        TOO_DEEP: len(DEEP),
        "lacks the key `id`": len(GOOD),
    }


@pytest.mark.parametrize("name", ["json", "debezium"])
def test_random_messages(name: str) -> None:
    """Each message is the same alone and among others, and has the values of Python's JSON."""
    chance = random.Random(name)
    decoder = MessageDecoder(Envelope(name, "any", required=("id",)), ODD_COLUMNS)
    records = [odd_record(chance) for _ in range(600)]
    values = [FRAMES[name].format(own).encode() for own in records]
    alone = [outcomes(decoder, [value])[0] for value in values]
    assert outcomes(decoder, values) == alone
    for _ in range(300):
        places = chance.sample(range(len(values)), chance.randint(2, 5))
        together = outcomes(decoder, [values[place] for place in places])
        assert together == [alone[place] for place in places]
    for record, outcome in zip(records, alone, strict=True):
        try:
            read = json.loads(record.replace("+INF", "Infinity"), parse_int=str, parse_float=str)
        except ValueError:
            assert outcome in (NO_RECORD, TOO_DEEP), record
            continue
        except RecursionError:
            assert outcome == TOO_DEEP, record
            continue
        if isinstance(outcome, list):
            actual = json.loads(outcome[0])
            id, x, text = (read.get(name) for name in ("id", "x", "s"))
            assert actual["id"] == (None if id is None else int(id)), record
            x = {"-0": "0"}.get(x, x)  # an integer
            assert str(actual["x"]) == str(None if x is None else float(x)), record
            assert actual["s"] == text or isinstance(text, bool | float | dict | list), record
    assert 100 < sum(isinstance(outcome, str) for outcome in alone) < 500


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["double", "float"])
def test_the_two_zeros_are_two_keys(spark: Session, kind: str, way: str) -> None:
    envelope = Envelope("debezium", f"id {kind}", required=("id",), key=("id",))
    frame = '{{"op": "u", "before": {{"id": {}}}, "after": {{"id": {}}}}}'
    pairs = [("0.0", "-0.0"), ("0.0", "0.0"), ("-0.0", "-0.0")]
    found = decode(spark, way, envelope, [frame.format(*pair).encode() for pair in pairs])
    old, new = '{"deleted": true, "id": 0.0}', '{"deleted": false, "id": -0.0}'
    assert found == [[old, new], ['{"deleted": false, "id": 0.0}'], [new]]
