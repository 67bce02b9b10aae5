"""Messages of one source become the same rows in whatever batches they come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import (
    json_schemas,
    message_schemas,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import list_of
from tests.unit.stream.sources.formats import avro_rows, json_schema_rows, protobuf_rows
from tests.unit.stream.sources.formats.avro_rows import (
    DEBEZIUM,
    damaged,
    decoder_of,
    encode,
    framed,
    schemas_of,
)
from tests.unit.stream.sources.formats.decoded_messages import (
    as_text,
    numbered,
    outcomes_of,
    require_bad,
    rows_of,
)


def record(name: str = "Row", /, **fields: Any) -> Any:
    named = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": named}


SIMPLE = record(id="int", name=["null", "string"])
GOOD = framed(1, encode(SIMPLE, {"id": 1, "name": "a"}))
NUMBER = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


def require_same_in_parts(
    data: st.DataObject, decoder: MessageDecoder, values: Sequence[bytes | None]
) -> None:
    """Check that a batch becomes the same, wherever it is cut; and its messages alone, too."""
    whole = outcomes_of(decoder, values)
    assert whole == [own for value in values for own in outcomes_of(decoder, [value])]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(values)), max_size=4)))
    bounds = zip([0, *cuts], [*cuts, len(values)], strict=True)
    parts = [values[begin:end] for begin, end in bounds]
    assert whole == [own for part in parts for own in outcomes_of(decoder, part)]
    skipped = [decoder.decode(part).skipped for part in parts]
    assert decoder.decode(values).skipped == sum(skipped)


OTHERS = [b"", b"\0", b"{}", b"\3\0x", framed(1, b""), framed(7, b"x"), framed(8, b"x"), None]


@st.composite
def mixed(draw: st.DrawFn, good: Sequence[bytes]) -> list[bytes | None]:
    """Messages in any order, some several times, with damaged and foreign ones among them."""
    spoiled = [
        message[:5] + draw(damaged(message[5:]))
        for message in draw(st.lists(st.sampled_from(good)))
    ]
    several = draw(st.lists(st.sampled_from(good), min_size=1, max_size=12))
    others = draw(st.lists(st.sampled_from(OTHERS), max_size=3))
    return draw(st.permutations([*several, *spoiled, *others]))


def knowing_others(decoder: MessageDecoder, *ids: int) -> MessageDecoder:
    """Return a decoder that skips messages with ids."""
    assert decoder.schemas is not None
    return replace(decoder, schemas=replace(decoder.schemas, others=dict.fromkeys(ids, ("Other",))))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_avro_in_parts(data: st.DataObject) -> None:
    """With messages of several schemas."""
    types = data.draw(st.sampled_from([avro_rows.ALL, avro_rows.FAST]))
    topics = data.draw(st.lists(avro_rows.topics(types, 3), min_size=1, max_size=3))
    schemas = [schema for schema, _ in topics]
    own = schemas_of(*schemas)
    decoder = knowing_others(MessageDecoder(avro_rows.AVRO, own.columns, schemas=own), 7)
    good = [
        framed(number, encode(schema, row))
        for number, (schema, rows) in enumerate(topics, 1)
        for row in rows
    ]
    require_same_in_parts(data, decoder, data.draw(mixed(good)))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_changes_of_debezium_in_parts(data: st.DataObject) -> None:
    schema, messages = data.draw(avro_rows.changes())
    own = schemas_of(schema, envelope=DEBEZIUM)
    envelope = Envelope("debezium", "", encoding="avro", key=("c0",), table_column="of_table")
    decoder = knowing_others(MessageDecoder(envelope, own.columns, schemas=own), 7)
    good = [framed(1, encode(schema, message)) for message in messages]
    require_same_in_parts(data, decoder, data.draw(mixed(good)))


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_protobuf_in_parts(syntax: str, data: st.DataObject) -> None:
    schema = protobuf_rows.Schema(data.draw(protobuf_rows.schemas(syntax)), syntax=syntax)
    kind = schema.message()
    sent = data.draw(st.lists(protobuf_rows.messages(kind), min_size=1, max_size=4))
    good = [protobuf_rows.FIRST + message.SerializeToString() for message in sent]
    require_same_in_parts(data, schema.decoder, data.draw(mixed(good)))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_json_with_schemas_in_parts(data: st.DataObject) -> None:
    style = json_schema_rows.Style(data.draw(st.booleans()), maps=True)
    schema, texts, _ = data.draw(json_schema_rows.topics(style))
    decoder = knowing_others(json_schema_rows.decoder_of(schema), 7)
    good = json_schema_rows.messages_of(texts)
    require_same_in_parts(data, decoder, data.draw(mixed(good)))


def test_several_schemas_in_a_batch() -> None:
    """Each message is read with its own, and their order stays."""
    schemas = [
        record(id="int", part=record("Part", a="int"), ratio="float"),
        record(
            id="long",
            part=["null", record("Part", A="long", b=["string", "null"])],
            days=["null", {"type": "array", "items": {"type": "int", "logicalType": "date"}}],
            ratio="double",
        ),
        record(ID="int", part=record("Part", a="int"), ratio="float"),
    ]
    values = [
        (2, {"id": 2**40, "part": {"A": 2**41, "b": "x"}, "days": [1], "ratio": 0.1}),
        (1, {"id": 1, "part": {"a": 1}, "ratio": 0.5}),
        (3, {"ID": 3, "part": {"a": 3}, "ratio": 0.5}),
        (2, {"id": 2, "part": None, "days": None, "ratio": 0.2}),
        (1, {"id": 4, "part": {"a": 4}, "ratio": 0.5}),
    ]
    messages = [framed(number, encode(schemas[number - 1], value)) for number, value in values]
    actual = rows_of(decoder_of(*schemas), messages * 3)
    small = [{"id": n, "part": {"a": n, "b": None}, "ratio": 0.5, "days": None} for n in (1, 3, 4)]
    first = {"id": 2**40, "part": {"a": 2**41, "b": "x"}, "ratio": 0.1, "days": [1]}
    last = {"id": 2, "part": None, "ratio": 0.2, "days": None}
    expected = [as_text(row) for row in (first, *small[:2], last, small[2])]
    assert numbered(actual) == expected * 3


def test_fields_within_items_go_to_their_columns_by_name() -> None:
    def of(**fields: Any) -> Any:
        parts = {"type": "array", "items": record("Part", **fields)}
        return record(c={"type": "map", "values": parts})

    old, new = of(x="int"), of(y="string", X="long")
    messages = [
        framed(1, encode(old, {"c": {"a": [{"x": 1}], "b": []}})),
        framed(2, encode(new, {"c": {"a": [{"y": "z", "X": 2**40}]}})),
    ]
    rows = rows_of(decoder_of(old, new), messages).to_pylist(maps_as_pydicts="strict")
    first, second = [{"x": 1, "y": None}], [{"x": 2**40, "y": "z"}]
    assert rows == [{"c": {"a": first, "b": []}}, {"c": {"a": second}}]


@given(st.lists(st.integers(1, 5), max_size=12))
def test_messages_of_other_types_are_skipped(ids: list[int]) -> None:
    """Of five schemas, two are read; the others may come anywhere, also alone."""
    schemas = [SIMPLE, record(id="long", note="string")]
    bodies = [encode(SIMPLE, {"id": 1, "name": "a"}), encode(schemas[1], {"id": 2, "note": "b"})]
    values = [framed(n, bodies[n - 1] if n < 3 else b"other") for n in ids]
    decoder = knowing_others(decoder_of(*schemas), 3, 4, 5)
    decoded = decoder.decode(values)
    rows = list(zip(decoded.rows["id"].to_pylist(), decoded.of.tolist(), strict=True))
    assert rows == [(number, place) for place, number in enumerate(ids) if number < 3]
    assert (decoded.skipped, decoded.bad) == (len(ids) - len(rows), [])


def test_an_empty_batch() -> None:
    columns = pa.schema([("id", pa.int64()), ("parts", pa.map_(pa.string(), list_of(pa.int8())))])
    for decoder in (decoder_of(SIMPLE), MessageDecoder(Envelope("json", "-"), columns)):
        assert outcomes_of(decoder, []) == []
        assert outcomes_of(decoder, [None] * 2) == outcomes_of(decoder, [None]) * 2


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "does not begin with a byte 0"),
        (b"{}", "is JSON without the id of a schema"),
        (framed(4, b"x"), "has the schema id 4, which the registry does not have"),
        (framed(3, b"")[:4], "does not begin with a byte 0"),
    ],
)
def test_messages_that_are_not_skipped(message: bytes, reason: str) -> None:
    decoder = decoder_of(SIMPLE)
    assert require_bad(decoder, GOOD, message).startswith(reason)


def test_columns_of_the_definition() -> None:
    """Fields besides them are left out, and columns without a field are null."""
    at = pa.timestamp("us", "UTC")
    columns = pa.schema([("NAME", pa.string()), ("at", at), ("Id", pa.int64())])
    rows = rows_of(decoder_of(SIMPLE, columns=columns), [GOOD])
    assert rows.to_pylist() == [{"NAME": "a", "at": None, "Id": 1}]
    assert rows.schema == columns


def test_wider_columns() -> None:
    columns = pa.schema(
        [("price", pa.decimal128(9, 2)), ("parts", pa.map_(pa.string(), pa.int64()))]
    )
    schema = record(price=["null", NUMBER], parts={"type": "map", "values": "int"})
    rows = rows_of(decoder_of(schema, columns=columns), [framed(1, b"\2\2\x85\2\2a\4\0")])
    assert rows.to_pylist() == [{"price": Decimal("-1.23"), "parts": [("a", 2)]}]
    assert rows.schema == columns


def test_narrower_columns() -> None:
    """A value that a column cannot take is bad, with the name of its field."""
    decoder = decoder_of(record(id="int", x="int"), columns=pa.schema([("X", pa.int8())]))
    assert rows_of(decoder, [framed(1, b"\2\2")]).to_pylist() == [{"X": 1}]
    reason = require_bad(decoder, framed(1, b"\2\2"), framed(1, b"\2\x80\x04"))
    assert reason == "has the schema 1, whose field `X` has a value that its column cannot take"


def test_titles_of_json_with_columns() -> None:
    """The schemas of a record type only say which messages are read."""
    columns = pa.schema([("id", pa.int64())])
    titled = [
        RegisteredSchema(n, json.dumps({"type": "object", "title": title}), "JSON")
        for n, title in enumerate(("Order", "Payment", "Order"), 1)
    ]
    envelope = Envelope("json", "id bigint", record="Order")
    schemas = json_schemas(titled, "Order", columns)
    decoder = MessageDecoder(envelope, columns, schemas=schemas)
    values = [framed(n, b'{"id": %d}' % n) for n in (2, 1, 3, 2, 9)]
    decoded = decoder.decode([*values, b"{}", b""])
    assert decoded.rows.to_pylist() == [{"id": 1}, {"id": 3}]
    assert (decoded.of.tolist(), decoded.skipped) == ([1, 2], 2)
    reasons = [own.reason for own in decoded.bad]
    assert reasons[0] == "has the schema id 9, which the registry does not have"
    assert reasons[1].startswith("is JSON without the id of a schema, so that its record type is")
    assert reasons[2].startswith("does not begin with a byte 0")
    assert [own.record for own in decoded.bad] == [values[-1][5:].decode(), "{}", ""]


def test_tombstones_delete_the_rows_of_their_keys() -> None:
    envelope = Envelope("avro", "", tombstone_deletes=True, required=("id",), key=("id",))
    key = record("Key", id="int")
    registered = [RegisteredSchema(n, json.dumps(s)) for n, s in enumerate((SIMPLE, key), 1)]
    schemas = message_schemas(registered, envelope, None, {2})
    decoder = MessageDecoder(envelope, schemas.columns, schemas=schemas)
    of_key = framed(2, b"\4")
    values = [GOOD, None, None, GOOD, None]
    keys = [of_key, of_key, None, None, b"x"]
    for times in (1, 3):
        decoded = decoder.decode(values * times, keys * times)
        one = {"id": 1, "name": "a"}
        assert decoded.rows.to_pylist() == [one, {"id": 2, "name": None}, one] * times
        assert decoded.deleted.tolist() == [False, True, False] * times
        reasons = [own.reason for own in decoded.bad]
        assert reasons[0] == "has neither a key nor a value"
        assert reasons[1].startswith("does not begin with a byte 0")
        assert len(reasons) == 2 * times
    assert outcomes_of(decoder, values, keys) == [
        own
        for value, key in zip(values, keys, strict=True)
        for own in outcomes_of(decoder, [value], [key])
    ]
