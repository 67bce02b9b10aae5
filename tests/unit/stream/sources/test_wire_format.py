"""The header before messages of schema registries."""

from __future__ import annotations

from dbt.adapters.iceberg_stream.stream.sources.wire_format import json_text


def test_json_with_and_without_a_header() -> None:
    assert json_text(b"\0\0\0\0\7{}") == b"{}"
    assert json_text(b'{"a": 1}') == b'{"a": 1}'
    assert json_text(b"") == b""
