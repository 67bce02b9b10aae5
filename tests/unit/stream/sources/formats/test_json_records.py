"""What becomes of messages in JSON, of the columns of a definition and of a schema."""

from __future__ import annotations

import base64
import random
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.json_records import (
    MOST_LEVELS,
    declared_record,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import list_of
from tests.unit.stream.sources.formats.avro_rows import damaged, framed
from tests.unit.stream.sources.formats.decoded_messages import (
    Outcome,
    as_text,
    numbered,
    outcomes_of,
    require_bad,
    rows_of,
)
from tests.unit.stream.sources.formats.json_schema_rows import (
    Style,
    connect,
    decoder_of,
    messages_of,
    topics,
)
from tests.unit.stream.sources.formats.odd_messages import COLUMNS, odd_record

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
DECODER = MessageDecoder(Envelope("json", "-"), SCHEMA)
NO_RECORD = "does not fit the source's `columns`"
VALUE = "has a value in `{}` that " + NO_RECORD
COUNT, BATCHES = 600, 300
FRAMES = {
    "json": "{}",
    "debezium": '{{"op": "c", "after": {}}}',
    "maxwell": '{{"type": "insert", "data": {}}}',
}


def odd_decoder(name: str) -> MessageDecoder:
    return MessageDecoder(Envelope(name, "-", required=("id",), key=("id",)), COLUMNS)


@pytest.mark.parametrize("name", FRAMES)
def test_a_message_is_the_same_alone_and_among_others(name: str) -> None:
    chance, decoder = random.Random(name), odd_decoder(name)
    values = [FRAMES[name].format(odd_record(chance)).encode() for _ in range(COUNT)]
    values += [damage(chance, chance.choice(values)) for _ in range(COUNT // 4)]
    alone = [outcome for value in values for outcome in outcomes_of(decoder, [value])]
    good = [bool(outcome.rows) for outcome in alone]
    assert 0.15 < sum(good) / len(good) < 0.9
    assert outcomes_of(decoder, values) == alone
    for _ in range(BATCHES):
        places = chance.choices(range(len(values)), k=chance.randint(1, 8))
        expected = [alone[place] for place in places]
        assert outcomes_of(decoder, [values[place] for place in places]) == expected


@pytest.mark.parametrize("name", FRAMES)
def test_a_message_is_the_same_value_by_value(name: str) -> None:
    """As messages are read that msgspec refuses for another member, which is no JSON."""
    chance, decoder = random.Random(name), odd_decoder(name)
    records = [odd_record(chance) for _ in range(COUNT)]
    values = [FRAMES[name].format(text).encode() for text in records]
    with_more = [value[:1] + b'"more": [NaN], ' + value[1:] for value in values]
    within = [
        FRAMES[name].format(text.replace("{", '{"more": -Infinity, ', 1)).encode()
        for text in records
        if text != "{}"
    ]
    outcomes = outcomes_of(decoder, values)
    assert sum(bool(outcome.rows) for outcome in outcomes) > COUNT / 5
    kept = [outcome for text, outcome in zip(records, outcomes, strict=True) if text != "{}"]
    for several, expected in ((with_more, outcomes), (within, kept)):
        for value, found, own in zip(several, outcomes_of(decoder, several), expected, strict=True):
            assert found == own, value


def damage(chance: random.Random, value: bytes) -> bytes:
    """Return a message of which some bytes are others, are missing or are added."""
    place = chance.randrange(len(value))
    part = chance.choice([b"", b"\xff", b"\0", b"\x01", b"\\", b'"', b"}", b"{", b"\\ud800", b"x"])
    return value[:place] + part + value[place + chance.choice([0, 1, 3]) :]


def test_messages_become_rows() -> None:
    values = [
        b'{"id": 1, "name": "a\\n", "more": {"x": [null]}}',
        b'{\n"name": null}',
        b'\0\0\0\0\7{"id": 2}',
        b'{"id": 3, "id": 4}',
        b'{"name": "{}"}',
        b'{"name": "[{\\"a\\": {\\"b\\": 1}}]"}',
        b'{"amount": 1e400}',
        b'{"amount": -1e400, "id": 9223372036854775807}',
    ]
    assert rows_of(DECODER, values).to_pylist() == [
        {"id": 1, "name": "a\n", "amount": None},
        {"id": None, "name": None, "amount": None},
        {"id": 2, "name": None, "amount": None},
        {"id": 4, "name": None, "amount": None},
        {"id": None, "name": "{}", "amount": None},
        {"id": None, "name": '[{"a": {"b": 1}}]', "amount": None},
        {"id": None, "name": None, "amount": float("inf")},
        {"id": 2**63 - 1, "name": None, "amount": -float("inf")},
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1", "1"),
        ("1.50", "1.50"),
        ("1e400", "1e400"),
        ("true", "true"),
        ('{"a" : [1.0,  null] }', '{"a":[1.0,null]}'),
        ("[]", "[]"),
        ("NaN", "NaN"),
    ],
)
def test_other_values_are_text_as_they_are_written(value: str, text: str) -> None:
    for values in ([value], ['"a"', value]):
        rows = rows_of(DECODER, [f'{{"name": {own}}}'.encode() for own in values])
        assert rows["name"].to_pylist()[-1] == text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", NO_RECORD),
        (b" ", NO_RECORD),
        (b"null", NO_RECORD),
        (b"1", NO_RECORD),
        (b'[{"id": 1}]', NO_RECORD),
        (b'{"id": 1', NO_RECORD),
        (b'{"id": 1} {"id": 2}', NO_RECORD),
        (b'{"id": 1} null', NO_RECORD),
        (b'{"id": 1} "more"', NO_RECORD),
        (b'{"more": {"id": 1}', NO_RECORD),
        (b"{'id': 1}", NO_RECORD),
        (b'{"id": 01}', NO_RECORD),
        (b'{"id": 1,}', NO_RECORD),
        (b'{"name": "a\x01"}', NO_RECORD),
        (b'{"name": "\\x"}', NO_RECORD),
        (b'{"more": tru}', NO_RECORD),
        (b"\xef\xbb\xbf{}", NO_RECORD),
        (b'{"id": "1"}', VALUE.format("id")),
        (b'{"id": 1.0}', VALUE.format("id")),
        (b'{"id": 1e1}', VALUE.format("id")),
        (b'{"id": 9223372036854775808}', VALUE.format("id")),
        (b'{"amount": "1"}', VALUE.format("amount")),
        (b'{"amount": true}', VALUE.format("amount")),
        (b'{"name": "\xff"}', "is not UTF-8"),
        (b'{"more": "\xff"}', "is not UTF-8"),
        (b'{"\xff": 1}', "is not UTF-8"),
        (b'{"name": "\xed\xa0\x80"}', "is not UTF-8"),
        (b'{"name": "\xff", "more": NaN}', "is not UTF-8"),
        (b'\0\0\0\0\7{"name": "\xff"}', "is not UTF-8"),
        (b"\0\0\0\0", NO_RECORD),
    ],
)
def test_bad_messages(value: bytes, reason: str) -> None:
    assert require_bad(DECODER, b'{"id": 0}', value) == reason
    [bad] = DECODER.decode([value]).bad
    assert bad.record == (value[5:] if value[:1] == b"\0" else value).decode("utf-8", "replace")


@pytest.mark.parametrize("number", [7, 128, 255, 0x7B227B22, 2**32 - 1])
def test_headers_among_messages_without(number: int) -> None:
    """The bytes of an id may be any, such as those of JSON or none of UTF-8."""
    with_header, without = framed(number, b'{"id": 2}'), b'{"id": 1}'
    for values in ([with_header, without], [without, with_header], [without] * 6 + [with_header]):
        rows = rows_of(DECODER, values)
        assert rows["id"].to_pylist() == [2 if value == with_header else 1 for value in values]
    bad = framed(number, b'{"name": "\xff"}')
    for good in (with_header, without):
        assert require_bad(DECODER, good, bad) == "is not UTF-8"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (r"x\ud83d", "x?"),
        (r"\ude00\ud83d\ude00\ud83dx", "?\N{GRINNING FACE}?x"),
        (r"\uD83D\uD83D\uDE00", "?\N{GRINNING FACE}"),
        (r"\\ud83d\ud83d", r"\ud83d?"),
    ],
)
def test_half_a_surrogate_pair(text: str, name: str) -> None:
    """As of a writer that cuts texts; it is no character, and no reason to lose the message."""
    values = [b'{"name": "%b"}' % text.encode(), b'{"name": "%b", "x": NaN}' % text.encode()]
    skipped = b'{"name": "good", "more": ["%b"]}' % text.encode()
    assert rows_of(DECODER, [*values, skipped])["name"].to_pylist() == [name, name, "good"]


@pytest.mark.parametrize("number", [7, 128])
def test_a_header_is_one(number: int) -> None:
    """What follows it is JSON, and no other header."""
    twice = framed(number, framed(number, b'{"id": 2}'))
    reason = "is not UTF-8" if number == 128 else NO_RECORD
    for good in (b'{"id": 0}', framed(7, b'{"id": 0}')):
        assert require_bad(DECODER, good, twice) == reason
    decoder, good = decoder_of(record(id=INTEGER)), framed(1, b'{"id": 1}')
    reason = "is not UTF-8" if number == 128 else "is not JSON of its schema 1"
    assert require_bad(decoder, good, framed(1, framed(number, b'{"id": 2}'))) == reason


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"id": ', "}"), ('[{"a]}": ', "}]")])
def test_levels(begin: str, end: str) -> None:
    """Those of arrays and objects count; strings have none."""
    per, note = begin.count("[") + begin.count("{"), ', "name": "[{[{"'
    most = (MOST_LEVELS - 1) // per

    def nested(depth: int) -> bytes:
        return f'{{"more": {begin * depth}1{end * depth}{note}}}'.encode()

    assert rows_of(DECODER, [nested(most)]).to_pylist()[0]["name"] == "[{[{"
    for depth in (most + 1, 999, 100_000):
        reason = require_bad(DECODER, b'{"id": 0}', nested(depth))
        assert reason == "has more than 500 levels of arrays and objects"


def test_keys_of_maps_must_be_strings() -> None:
    columns = pa.schema([("c", pa.struct([("m", pa.map_(pa.int32(), pa.int32()))]))])
    with pytest.raises(StreamError, match=r"The column `c\.m` is a map whose keys are no strings"):
        declared_record(columns, exact=False)


def values(kind: pa.DataType, *texts: str, name: str = "json") -> list[Any]:
    decoder = MessageDecoder(Envelope(name, "-"), pa.schema([("a", kind)]))
    messages = [FRAMES[name].format(f'{{"a": {text}}}').encode() for text in texts]
    return list(rows_of(decoder, messages)["a"].to_pylist())


NESTED = list_of(
    pa.struct([("at", pa.timestamp("us", "UTC")), ("prices", list_of(pa.decimal128(4, 1)))])
)


def test_nested_values() -> None:
    texts = [
        '[{"at": "2026-11-26T12:00:00", "prices": [1.25, null, "3"], "more": {"at": 1}}, null]',
        '[{}, {"prices": null}, {"prices": []}]',
        "[]",
        "null",
        '[{"at": null, "at": null}]',
    ]
    decoder = MessageDecoder(Envelope("json", "-"), pa.schema([("a", NESTED)]))
    noon = (datetime(2026, 11, 26, 12) - datetime(1970, 1, 1)).total_seconds()
    first = {"at": int(noon) * 10**6, "prices": [Decimal("1.3"), None, Decimal("3.0")]}
    empty: dict[str, Any] = {"at": None, "prices": None}
    expected = [[first, None], [empty, empty, {"at": None, "prices": []}], [], None, [empty]]
    rows = rows_of(decoder, [f'{{"a": {text}}}'.encode() for text in texts])
    assert numbered(rows) == [as_text({"a": own}) for own in expected]


@pytest.mark.parametrize(
    "text",
    [
        *("{}", '"x"', "[1]", "[[]]", '[{"at": 1}]', '[{"at": "x"}]', '[{"prices": [1000]}]'),
        *('[{"prices": {}}]', '[{"prices": ["x"]}]', "[{},]"),
    ],
)
def test_nested_values_that_do_not_fit(text: str) -> None:
    decoder = MessageDecoder(Envelope("json", "-"), pa.schema([("a", NESTED)]))
    require_bad(decoder, b'{"a": []}', f'{{"a": {text}}}'.encode())


@settings(max_examples=100, deadline=None)
@given(st.builds(Style, st.booleans(), st.booleans()).flatmap(topics))
def test_rows_are_those_that_were_written(topic: tuple[Any, list[str], list[Any]]) -> None:
    schema, texts, rows = topic
    expected = [*map(as_text, rows)]
    assert numbered(rows_of(decoder_of(schema), messages_of(texts))) == expected
    with_more = [text.replace("{", '{"more": NaN, ', 1) for text in texts if text != "{}"]
    kept = [row for text, row in zip(texts, expected, strict=True) if text != "{}"]
    assert numbered(rows_of(decoder_of(schema), messages_of(with_more))) == kept


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_of_messages_with_a_schema(data: st.DataObject) -> None:
    """A message is bad, or a row whatever is beside it."""
    schema, texts, _ = data.draw(topics(Style(maps=True), 3))
    decoder, good = decoder_of(schema), messages_of(texts)
    spoiled = [message[:5] + data.draw(damaged(message[5:])) for message in good]
    alone = [outcome for value in spoiled for outcome in outcomes_of(decoder, [value])]
    assert all(bool(outcome.bad) != bool(outcome.rows) for outcome in alone)
    assert outcomes_of(decoder, [*good, *spoiled])[len(good) :] == alone


def record(**properties: Any) -> Any:
    return {"type": "object", "properties": properties}


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def test_newer_schemas_add_and_widen_fields() -> None:
    """Also within objects and arrays; messages keep their order."""
    part = record(x={**INTEGER, "connect.type": "int32"})
    wider = record(x=INTEGER, y=TEXT)
    decoder = decoder_of(
        record(id={**INTEGER, "connect.type": "int32"}, part=part),
        record(id=INTEGER, part=wider, parts={"type": "array", "items": wider}),
    )
    rows = rows_of(
        decoder,
        [
            framed(1, b'{"id": 1, "part": {"x": 2}}'),
            framed(2, b'{"part": {"y": "a", "x": 3}, "parts": [{"x": 4}, null], "more": 1}'),
            framed(1, b"{}"),
        ],
    )
    assert rows.to_pylist() == [
        {"id": 1, "part": {"x": 2, "y": None}, "parts": None},
        {"id": None, "part": {"x": 3, "y": "a"}, "parts": [{"x": 4, "y": None}, None]},
        {"id": None, "part": None, "parts": None},
    ]
    assert rows.schema.field("id").type == pa.int64()


TIMESTAMP = connect("int64", "io.debezium.time.Timestamp")
DECIMAL = connect(
    "bytes",
    "org.apache.kafka.connect.data.Decimal",
    "number",
    **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "6"}},
)


def test_changes_of_debezium_with_a_schema() -> None:
    """Members that are no columns of the row need no type."""
    row = {"oneOf": [{"type": "null"}, record(id=INTEGER, at=TIMESTAMP)]}
    free = {"type": "object"}
    schema = record(before=row, after=row, op=TEXT, source=record(table=TEXT, free=free), more=free)
    decoder = decoder_of(schema, envelope=Envelope("debezium", "", table_column="of"))
    texts = [
        '{"op": "c", "after": {"id": 1, "at": 0}, "source": {"table": "t", "free": 5}}',
        '{"op": "m", "more": "x"}',
        '{"op": "d", "before": {"id": 1, "at": 1}, "after": null}',
    ]
    assert outcomes_of(decoder, messages_of(texts)) == [
        Outcome(((as_text({"id": 1, "at": 0, "of": "t"}), False, False),)),
        Outcome(),
        Outcome(((as_text({"id": 1, "at": 1000, "of": None}), True, False),)),
    ]


def octets(number: int) -> str:
    """A decimal in base64, in three bytes: without padding."""
    return base64.b64encode(number.to_bytes(3, "big", signed=True)).decode()


def test_decimals_whose_bytes_look_like_a_number() -> None:
    """They are told from numbers by their quotes."""
    digits = "1234"
    number = int.from_bytes(base64.b64decode(digits), "big", signed=True)
    schema = record(a={**DECIMAL, "connect.parameters": {"scale": "0"}})
    rows = rows_of(decoder_of(schema), messages_of([f'{{"a": "{digits}"}}', f'{{"a": {digits}}}']))
    assert rows["a"].to_pylist() == [Decimal(number), Decimal(digits)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (INTEGER, '"1"'),
        (INTEGER, "1.5"),
        ({**INTEGER, "connect.type": "int32"}, str(2**31)),
        ({"type": "boolean"}, '"true"'),
        ({**TEXT, "format": "date-time"}, '"yesterday"'),
        ({**TEXT, "format": "date"}, "5"),
        ({**TEXT, "connect.type": "bytes"}, '"?"'),
        ({**TEXT, "connect.type": "bytes"}, '"AAA==="'),
        ({**TEXT, "connect.type": "bytes"}, "5"),
        (TIMESTAMP, str(2**62)),
        (DECIMAL, f'"{octets(1000000)}"'),
        (DECIMAL, '""'),
        (DECIMAL, "10000"),
        (DECIMAL, "true"),
        (record(x=INTEGER), "[]"),
    ],
)
def test_values_that_do_not_fit_their_schema(kind: Any, value: str) -> None:
    decoder = decoder_of(record(a=kind, b=TEXT))
    [good, bad] = messages_of(['{"b": "x"}', f'{{"a": {value}}}'])
    assert rows_of(decoder, [good]).to_pylist() == [{"a": None, "b": "x"}]
    reason = require_bad(decoder, good, bad)
    of_time = value == "5" and kind.get("format") == "date"
    assert "field `a` has a value that is not of its type" in reason or of_time


def test_messages_with_a_schema_that_are_bad() -> None:
    decoder = decoder_of(record(id=INTEGER), envelope=Envelope("json", "", required=("ID",)))
    good = framed(1, b'{"id": 1}')
    assert rows_of(decoder, [good]).to_pylist() == [{"id": 1}]
    for bad, reason in {
        framed(2, b'{"id": 1}'): "has the schema id 2, which the registry does not have",
        b'{"id": 1}': "is JSON without the id of a schema. Set the source's `columns`",
        framed(1, b"{}"): "lacks the key `id`",
        framed(1, b""): "is not JSON of its schema 1",
        b"": "does not begin with a byte 0",
    }.items():
        assert require_bad(decoder, good, bad).startswith(reason)
