"""The header before messages of schema registries."""

from __future__ import annotations

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.wire_format import json_text, json_values


def test_json_with_and_without_a_header() -> None:
    assert json_text(b"\0\0\0\0\7{}") == b"{}"
    assert json_text(b'{"a": 1}') == b'{"a": 1}'
    assert json_text(b"") == b""


def test_many_texts_with_and_without_a_header() -> None:
    long = [b"\0\0\0\0\7{}", b'{"a": 1}', b"\0\0\0\0\7"]
    for messages in (long, [*long, b"", b"\0"], [b"{}", b"", b'{"a": 1}']):
        values = json_values(pa.array(messages, pa.binary()))
        assert values.to_pylist() == list(map(json_text, messages))
