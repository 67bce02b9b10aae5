"""The header before messages of schema registries."""

from __future__ import annotations

import io

import fastavro
import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import (
    json_text,
    json_values,
    schema_header,
    schema_id,
    schema_ids,
    zigzag_bytes,
)


def test_json_with_and_without_a_header() -> None:
    assert json_text(b"\0\0\0\0\7{}") == b"{}"
    assert json_text(b'{"a": 1}') == b'{"a": 1}'
    assert json_text(b"") == b""


def test_many_texts_with_and_without_a_header() -> None:
    long = [b"\0\0\0\0\7{}", b'{"a": 1}', b"\0\0\0\0\7"]
    for messages in (long, [*long, b"", b"\0"], [b"{}", b"", b'{"a": 1}']):
        values = json_values(pa.array(messages, pa.binary()))
        assert values.to_pylist() == list(map(json_text, messages))


def test_ids_in_headers() -> None:
    assert schema_id(schema_header(2**31)) == 2**31
    assert [schema_id(header) for header in (b"", b"\0\0\0\1", b"\1\0\0\0\1")] == [None] * 3
    messages = [schema_header(7) + b"a", schema_header(7), schema_header(8), b"", b"{}", b"\0"]
    assert schema_ids(pa.array(messages, pa.binary())) == {7, 8}


def test_numbers_are_those_of_avro() -> None:
    for number in (0, 1, 63, 64, 8191, 8192, 2**40):
        written = io.BytesIO()
        fastavro.schemaless_writer(written, "long", number)
        assert zigzag_bytes(number) == written.getvalue()
