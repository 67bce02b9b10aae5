"""Messages that ptars reads, as Protobuf's own classes read them."""

from __future__ import annotations

import re
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.stream.sources.formats.avro_rows import damaged
from tests.unit.stream.sources.formats.decoded_messages import outcomes_of, require_bad
from tests.unit.stream.sources.formats.protobuf_rows import (
    FIRST,
    HEADER,
    ID,
    Schema,
    messages,
    schemas,
)
from tests.unit.stream.sources.formats.two_readers import require_same_records, undoubted

RICH = Schema(
    'import "google/protobuf/timestamp.proto"; message Row { int64 id = 1; '
    "optional string name = 2; google.protobuf.Timestamp at = 3; oneof o { int32 a = 4; In b = 5; } "
    "repeated In parts = 6; message In { optional string x = 1; Kind kind = 2; repeated In2 y = 3; } "
    "enum Kind { A = 0; B = 5; } message In2 { uint64 n = 1; } Kind kind = 7; repeated Kind kinds = 8; }"
)
OLDER = Schema(
    "message Row { required int32 id = 1; optional string name = 2 [default = 'x']; "
    "map<string, Kind> kinds = 3; enum Kind { A = 0; B = 2; } optional In part = 4; "
    "message In { required bool ok = 1; } map<int32, In> parts = 5; optional Kind kind = 6; "
    "extensions 100 to 200; }",
    syntax="proto2",
)
MAPS = Schema(
    "message Row { map<int32, string> m = 1; map<uint64, In> n = 2; message In { int32 a = 1; } }"
)


@pytest.mark.parametrize("with_all", [False, True])
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_both_readers_read_the_same(syntax: str, with_all: bool, data: st.DataObject) -> None:
    """ptars reads all that is not damaged, unless it does not read the schema."""
    schema = Schema(data.draw(schemas(syntax, with_all)), syntax=syntax)
    sent = data.draw(st.lists(messages(schema.message()), min_size=1, max_size=4))
    bodies = [message.SerializeToString(deterministic=True) for message in sent]
    spoiled = [data.draw(damaged(body)) for body in bodies]
    alone = [own for body in bodies for own in outcomes_of(schema.decoder, [FIRST + body])]
    assert all(own.rows for own in alone)
    many = [FIRST + body for body in bodies] * 5
    assert outcomes_of(schema.decoder, many) == alone * 5
    if schema.fast is None:
        assert with_all
        return
    # ptars writes no negative zero where zero is the default.
    has_zero = any(": -0" in str(message) for message in sent)
    count = require_same_records(schema.fast, schema.slow, bodies)
    assert count == len(bodies) or has_zero
    require_same_records(schema.fast, schema.slow, [*spoiled, *bodies])


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_damage_is_noticed(data: st.DataObject) -> None:
    row = RICH.message()(
        id=data.draw(st.integers(-5, 5)),
        at={"seconds": data.draw(st.integers(-(2**40), 2**40)), "nanos": 123_456_000},
        parts=[{"x": "a"}, {"y": [{"n": 7}]}],
        kinds=[0, 5, 6],
        **data.draw(st.sampled_from([{}, {"a": 1}, {"b": {}}, {"b": {"x": "y"}, "kind": 5}])),
    )
    body = row.SerializeToString(deterministic=True)
    assert RICH.fast is not None
    require_same_records(RICH.fast, RICH.slow, [body, data.draw(damaged(body)), b"\x08\1"])


def test_a_row() -> None:
    row = RICH.row(id=1, a=0, at={"seconds": 1, "nanos": 5000}, kind=9, kinds=[5])
    assert (row["id"], row["name"], row["a"], row["b"]) == (1, None, 0, None)
    assert (row["kind"], row["kinds"], row["parts"]) == ("9", ["B"], [])
    assert row["at"].timestamp() == 1.000005


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
    """Protobuf's own classes read the message."""
    assert RICH.fast is not None
    good = b"\x08\1"
    assert (undoubted(RICH.fast, [good, body]) or [None])[-1] is None
    assert require_same_records(RICH.fast, RICH.slow, [good, body]) == 1
    rows, problems = RICH.decode(*[FIRST + good] * 6, FIRST + body)
    assert problems == [None] * 7
    assert RICH.decode(FIRST + body) == (rows[-1:], [None])


NO_VALUE = f"has the schema {ID} and a value that no column can take"
NO_PROTOBUF = f"is not Protobuf of its schema {ID}"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x08", NO_PROTOBUF),
        (b"\x0b", NO_PROTOBUF),
        (b"\x0d\1\0\0\0", NO_VALUE),  # another wire type
        (b"\x12\1\xff", NO_PROTOBUF),
        (b"\x1a\x09\x08\xff\xff\xff\xff\xff\xff\x7f", NO_PROTOBUF),
        (RICH.message()(at={"seconds": 253_402_300_800}).SerializeToString(), NO_VALUE),
        (RICH.message()(at={"seconds": -62_135_596_801}).SerializeToString(), NO_VALUE),
    ],
)
def test_bad_messages(body: bytes, reason: str) -> None:
    assert require_bad(RICH.decoder, FIRST + b"\x08\1", FIRST + body).startswith(reason)


def test_proto2_has_presence() -> None:
    """Defaults of the schema are not used, and extensions are not read."""
    row = OLDER.message()
    values = [
        row(id=0),
        row(id=1, name="", kinds={"": 0, "b": 2}, part={"ok": False}, parts={0: {"ok": True}}),
    ]
    sent = [FIRST + value.SerializeToString() for value in values]
    (first, second, third, *more), problems = OLDER.decode(*[*sent, sent[0] + b"\xa0\6\1"] * 2)
    nothing = {"name": None, "kinds": {}, "part": None, "parts": {}, "kind": None}
    assert first == {"id": 0, **nothing} == third
    kinds, parts = {"": "A", "b": "B"}, {0: {"ok": True}}
    full = {"name": "", "kinds": kinds, "part": {"ok": False}, "parts": parts, "kind": None}
    assert second == {"id": 1, **full}
    assert ([first, second, third], problems) == (more, [None] * 6)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "lacks a required field"),
        (b"\x08\1\x22\0", "lacks a required field"),
        (b"\x08\1\x2a\4\x08\1\x12\0", "lacks a required field"),
        (b"\x08\1\x30\7", "a number that its enum does not have"),
        (b"\x08\1\x12\1\xff", "utf8|UTF-?8|UTF8"),
    ],
)
def test_bad_messages_of_proto2(body: bytes, reason: str) -> None:
    assert re.search(reason, require_bad(OLDER.decoder, FIRST + b"\x08\1", FIRST + body))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\x0a\5\x08\0\x12\1a", {0: "a"}),
        (b"\x0a\0", {0: ""}),
        (b"\x0a\2\x08\1", {1: ""}),
        (b"\x0a\4\x08\1\x12\0\x0a\5\x08\1\x12\1b", {1: "b"}),
    ],
)
def test_entries_of_maps(body: bytes, expected: Any) -> None:
    """Also those without a key or a value, and those whose key comes twice."""
    assert MAPS.fast is not None
    require_same_records(MAPS.fast, MAPS.slow, [body, b""])
    for several in ([body], [b""] * 5 + [body]):
        rows, problems = MAPS.decode(*(FIRST + own for own in several))
        assert (rows[-1]["m"], problems[-1]) == (expected, None)


def test_changes_of_debezium() -> None:
    text = "message Row { Value before = 1; Value after = 2; string op = 3; message Value { int32 id = 1; } }"
    schema = Schema(text, name="debezium")
    row_type = schema.message()
    changes = [{"op": "c", "after": {"id": 1}}, {"op": "m"}, {"op": "d", "before": {"id": 2}}]
    changes.append({"op": "t"})
    values = [FIRST + row_type(**change).SerializeToString() for change in changes]
    outcomes = outcomes_of(schema.decoder, values * 2)
    created, deleted = ('{"id": 1}', False, False), ('{"id": 2}', True, False)
    assert [own.rows for own in outcomes] == [(created,), (), (deleted,), ()] * 2
    assert [own.truncates for own in outcomes] == [False, False, False, True] * 2
    assert not any(own.bad for own in outcomes)


def test_columns_of_the_definition() -> None:
    columns = pa.schema([("ID", pa.int64()), ("x", pa.string())])
    text = "message Row { int32 id = 1; bool y = 2; }"
    rows, _ = Schema(text, columns=columns).decode(FIRST + b"\x08\1")
    assert rows == [{"ID": 1, "x": None}]
    narrow = Schema(text, columns=pa.schema([("id", pa.int16())]))
    assert narrow.row(id=-(2**15)) == {"id": -(2**15)}
    bad = FIRST + narrow.message()(id=2**15).SerializeToString()
    reason = require_bad(narrow.decoder, FIRST + b"\x08\1", bad)
    assert (
        reason == f"has the schema {ID}, whose field `id` has a value that its column cannot take"
    )


@pytest.mark.parametrize(
    ("text", "syntax", "fields", "expected"),
    [
        (
            'import "google/protobuf/wrappers.proto"; '
            "message Row { google.protobuf.Int32Value a = 1; google.protobuf.Int32Value b = 2; }",
            "proto3",
            {"a": {"value": 5}},
            {"a": 5, "b": None},
        ),
        (
            'import "google/protobuf/struct.proto"; '
            "message Row { repeated google.protobuf.Value a = 1; }",
            "proto3",
            {"a": [{"number_value": 1}]},
            {"a": ["1"]},
        ),
        (
            "message Row { Empty e = 1; int32 a = 2; message Empty {} }",
            "proto3",
            {"a": 1},
            {"a": 1},
        ),
        (
            "message Row { optional group G = 1 { optional int32 a = 2; } }",
            "proto2",
            {"g": {"a": 1}},
            {"g": {"a": 1}},
        ),
        ("message Row { repeated int32 a = 1; }", "proto2", {"a": [1, 2]}, {"a": [1, 2]}),
    ],
)
def test_types_that_ptars_does_not_read(
    text: str, syntax: str, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    schema = Schema(text, syntax=syntax)
    assert schema.fast is None
    assert schema.row(**fields) == expected
    good = FIRST + schema.message()(**fields).SerializeToString()
    assert require_bad(schema.decoder, good, FIRST + b"\x0b") == NO_PROTOBUF


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ptars", None)
    schema = Schema("message Row { int32 id = 1; }")
    assert schema.fast is None
    assert schema.row(id=1) == {"id": 1}
    assert schema.decode(HEADER + b"\0\x08\1")[0] == [{"id": 1}]
