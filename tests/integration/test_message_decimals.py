"""Decimals and numbers in messages: those of the source, or bad records whose reason helps."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from dbt.include import iceberg_stream as include
from jinja2 import Environment

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import NO_RECORD
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.values import OF_BYTES, OF_SCALE, OF_TIME
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import schema_header
from tests.integration.message_ways import (
    WAYS,
    Messages,
    Outcome,
    decode,
    spark_frame,
    unfit,
)
from tests.unit.stream.sources.formats.avro_rows import encode, framed, twos_complement

COLUMNS = "p decimal(10,2), s string, part struct<q: decimal(6,0)>, list array<decimal(10,4)>"
# Values of `p`, and what is read.
GOOD = {
    "12.5": "12.50",
    "12.3400": "12.34",
    '"12.50"': "12.50",
    '"-1234"': "-1234.00",
    '"12345"': "12345.00",
    '"1234.00"': "1234.00",
    "1234": "1234.00",
    "1.2E1": "12.00",
    "1.234e+2": "123.40",
    "1200e-3": "1.20",
    "100e-2": "1.00",
    "0E-10": "0.00",
    "1e-2": "0.01",
}
OF_ANY_SCALE = ["12.345", '"12.345"', "1.23456E2", "1e-3", "12345e-3", "0.0000000001", "-0.001"]
IN_BASE64 = ['"1234"', '"12345678"', '"+123"', '"1e10"', '"BNI="', '"AQ=="', '"12\\u00334"']


@pytest.mark.parametrize("way", WAYS)
def test_of_debezium(spark: Session, way: str) -> None:
    cases = [(f'"p": {value}', number) for value, number in GOOD.items()]
    cases += [(f'"p": {value}', OF_SCALE) for value in OF_ANY_SCALE]
    cases += [(f'"p": {value}', OF_BYTES) for value in IN_BASE64]
    cases += [('"p": 1.5, "s": "1234", "u": "1234", "v": 1.2345', "1.50")]
    # More digits than a double has.
    longer = ["12345678.1200000000001", "0.10000000000000000001", '"0.10000000000000000001"']
    cases += [(f'"p": {value}', OF_SCALE) for value in longer]
    cases += [('"part": {"q": 0.5}', OF_SCALE), ('"part": {"q": "1234"}', OF_BYTES)]
    cases += [('"list": [null, 1.00001]', OF_SCALE), ('"list": [1, "1.5", "1234"]', OF_BYTES)]
    cases += [('"p": {"scale": 2, "value": "BNI="}', OF_BYTES), ('"p": "x"', unfit("p"))]
    texts = [f'{{"op": "c", "after": {{{text}}}}}' for text, _ in cases]
    texts += [f'{{"schema": {{}}, "payload": {text}}}' for text in texts]
    outcomes = decode(spark, way, Envelope("debezium", COLUMNS), [text.encode() for text in texts])
    assert prices(outcomes) == 2 * [outcome for _, outcome in cases]


@pytest.mark.parametrize("way", WAYS)
def test_of_records(spark: Session, way: str) -> None:
    """Without a schema, they are rounded to the column, and those in quotes are digits."""
    texts = ['{"p": 12.345}', '{"p": "1234"}', '{"p": "BNI="}']
    outcomes = decode(spark, way, Envelope("json", COLUMNS), [text.encode() for text in texts])
    assert prices(outcomes) == ["12.35", "1234.00", unfit("p")]


@pytest.mark.parametrize("way", WAYS)
def test_of_a_json_schema(spark: Session, way: str) -> None:
    """A text is the bytes of a number, also if it looks like digits."""
    parameters = {"scale": "2", "connect.decimal.precision": "5"}
    title = "org.apache.kafka.connect.data.Decimal"
    price = {"type": "string", "title": title, "connect.parameters": parameters}
    schema = {"type": "object", "properties": {"p": price, "q": price}}
    schemas = [RegisteredSchema(7, json.dumps(schema), "JSON")]
    of_type = "has a value that is not of its type"
    cases = {
        f'{{"p": "{base64.b64encode(twos_complement(1234)).decode()}"}}': "12.34",
        '{"p": 12.3}': "12.30",
        '{"p": 12.30, "q": 1e-2}': "12.30",
        # The bytes of a number with seven digits.
        '{"p": "1234"}': of_type,
        '{"p": 12.345}': OF_SCALE,
        '{"p": 1.5, "q": "1234"}': of_type,
        '{"p": 1234.5}': of_type,
    }
    values = [schema_header(7) + text.encode() for text in cases]
    outcomes = decode(spark, way, Envelope("json", ""), values, schemas)
    for text, outcome in zip(cases, outcomes, strict=True):
        read = outcome if isinstance(outcome, str) else json.loads(outcome[0])["p"]
        assert cases[text] in str(read), text


@pytest.mark.parametrize("way", WAYS)
def test_of_columns_of_another_scale(spark: Session, way: str) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}
    fields = [{"name": name, "type": ["null", kind]} for name in ("p", "q", "n")]
    schema = {"type": "record", "name": "R", "fields": fields}
    schemas = [RegisteredSchema(1, json.dumps(schema))]
    envelope = Envelope("avro", "p decimal(10,2), q decimal(38,12), n bigint")

    def message(name: str, digits: int) -> bytes:
        value: dict[str, Any] = {"p": None, "q": None, "n": None, name: twos_complement(digits)}
        return framed(1, encode(schema, value))

    cases = [("p", 123400000000), ("p", 1), ("n", 20000000000), ("n", 15000000000), ("q", 1)]
    outcomes = decode(spark, way, envelope, [message(*case) for case in cases], schemas)
    read = [o if isinstance(o, str) else json.loads(o[0]) for o in outcomes]
    assert [read[0]["p"], read[2]["n"], read[4]["q"]] == ["12.34", 2, "1.00E-10"]
    assert "whose field `p` has a value that its column cannot take" in read[1]
    assert "whose field `n`" in read[3]


NUMBERS = ["0", "12.34", "-12.34", "1E+3", "-128", "255", "-0.0001", "9999999999999999.9999"]
NO_NUMBERS = ["0.00001", "1E+20", "-12345678901234567890.5"]


def variable_scale_decimal(number: Decimal) -> dict[str, Any]:
    _, _, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    return {"scale": -exponent, "value": twos_complement(int(number.scaleb(-exponent)))}


def number_sql(value: str, precision: int, scale: int) -> str:
    """What the macro returns."""
    path = Path(include.__file__).parent / "macros/adapters/stream.sql"
    module: Any = Environment(extensions=["jinja2.ext.do"]).from_string(path.read_text()).module
    return str(module.iceberg_stream__variable_scale_decimal(value, precision, scale))


@pytest.mark.parametrize("number", [None, *NUMBERS, *NO_NUMBERS])
def test_of_variable_scale(spark: Session, number: str | None) -> None:
    value = variable_scale_decimal(Decimal(number)) if number else {"scale": None, "value": None}
    in_json = {"scale": value["scale"], "value": base64.b64encode(value["value"] or b"").decode()}
    row = json.dumps({"op": "c", "after": {"id": 1, "n": in_json if number else None}})
    envelope = Envelope("debezium", "id int, n struct<scale: int, value: binary>")
    text = get_change_sql(f"select id, {number_sql('n', 20, 4)} as n from v", "v", of_rows=True)
    sql = StreamQuery(text, "v", "t", ["id", "n"], StreamOptions("sink", ("id",))).changes()
    with spark_frame(spark, Messages(envelope, [row.encode()])) as frame:
        if number in NO_NUMBERS:
            with pytest.raises(StatementError, match=r"does not fit decimal\(20, 4\)"):
                spark.rows(sql, v=frame)
        else:
            expected = Decimal(number).quantize(Decimal("0.0001")) if number else None
            assert spark.rows(sql, v=frame)["n"].to_pylist() == [expected]


FRAMES = {
    "json": "{}",
    "debezium": '{{"op": "c", "after": {}}}',
    "maxwell": '{{"type": "insert", "table": "t", "data": {}}}',
}
# Readers of numbers with any exponent would work on these for hours.
TINY, IN_QUOTES = "-1.5E-2000000000", '"1e1000000000"'
HUGE = ["1e1000000000", TINY, IN_QUOTES, '"-2E+1000000000"']
# A text is no number, whatever it looks like.
TEXTS = [
    {"p": 1.5, "s": "1e1000000000"},
    {"p": 2e1, "s": 'a "quoted" : 1e1000000000, \\'},
]


def prices(outcomes: list[Outcome]) -> list[str]:
    """The values of `p`, or the reasons."""
    return [own if isinstance(own, str) else json.loads(own[0])["p"] for own in outcomes]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FRAMES)
def test_huge_exponents(spark: Session, name: str, way: str) -> None:
    """A zero is one, whatever its exponent; and what is rounded may become one."""
    ddl = "p decimal(10,2), s string, more struct<rates: array<decimal(5,1)>>"
    cases = [(json.dumps(row), f"{row['p']:.2f}") for row in TEXTS]
    cases += [('{"p": 0e+00000123456789}', "0.00"), ('{"p": "1e1000000000"', NO_RECORD)]
    known = {TINY: OF_SCALE, IN_QUOTES: OF_BYTES} if name == "debezium" else {TINY: "0.00"}
    for number in HUGE:
        cases.append((f'{{"p": {number}}}', known.get(number, unfit("p"))))
        outcome = known.get(number, unfit("more.rates"))
        rates = f'{{"p": 1, "more": {{"rates": [1, {number}]}}}}'
        cases.append((rates, "1.00" if outcome == "0.00" else outcome))
    values = [FRAMES[name].format(text).encode() for text, _ in cases]
    found = decode(spark, way, Envelope(name, ddl), values)
    assert prices(found) == [outcome for _, outcome in cases]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS)
def test_huge_exponents_with_a_json_schema(spark: Session, way: str) -> None:
    parameters = {"scale": "2", "connect.decimal.precision": "10"}
    title = "org.apache.kafka.connect.data.Decimal"
    price = {"type": "number", "title": title, "connect.parameters": parameters}
    schema = {"type": "object", "properties": {"p": price, "s": {"type": "string"}}}
    schemas = [RegisteredSchema(7, json.dumps(schema), "JSON")]
    texts = [json.dumps(row) for row in TEXTS] + [f'{{"p": {number}}}' for number in HUGE]
    values = [schema_header(7) + text.encode() for text in texts]
    found = prices(decode(spark, way, Envelope("json", ""), values, schemas))
    assert found[:2] == ["1.50", "20.00"]
    assert OF_SCALE in found[3]
    assert all("whose field `p` has a value that is not of its type" in why for why in found[4:])
    assert "`p`" in found[2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FRAMES)
def test_numbers_for_times(spark: Session, name: str, way: str) -> None:
    """Nothing says whether they are seconds, or parts of them."""
    columns = (
        "id bigint, at timestamp, day date, more struct<times: array<timestamp_ntz>>, "
        "m map<string, timestamp>"
    )
    good: list[dict[str, Any]] = [
        {"id": 17, "at": "2026-11-27T10:00:00Z", "day": "2026-11-27"},
        {"id": 1731508712229, "m": {"2024": "2026-11-27T10:00:00Z", "2025": None}},
        {"id": 3, "more": {"times": ["2026-11-27T10:00:00"]}},
    ]
    numbers = (1731508712, 1731508712229224, -1, 1.5, 1e3, "20000")
    bad: list[dict[str, Any]] = [{"at": number} for number in numbers]
    bad += [{"day": 20000}, {"more": {"times": [None, 5]}}, {"m": {"2024": 5}}]
    values = [FRAMES[name].format(json.dumps(row)).encode() for row in (*good, *bad)]
    found = decode(spark, way, Envelope(name, columns), values)
    rows = [json.loads(own[0]) for own in found[: len(good)]]
    micros = 1795773600_000000
    assert [row["id"] for row in rows] == [17, 1731508712229, 3]
    assert rows[0]["at"] == micros
    assert rows[1]["m"] == {"2024": micros, "2025": None}
    assert rows[2]["more"] == {"times": [micros]}
    assert found[len(good) :] == [OF_TIME] * len(bad)
