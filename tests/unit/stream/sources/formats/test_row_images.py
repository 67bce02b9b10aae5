"""Rows in messages of changes, and which of them are deleted."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
from tests.unit.stream.sources.formats.avro_rows import (
    DEBEZIUM,
    changes,
    decoder_of,
    encode,
    expected,
    framed,
)
from tests.unit.stream.sources.formats.decoded_messages import (
    Outcome,
    as_text,
    outcomes_of,
    require_bad,
)


def record(name: str = "Row", /, **fields: Any) -> Any:
    named = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": named}


SIMPLE = record(id="int", name=["null", "string"])


def envelope(row: Any, **more: Any) -> Any:
    """The schema of Debezium's messages."""
    images = {"before": ["null", row], "after": ["null", row["name"]]}
    return record("Envelope", **images, op="string", **more)


def row(values: Any, deleted: bool = False, is_old: bool = False) -> tuple[str, bool, bool]:
    return as_text(values), deleted, is_old


@settings(max_examples=80, deadline=None)
@given(changes())
def test_random_changes_of_debezium(topic: tuple[Any, list[Any]]) -> None:
    """Without a key, no update moves a row."""
    schema, messages = topic
    rows = {name: field["type"][1] for name, field in zip("ba", schema["fields"], strict=False)}
    decoder = decoder_of(schema, envelope=DEBEZIUM)
    values = [framed(1, encode(schema, message)) for message in messages]
    for message, outcome in zip(messages, outcomes_of(decoder, values), strict=True):
        operation = message["op"]
        image = message["before" if operation == "d" else "after"]
        if operation in "crud" and image is not None:
            assert outcome.rows == (row(expected(rows["b"], image), operation == "d"),)
        else:
            assert (outcome == Outcome()) == (operation == "m")
            assert (outcome.truncates, bool(outcome.bad)) == (
                operation == "t",
                operation not in "mt",
            )


def test_changes_of_debezium_in_avro() -> None:
    old, new = {"id": 1, "name": "a"}, {"id": 2, "name": None}
    schema = envelope(SIMPLE, ts_ms=["null", "long"])
    decoder = decoder_of(schema, envelope=Envelope("debezium", "", encoding="avro", key=("id",)))

    def of(**message: Any) -> bytes:
        whole = {"before": None, "after": None, "ts_ms": 5, **message}
        return framed(1, encode(schema, whole))

    values = [
        of(op="r", after=old, ts_ms=None),
        of(op="u", before=old, after=new),
        of(op="m"),
        of(op="t"),
        of(op="d", before=old),
        of(op="u", before=None, after=new),
    ]
    rows = outcomes_of(decoder, values)
    assert [own.rows for own in rows] == [
        (row(old),),
        (row(old, True, True), row(new)),
        (),
        (),
        (row(old, True),),
        (row(new),),
    ]
    assert [own.truncates for own in rows] == [False] * 3 + [True] + [False] * 2
    for operation, reason in {
        "": "has no `op` of Debezium",
        "x": "has no `op` of Debezium",
        "c": "has no row in `after`",
        "d": "has no row in `before`",
    }.items():
        assert require_bad(decoder, values[0], of(op=operation)) == reason


def test_changes_of_several_schemas() -> None:
    wide = record(id="long", more=["null", "string"])
    schemas = [envelope(SIMPLE), envelope(wide, source=record("Source", table="string"))]
    one, two = {"id": 1, "name": "a"}, {"id": 2**40, "more": "x"}
    source = {"table": "t"}
    messages = [
        (2, {"before": two, "after": None, "op": "d", "source": source}),
        (1, {"before": None, "after": None, "op": "m"}),
        (1, {"before": one, "after": one, "op": "u"}),
        (2, {"before": None, "after": two, "op": "c", "source": source}),
    ]
    values = [framed(number, encode(schemas[number - 1], value)) for number, value in messages]
    rows = {1: one | {"more": None}, 2: two | {"name": None}}
    outcomes = outcomes_of(decoder_of(*schemas, envelope=DEBEZIUM), values * 3)
    deleted, created = row(rows[2], True), row(rows[2])
    assert [own.rows for own in outcomes] == [(deleted,), (), (row(rows[1]),), (created,)] * 3
    named = Envelope("debezium", "", encoding="avro", table_column="of")
    outcomes = outcomes_of(decoder_of(*schemas, envelope=named), values)
    tables = [[json.loads(text)["of"] for text, *_ in own.rows] for own in outcomes]
    assert tables == [["t"], [], [None], ["t"]]
    of_table = Envelope("debezium", "", encoding="avro", table="t")
    outcomes = outcomes_of(decoder_of(*schemas, envelope=of_table), values)
    assert [own.rows for own in outcomes] == [(deleted,), (), (), (created,)]


@pytest.mark.parametrize("more", [{"source": record("S", gtid=["int", "string"])}, {}])
def test_envelopes_with_other_types(more: Any) -> None:
    """An `op` that is no text is none."""
    schema = envelope(SIMPLE, **more)
    change = {"before": None, "after": {"id": 1, "name": None}, "op": "c", "source": {"gtid": "x"}}
    if not more:
        schema["fields"][2]["type"] = "bytes"
        change["op"] = b"c"
    decoder = decoder_of(schema, envelope=DEBEZIUM)
    [outcome] = outcomes_of(decoder, [framed(1, encode(schema, change))])
    if more:
        assert outcome.rows == (row({"id": 1, "name": None}),)
    else:
        assert outcome.bad == "has no `op` of Debezium"


COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def json_decoder(name: str = "debezium", **keys: Any) -> MessageDecoder:
    return MessageDecoder(Envelope(name, "-", **keys), COLUMNS)


CHANGES = [
    b'{"before": null, "after": {"id": 1, "name": "a", "more": [{}]}, "op": "c", "ts_ms": 1}',
    b'{"before": {"id": 1}, "after": {"id": 1, "name": null}, "op": "u", "transaction": {}}',
    b'{"op": "m", "message": {"prefix": "p"}}',
    b'{"before": {"id": 1, "name": "b"}, "after": null, "op": "d", "source": {"lsn": 5}}',
    b'{"before": {"id": 3}, "op": "d", "payload": null}',
    b'{"after": {"name": "z", "id": 2}, "op": "r", "source": {"table": "t", "pos": null}}',
    b'\0\0\0\0\7{"after": {"id": 1}, "op": "c"}',
    b'{"schema": {}, "payload": {"after": {"id": 1}, "op": "c"}}',
    b'{"after": {"id": 1}, "op": "c", "ts_ms": "now"}',
    b'{"after": {"id": 1}, "op": "c", "source": {"lsn": "0/1"}}',
    b'{"after": {"id": 1, "id": 2}, "op": "c"}',
]


def test_changes_of_debezium_in_json() -> None:
    """Members that no column needs may be anything."""
    one = {"id": 1, "name": None}
    expected_rows: list[Any] = [
        [row({"id": 1, "name": "a"})],
        [row(one)],
        [],
        [row({"id": 1, "name": "b"}, True)],
        [row({"id": 3, "name": None}, True)],
        [row({"id": 2, "name": "z"})],
        *[[row(one)]] * 4,
        [row({"id": 2, "name": None})],
    ]
    outcomes = outcomes_of(json_decoder(), CHANGES)
    assert [list(own.rows) for own in outcomes] == expected_rows
    assert not any(own.bad for own in outcomes)


def test_an_update_of_the_key_deletes_the_old_row() -> None:
    moved = b'{"before": {"id": 1, "name": "a"}, "after": {"id": 2, "name": "b"}, "op": "u"}'
    [outcome] = outcomes_of(json_decoder(key=("ID",)), [moved])
    assert outcome.rows == (
        row({"id": 1, "name": "a"}, True, True),
        row({"id": 2, "name": "b"}),
    )


VALUE = "has a value in `{}` that does not fit the source's `columns`"
NO_RECORD = "does not fit the source's `columns`"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"null", NO_RECORD),
        (b'{"after": {"id": 1}}', "has no `op` of Debezium"),
        (b'{"after": {"id": 1}, "op": null}', "has no `op` of Debezium"),
        (b'{"after": {"id": 1}, "op": "x"}', "has no `op` of Debezium"),
        (b'{"after": {"id": "1"}, "op": "c"}', VALUE.format("id")),
        (b'{"after": 1, "op": "c"}', VALUE.format("after")),
        (b'{"before": {"id": 1.5}, "after": {"id": 1}, "op": "u"}', VALUE.format("id")),
        (b'{"after": {"id": 1}, "op": "c", "payload": {}}', "has no `op` of Debezium"),
        (b'{"after": {"id": 1}, "op": "c", "payload": "x"}', NO_RECORD),
        (b'{"after": {"name": "\xff"}, "op": "c"}', "is not UTF-8"),
        (b'{"after": {"id": 1}, "op": "c"', NO_RECORD),
        (b'{"after": {"name": "a"}, "op": "c"}', "lacks the key `id`"),
        (b'{"op": "c"}', "has no row in `after`"),
        (
            b'{"after": {"id": 1, "name": "__debezium_unavailable_value"}, "op": "c"}',
            "has `__debezium_unavailable_value` in `name`: Postgres did not log the value.",
        ),
    ],
)
def test_bad_messages_of_debezium(value: bytes, reason: str) -> None:
    good = b'{"after": {"id": 1}, "op": "c"}'
    assert require_bad(json_decoder(required=("id",)), good, value).startswith(reason)


def test_changes_of_maxwell() -> None:
    decoder = json_decoder("maxwell", key=("id",), table_column="of")
    values = [
        b'{"type": "insert", "table": "t", "data": {"id": 1, "name": "a"}}',
        b'{"type": "update", "table": "t", "data": {"id": 2}, "old": {"id": 1, "name": "b"}}',
        b'{"type": "update", "table": "u", "data": {"id": 2}, "old": {"name": "b"}}',
        b'{"type": "delete", "table": "t", "data": {"id": 2, "name": "c"}}',
        b'{"type": "bootstrap-insert", "data": {"id": 3}}',
        b'{"type": "table-alter", "table": "t"}',
    ]
    rows = [own.rows for own in outcomes_of(decoder, values * 2)]
    of = {"of": "t"}
    expected_rows = [
        (row({"id": 1, "name": "a", **of}),),
        (row({"id": 1, "name": None, **of}, True, True), row({"id": 2, "name": None, **of})),
        (row({"id": 2, "name": None, "of": "u"}),),
        (row({"id": 2, "name": "c", **of}, True),),
        (row({"id": 3, "name": None, "of": None}),),
        (),
    ]
    assert rows == expected_rows * 2
    for bad, reason in {
        b'{"table": "t", "data": {"id": 1}}': "has no `type`",
        b'{"type": "insert", "table": "t"}': "has no row in `data`",
        b'{"type": "insert", "table": "t", "data": {"id": "x"}}': VALUE.format("id"),
        b'{"type": "update", "data": {"id": 1}, "old": {"id": "x"}}': "has a key in `old` that",
    }.items():
        assert require_bad(decoder, values[0], bad).startswith(reason)
