"""The header before messages of schema registries."""

from __future__ import annotations

import io

import fastavro

from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import (
    has_header,
    json_text,
    schema_header,
    schema_id,
    zigzag_bytes,
)


def test_json_with_and_without_a_header() -> None:
    assert json_text(b"\0\0\0\0\7{}") == b"{}"
    assert json_text(b'{"a": 1}') == b'{"a": 1}'
    assert json_text(b"") == b""
    assert [has_header(message) for message in (b"", b"{}", b"\0\0\0\0\7{}")] == [
        False,
        False,
        True,
    ]


def test_ids_in_headers() -> None:
    assert schema_id(schema_header(2**31)) == 2**31
    assert [schema_id(header) for header in (b"", b"\0\0\0\1", b"\1\0\0\0\1")] == [None] * 3


def test_numbers_are_those_of_avro() -> None:
    for number in (0, 1, 63, 64, 8191, 8192, 2**40):
        written = io.BytesIO()
        fastavro.schemaless_writer(written, "long", number)
        assert zigzag_bytes(number) == written.getvalue()
