"""Which messages of Protobuf are decoded without Spark, as Spark's workers decode them."""

from __future__ import annotations

import re
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.protobuf import protobuf_decoder
from dbt.adapters.iceberg_stream.stream.sources.arrow.records import RecordDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_decoder import MessageDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import message_schemas
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.source import MINOR, ROW_DELETED
from tests.unit.stream.sources.formats.avro_rows import damaged, numbered
from tests.unit.stream.sources.formats.protobuf_rows import HEADER, ID, Schema, messages, schemas

PROTO3 = 'syntax = "proto3"; '
FIRST = HEADER + b"\0"
RICH = (
    'import "google/protobuf/timestamp.proto"; message Row { int64 id = 1; '
    "optional string name = 2; google.protobuf.Timestamp at = 3; oneof o { int32 a = 4; In b = 5; } "
    "repeated In parts = 6; message In { optional string x = 1; Kind kind = 2; repeated In2 y = 3; } "
    "enum Kind { A = 0; B = 5; } message In2 { uint64 n = 1; } Kind kind = 7; repeated Kind kinds = 8; }"
)


def decoder_of(text: str, columns: Any = None, **options: Any) -> RecordDecoder | None:
    envelope = Envelope(**{"name": "protobuf", "columns": "", "encoding": "protobuf", **options})
    registered = RegisteredSchema(ID, text, "PROTOBUF")
    return protobuf_decoder(message_schemas([registered], envelope, columns))


def rows_of(decoder: RecordDecoder | None, *values: bytes) -> pa.Table:
    assert decoder is not None
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": range(len(values))})
    names = {name: name for name in decoder.columns.names}
    return pa.Table.from_batches(decoder.decode([batch], names))


def require_same(schema: Schema, text: str, values: list[bytes]) -> int:
    """Compare messages with what workers decode; return how many are decoded without Spark."""
    decoder, count = decoder_of(text), 0
    assert decoder is not None
    for value in values:
        try:
            decoded = rows_of(decoder, value)
        except ArrowFallback:
            continue
        (expected,), (problem,) = schema.decode(value)
        assert problem is None, value
        row = as_row(expected, decoder.schema)
        workers = pa.Table.from_pylist([row], decoder.schema)
        assert numbered(decoded.select(decoder.schema.names)) == numbered(workers), value
        count += 1
    return count


def as_row(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Return a row with lists of pairs for maps, which PyArrow takes."""
    maps = {field.name for field in schema if pa.types.is_map(field.type)}
    return {name: [*value.items()] if name in maps else value for name, value in row.items()}


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@given(st.data())
@settings(max_examples=60)
def test_random_messages_of_random_schemas(syntax: str, data: st.DataObject) -> None:
    text = data.draw(schemas(syntax))
    schema = Schema(text, syntax=syntax)
    sent = data.draw(st.lists(messages(schema.message()), min_size=1, max_size=4))
    values = [FIRST + message.SerializeToString(deterministic=True) for message in sent]
    whole = f'syntax = "{syntax}"; {text}'
    assert require_same(schema, whole, values) == len(values)
    spoiled = [FIRST + data.draw(damaged(value[len(FIRST) :])) for value in values]
    require_same(schema, whole, spoiled)


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@given(st.data())
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_random_messages_that_ptars_reads(syntax: str, data: st.DataObject) -> None:
    """It does so alone, and notices damage."""
    text = data.draw(schemas(syntax, with_all=False))
    schema = Schema(text, syntax=syntax)
    sent = data.draw(st.lists(messages(schema.message()), min_size=1, max_size=4))
    values = [FIRST + message.SerializeToString(deterministic=True) for message in sent]
    spoiled = [FIRST + data.draw(damaged(value[len(FIRST) :])) for value in values]
    workers = [schema.decode(value) for value in values + spoiled]
    decoder = decoder_of(f'syntax = "{syntax}"; {text}')
    assert decoder is not None
    # ptars writes no negative zero where zero is the default.
    has_zero = any(": -0" in str(message) for message in sent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessageDecoder, "run", refuse_all)
        for place, value in enumerate(values + spoiled):
            (expected,), (problem,) = workers[place]
            try:
                decoded = rows_of(decoder, value)
            except ArrowFallback:
                assert place >= len(values) or has_zero, value
                continue
            assert problem is None, value
            row = pa.Table.from_pylist([as_row(expected, decoder.schema)], decoder.schema)
            assert numbered(decoded.select(decoder.schema.names)) == numbered(row), value


def refuse_all(*_: Any) -> None:
    """Decode nothing by Protobuf's own classes."""
    raise ArrowFallback


RICH_SCHEMA = Schema(RICH)
RICH_DECODER = decoder_of(PROTO3 + RICH)


@given(st.data())
@settings(max_examples=200)
def test_damage_is_noticed(data: st.DataObject) -> None:
    row = RICH_SCHEMA.message()(
        id=data.draw(st.integers(-5, 5)),
        at={"seconds": data.draw(st.integers(-(2**40), 2**40)), "nanos": 123_456_000},
        parts=[{"x": "a"}, {"y": [{"n": 7}]}],
        kinds=[0, 5, 6],
        **data.draw(st.sampled_from([{}, {"a": 1}, {"b": {}}, {"b": {"x": "y"}, "kind": 5}])),
    )
    body = row.SerializeToString(deterministic=True)
    require_same(RICH_SCHEMA, PROTO3 + RICH, [FIRST + body, FIRST + data.draw(damaged(body))])


def test_a_row() -> None:
    row = RICH_SCHEMA.message()(id=1, a=0, at={"seconds": 1, "nanos": 5000}, kind=9, kinds=[5])
    [decoded] = rows_of(RICH_DECODER, FIRST + row.SerializeToString()).to_pylist()
    assert (decoded["id"], decoded["name"], decoded["a"], decoded["b"]) == (1, None, 0, None)
    assert (decoded["kind"], decoded["kinds"], decoded["parts"]) == ("9", ["B"], [])
    assert decoded["at"].timestamp() == 1.000005


@pytest.mark.parametrize(
    "body",
    [
        b"\xf8\x07\1",  # a field that the schema does not have
        b"\x08\1\x08\2",
        b"\x08\0",
        b"\x20\1\x2a\0",  # both members of a oneof
        b"\x1a\2\x10\5",  # nanoseconds
    ],
)
def test_what_ptars_does_not_notice(body: bytes) -> None:
    """Protobuf's own classes read the batch."""
    good = FIRST + b"\x08\1"
    assert require_same(RICH_SCHEMA, PROTO3 + RICH, [FIRST + body]) == 1
    assert rows_of(RICH_DECODER, good, FIRST + body)["id"].to_pylist()[0] == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessageDecoder, "run", refuse_all)
        with pytest.raises(ArrowFallback):
            rows_of(RICH_DECODER, good, FIRST + body)


@pytest.mark.parametrize(
    "body",
    [
        b"\x08",
        b"\x0d\1\0\0\0",  # another wire type
        b"\x12\1\xff",
        b"\x1a\x09\x08\xff\xff\xff\xff\xff\xff\x7f",
        RICH_SCHEMA.message()(at={"seconds": 253_402_300_800}).SerializeToString(),
        RICH_SCHEMA.message()(at={"seconds": -62_135_596_801}).SerializeToString(),
    ],
)
def test_what_spark_must_see(body: bytes) -> None:
    with pytest.raises(ArrowFallback):
        rows_of(RICH_DECODER, FIRST + b"\x08\1", FIRST + body)


OLDER = (
    "message Row { required int32 id = 1; optional string name = 2 [default = 'x']; "
    "map<string, Kind> kinds = 3; enum Kind { A = 0; B = 2; } optional In part = 4; "
    "message In { required bool ok = 1; } map<int32, In> parts = 5; optional Kind kind = 6; "
    "extensions 100 to 200; }"
)
OLDER_SCHEMA = Schema(OLDER, syntax="proto2")
OLDER_DECODER = decoder_of(f'syntax = "proto2"; {OLDER}')


def test_proto2_has_presence() -> None:
    """Defaults of the schema are not used, and extensions are not read."""
    row = OLDER_SCHEMA.message()
    values = [
        row(id=0),
        row(id=1, name="", kinds={"": 0, "b": 2}, part={"ok": False}, parts={0: {"ok": True}}),
    ]
    sent = [FIRST + value.SerializeToString() for value in values]
    extended = sent[0] + b"\xa0\6\1"
    decoded = rows_of(OLDER_DECODER, *sent, extended).select(
        ["id", "name", "kinds", "part", "parts"]
    )
    first, second, third = decoded.to_pylist(maps_as_pydicts="strict")
    assert first == {"id": 0, "name": None, "kinds": {}, "part": None, "parts": {}} == third
    assert second["name"] == "" and second["kinds"] == {"": "A", "b": "B"}
    assert second["part"] == {"ok": False} and second["parts"] == {0: {"ok": True}}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "lacks a required field"),
        (b"\x08\1\x22\0", "lacks a required field"),
        (b"\x08\1\x2a\4\x08\1\x12\0", "lacks a required field"),
        (b"\x08\1\x30\7", "a number that its enum does not have"),
        (b"\x08\1\x12\1\xff", "utf8|UTF-8"),
    ],
)
def test_bad_messages_of_proto2(body: bytes, reason: str) -> None:
    """Spark names the reason."""
    (row,), (problem,) = OLDER_SCHEMA.decode(FIRST + body)
    assert row is None and problem is not None and re.search(reason, problem)
    with pytest.raises(ArrowFallback):
        rows_of(OLDER_DECODER, FIRST + b"\x08\1", FIRST + body)


MAPS = (
    "message Row { map<int32, string> m = 1; map<uint64, In> n = 2; message In { int32 a = 1; } }"
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\x0a\5\x08\0\x12\1a", [(0, "a")]),
        (b"\x0a\0", [(0, "")]),
        (b"\x0a\2\x08\1", [(1, "")]),
        (b"\x0a\4\x08\1\x12\0\x0a\5\x08\1\x12\1b", [(1, "b")]),
    ],
)
def test_entries_of_maps(body: bytes, expected: list[Any]) -> None:
    """Also those without a key or a value, and those whose key comes twice."""
    assert require_same(Schema(MAPS), PROTO3 + MAPS, [FIRST + body]) == 1
    [row] = rows_of(decoder_of(PROTO3 + MAPS), FIRST + body).to_pylist()
    assert row["m"] == expected


def test_the_message_index() -> None:
    text = (
        PROTO3
        + "message Out { message In { int32 id = 1; } int32 a = 1; } message B { bool c = 1; }"
    )
    decoder = decoder_of(text, message="Out.In")
    assert rows_of(decoder, HEADER + b"\4\0\0\x08\1")["id"].to_pylist() == [1]
    for index in (b"", b"\0", b"\2\2", b"\4\0", b"\4\0\2", b"\4\0\0\xff"):
        with pytest.raises(ArrowFallback):
            rows_of(decoder, HEADER + index)


FILE = "message A { int32 a = 1; } message B { int32 b = 1; message C { int32 c = 1; } }"
# The messages of the file by their indexes, of which the first one may be short.
INDEXES = {b"\0": "A", b"\2\0": "A", b"\2\2": "B", b"\4\2\0": "B.C"}


@given(st.lists(st.sampled_from(sorted(INDEXES)), min_size=1), st.sampled_from(["A", "B", "B.C"]))
@settings(max_examples=60)
def test_other_messages_of_a_file_are_skipped(indexes: list[bytes], record: str) -> None:
    """Here as by workers; the first message in full is left to them."""
    values = [HEADER + index + b"\x08" + bytes([n + 1]) for n, index in enumerate(indexes)]
    expected = [n for n, index in enumerate(indexes) if INDEXES[index] == record]
    layout = Schema(FILE, record=record)
    rows, problems, others = layout.decode_all(*values)
    assert not any(problems)
    assert [n for n, is_other in enumerate(others) if not is_other] == expected
    assert [row for row in rows if row] == [{record[-1].lower(): n + 1} for n in expected]
    decoder, skipped = decoder_of(PROTO3 + FILE, record=record), list[int]()
    assert decoder is not None
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": range(len(values))})
    name = decoder.columns.names[0]
    try:
        decoded = [*decoder.decode([batch], {name: name}, skipped.append)]
    except ArrowFallback:
        assert b"\2\0" in indexes
        return
    read = [(row[name], row[MINOR]) for part in decoded for row in part.to_pylist()]
    assert read == [(n + 1, n) for n in expected]
    assert sum(skipped) == len(values) - len(read)


def test_an_index_that_the_file_does_not_have() -> None:
    """It is no record type that could be skipped."""
    _, (problem,), (is_other,) = Schema(FILE, record="A").decode_all(HEADER + b"\2\x0e\x08\1")
    assert problem is not None and "has the message index [7]" in problem and not is_other
    with pytest.raises(ArrowFallback):
        rows_of(decoder_of(PROTO3 + FILE, record="A"), HEADER + b"\2\x0e\x08\1")


def test_changes_of_debezium() -> None:
    text = "message Row { Value before = 1; Value after = 2; string op = 3; message Value { int32 id = 1; } }"
    row_type = Schema(text).message()
    changes = [{"op": "c", "after": {"id": 1}}, {"op": "m"}, {"op": "d", "before": {"id": 2}}]
    values = [FIRST + row_type(**change).SerializeToString() for change in changes]
    decoder = decoder_of(PROTO3 + text, name="debezium")
    rows = rows_of(decoder, *values).select(["id", MINOR, ROW_DELETED]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, 0, False), (2, 2, True)]
    with pytest.raises(ArrowFallback):
        rows_of(decoder, *values, FIRST + row_type(op="t").SerializeToString())


def test_columns_of_the_definition() -> None:
    columns = t.StructType([t.StructField("ID", t.LongType()), t.StructField("x", t.StringType())])
    text = PROTO3 + "message Row { int32 id = 1; bool y = 2; }"
    decoded = rows_of(decoder_of(text, columns), FIRST + b"\x08\1").select(["ID", "x"])
    assert decoded.to_pylist() == [{"ID": 1, "x": None}]
    narrow = t.StructType([t.StructField("id", t.ShortType())])
    assert decoder_of(text, narrow) is None


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        (
            f'{PROTO3}import "google/protobuf/wrappers.proto"; '
            "message Row { google.protobuf.Int32Value a = 1; google.protobuf.Int32Value b = 2; }",
            {"a": {"value": 5}},
            {"a": 5, "b": None},
        ),
        (
            f'{PROTO3}import "google/protobuf/struct.proto"; '
            "message Row { repeated google.protobuf.Value a = 1; }",
            {"a": [{"number_value": 1}]},
            {"a": ["1"]},
        ),
        (
            f"{PROTO3}message Row {{ Empty e = 1; int32 a = 2; message Empty {{}} }}",
            {"a": 1},
            {"a": 1},
        ),
        (
            'syntax = "proto2"; message Row { optional group G = 1 { optional int32 a = 2; } }',
            {"g": {"a": 1}},
            {"g": {"a": 1}},
        ),
        ('syntax = "proto2"; message Row { repeated int32 a = 1; }', {"a": [1, 2]}, {"a": [1, 2]}),
    ],
)
def test_types_that_classes_read(
    text: str, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    syntax, _, rest = text.partition(";")
    body = Schema(rest, syntax=syntax.split('"')[1]).message()(**fields).SerializeToString()
    decoder = decoder_of(text)
    [row] = rows_of(decoder, FIRST + body).select(list(expected)).to_pylist()
    assert row == expected
    with pytest.raises(ArrowFallback):
        rows_of(decoder, FIRST + b"\x0b")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ptars", None)
    decoder = decoder_of(PROTO3 + "message Row { int32 id = 1; }")
    assert rows_of(decoder, FIRST + b"\x08\1")["id"].to_pylist() == [1]


def test_without_schemas() -> None:
    no_schemas = message_schemas([], Envelope("protobuf", "", encoding="protobuf"), None)
    assert protobuf_decoder(no_schemas) is None
