"""What is before a record in a message: which of several types it is of."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.stream.sources.formats.decoded_messages import require_bad
from tests.unit.stream.sources.formats.protobuf_rows import HEADER, ID, Schema


def test_message_indexes() -> None:
    text = "package p; message A { message B { int32 b = 1; } int32 a = 1; } message C { int32 c = 1; }"
    body = b"\x08\5"
    nested, second = Schema(text, "p.A.B"), Schema(text, "p.C")
    assert nested.decode(HEADER + b"\4\0\0" + body) == ([{"b": 5}], [None])
    assert second.decode(HEADER + b"\2\2" + body) == ([{"c": 5}], [None])
    first = Schema(text)
    values = [b"\0" + body, b"\2\0" + body, b"\2\2" + body, b"\2\x0a" + body, b"\2\1" + body]
    values += [b"", b"\x80", b"\x01" + body, b"\xff" * 8, b"\4\0", b"\0\x08"]
    rows, problems = first.decode(*(HEADER + value for value in values))
    assert rows == [{"a": 5}, {"a": 5}, *[None] * 9]
    assert problems[2] == (
        f"is a message `p.C` of its schema {ID} and not `p.A`. Set the source's `record` to the one "
        "to read, and others are skipped"
    )
    assert problems[3] == f"has the message index [5], which its schema {ID} does not have"
    assert problems[4] == f"has the message index [-1], which its schema {ID} does not have"
    assert problems[5:] == [f"is not Protobuf of its schema {ID}"] * 6


def test_a_message_within_another_one() -> None:
    text = "message Out { message In { int32 id = 1; } int32 a = 1; } message B { bool c = 1; }"
    schema, good = Schema(text, message="Out.In"), HEADER + b"\4\0\0\x08\1"
    assert schema.decode(good) == ([{"id": 1}], [None])
    for index, reason in {
        b"": "is not Protobuf of its schema",
        b"\0": "is a message `Out` of its schema 7 and not `Out.In`",
        b"\2\2": "is a message `B` of its schema 7 and not `Out.In`",
        b"\4\0": "is not Protobuf of its schema",
        b"\4\0\2": "has the message index [0, 1], which its schema 7 does not have",
        b"\4\0\0\xff": "is not Protobuf of its schema",
    }.items():
        assert require_bad(schema.decoder, good, HEADER + index).startswith(reason)


FILE = "message A { int32 a = 1; } message B { int32 b = 1; message C { int32 c = 1; } }"
# The messages of the file by their indexes, of which the first one may be short.
INDEXES = {b"\0": "A", b"\2\0": "A", b"\2\2": "B", b"\4\2\0": "B.C"}
SCHEMAS = {record: Schema(FILE, record=record) for record in ("A", "B", "B.C")}


@given(st.lists(st.sampled_from(sorted(INDEXES)), min_size=1), st.sampled_from(["A", "B", "B.C"]))
@settings(max_examples=60, deadline=None)
def test_other_messages_of_a_file_are_skipped(indexes: list[bytes], record: str) -> None:
    values = [HEADER + index + b"\x08" + bytes([n + 1]) for n, index in enumerate(indexes)]
    expected = [n for n, index in enumerate(indexes) if INDEXES[index] == record]
    rows, problems, others = SCHEMAS[record].decode_all(*values)
    assert not any(problems)
    assert [n for n, is_other in enumerate(others) if not is_other] == expected
    assert [row for row in rows if row] == [{record[-1].lower(): n + 1} for n in expected]


def test_an_index_that_the_file_does_not_have() -> None:
    """It is no record type that could be skipped."""
    decoder = SCHEMAS["A"].decoder
    reason = require_bad(decoder, HEADER + b"\0\x08\1", HEADER + b"\2\x0e\x08\1")
    assert reason == f"has the message index [7], which its schema {ID} does not have"
