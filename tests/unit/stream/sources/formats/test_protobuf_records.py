"""Messages of Protobuf as columns, compared with what Protobuf itself decodes."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.stream.sources.formats.protobuf_rows import (
    HEADER,
    ID,
    UTC,
    Schema,
    messages,
    schemas,
)


def test_fields_without_presence_have_their_default() -> None:
    text = (
        "enum K { A = 0; } message Row { message In { int32 x = 1; } int32 a = 1; string b = 2; "
        "optional int32 c = 3; In d = 4; oneof o { int32 e = 5; string f = 6; } K g = 7; "
        "repeated int32 h = 8; map<string, In> i = 9; bytes j = 10; }"
    )
    schema = Schema(text)
    empty = {"a": 0, "b": "", "c": None, "d": None, "e": None, "f": None, "g": "A"}
    assert schema.row() == {**empty, "h": [], "i": {}, "j": b""}
    row = schema.row(c=0, d={}, e=0, i={"k": {"x": 1}, "l": {}})
    present = {"c": 0, "d": {"x": 0}, "e": 0, "i": {"k": {"x": 1}, "l": {"x": 0}}}
    assert row == {**empty, **present, "h": [], "j": b""}


def test_well_known_types() -> None:
    meta = '[(confluent.field_meta) = {params: [{key: "precision", value: "5"}, {key: "scale", value: "2"}]}]'
    imports = "".join(
        f'import "{name}.proto"; '
        for name in ("google/protobuf/timestamp", "google/protobuf/wrappers")
        + ("google/protobuf/struct", "confluent/meta", "confluent/type/decimal")
    )
    schema = Schema(
        f"{imports} message Row {{ google.protobuf.Timestamp at = 1; "
        "google.protobuf.Int32Value a = 2; google.protobuf.StringValue b = 3; "
        f"confluent.type.Decimal d = 4 {meta}; google.protobuf.Struct j = 5; "
        "repeated google.protobuf.Timestamp times = 6; }"
    )
    assert schema.row(a={}, d={"value": b"\xff", "scale": 1}) == {
        "at": None,
        "a": 0,
        "b": None,
        "d": Decimal("-0.10"),
        "j": None,
        "times": [],
    }
    row = schema.row(
        at={"seconds": -1, "nanos": 999_999_999},
        j={"a": [1, 0.5, None, {"b": "é"}, True]},
        times=[{"seconds": 1}],
    )
    assert row["at"] == datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
    assert row["j"] == '{"a": [1, 0.5, null, {"b": "é"}, true]}'
    assert row["times"] == [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]
    row_type = schema.message()
    bad = (
        row_type(at={"seconds": 2**60}),
        row_type(d={"value": b"\x7f\xff\xff", "scale": 1}),
        row_type(d={"value": b"\1", "scale": 3}),
    )
    good = row_type(a={"value": 3})
    messages = [HEADER + b"\0" + m.SerializeToString() for m in (*bad, good)]
    rows, problems = schema.decode(*messages)
    assert [row and row["a"] for row in rows] == [None, None, None, 3]
    words = f"has the schema {ID} and a value that no column can take: "
    assert all(problem and problem.startswith(words) for problem in problems[:3])
    assert problems[3] is None


def test_enums_and_texts_of_proto2() -> None:
    text = (
        "enum K { A = 1; B = 2; } message Row { required int32 id = 1; optional K k = 2; "
        "optional string s = 3 [default = 'x']; optional group G = 4 { optional int32 y = 5; } }"
    )
    schema = Schema(text, syntax="proto2")
    assert schema.row(id=1, k=2, g={"y": 3}) == {"id": 1, "k": "B", "s": None, "g": {"y": 3}}
    rows, problems = schema.decode(
        HEADER + b"\0", HEADER + b"\0\x08\1\x1a\1\xff", HEADER + b"\0\x08\1\x1a\2\xc3\xa9"
    )
    assert [row and row["s"] for row in rows] == [None, None, "é"]
    assert problems[0] == f"lacks a required field of its schema {ID}"
    assert str(problems[1]).startswith(f"has the schema {ID} and a value that no column can take")


def test_a_number_that_an_enum_does_not_have_is_text() -> None:
    schema = Schema("enum K { A = 0; } message Row { K k = 1; }")
    assert schema.row(k=5) == {"k": "5"}


def test_a_required_field_within_a_map() -> None:
    text = "message Row { map<string, N> m = 1; } message N { required int32 id = 1; }"
    schema = Schema(text, syntax="proto2")
    assert schema.row(m={"k": {"id": 1}}) == {"m": {"k": {"id": 1}}}
    # The value of the key `k` is an empty message.
    _, problems = schema.decode(HEADER + b"\0\x0a\5\x0a\1k\x12\0")
    assert problems == [f"lacks a required field of its schema {ID}"]


def test_decimals_that_pyarrow_would_crash_on() -> None:
    schema = Schema(
        'import "confluent/meta.proto"; import "confluent/type/decimal.proto"; message Row { '
        "confluent.type.Decimal d = 1 [(confluent.field_meta) = {params: "
        '[{key: "precision", value: "5"}, {key: "scale", value: "2"}]}]; }'
    )
    row = schema.message()
    messages = [
        HEADER + b"\0" + row(d={"value": value, "scale": scale}).SerializeToString()
        for value, scale in ((b"\1", 2**31 - 1), (b"", -(2**31)), (b"\1" * 1000, 0), (b"\1", 2))
    ]
    rows, problems = schema.decode(*messages)
    assert rows == [None, None, None, {"d": Decimal("0.01")}]
    assert [problem is None for problem in problems] == [False, False, False, True]


def test_fields_with_names_of_methods() -> None:
    schema = Schema(
        "message Row { optional int32 HasField = 1; int32 IsInitialized = 2; "
        "optional int32 SerializeToString = 3; optional Row2 DESCRIPTOR = 4; } "
        "message Row2 { int32 WhichOneof = 1; }"
    )
    rows, problems = schema.decode(HEADER + b"\0\x08\1\x10\2\x22\2\x08\3")
    assert problems == [None]
    assert rows == [
        {
            "HasField": 1,
            "IsInitialized": 2,
            "SerializeToString": None,
            "DESCRIPTOR": {"WhichOneof": 3},
        }
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [(b"\x0a\1a", "i"), (b"\x18\5", "k"), (b"\x22\2\x0a\0", "i")],
    ids=["wire type", "enum", "within"],
)
def test_fields_that_protobuf_would_leave_out(body: bytes, field: str) -> None:
    text = (
        "enum K { A = 1; } message Row { optional int32 i = 1; optional string s = 2; "
        "optional K k = 3; optional Row2 r = 4; } message Row2 { optional int32 i = 1; }"
    )
    schema = Schema(text, syntax="proto2")
    rows, (problem,) = schema.decode(HEADER + b"\0" + body)
    assert rows == [None]
    assert problem is not None and f"its field `{field}` has another wire type" in problem


def test_fields_of_newer_producers_are_left_out() -> None:
    schema = Schema("message Row { int32 i = 1; }")
    rows, problems = schema.decode(HEADER + b"\0\x08\1\x78\2")
    assert (rows, problems) == ([{"i": 1}], [None])


def test_messages_of_unknown_schemas() -> None:
    schema = Schema("message Row { int32 a = 1; }")
    other = b"\0" + (ID + 1).to_bytes(4, "big") + b"\0\x08"
    rows, problems = schema.decode(other, HEADER + b"\0\x08\1")
    assert rows == [None, {"a": 1}]
    assert problems == [f"has the schema id {ID + 1}, which the registry does not have", None]


def expected(message: Any) -> Any:
    """Return what Protobuf itself decodes."""
    row = {}
    for field in message.DESCRIPTOR.fields:
        value, kind = getattr(message, field.name), field
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            kind = field.message_type.fields_by_name["value"]
            row[field.name] = {key: plain(kind, item) for key, item in value.items()}
        elif field.is_repeated:
            row[field.name] = [plain(kind, item) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = plain(kind, value)
    return row


def plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return expected(value)
    return "AB"[value] if field.enum_type is not None else value


@given(st.data())
@settings(max_examples=25)
def test_random_messages_of_random_schemas(data: st.DataObject) -> None:
    syntax = data.draw(st.sampled_from(["proto2", "proto3"]))
    schema = Schema(data.draw(schemas(syntax)), syntax=syntax)
    sent = data.draw(st.lists(messages(schema.message()), min_size=1, max_size=4))
    bodies = [message.SerializeToString() for message in sent]
    rows, problems = schema.decode(*(HEADER + b"\0" + body for body in bodies))
    assert problems == [None] * len(sent)
    assert rows == [expected(message) for message in sent]


NESTED = "message Row { int32 a = 1; string b = 2; repeated In c = 3; message In { bytes d = 1; } }"


@given(st.binary(max_size=12))
def test_random_bytes_are_rows_or_have_a_reason(body: bytes) -> None:
    (row,), (problem,) = Schema(NESTED).decode(HEADER + body)
    assert (row is None) == (problem is not None)
