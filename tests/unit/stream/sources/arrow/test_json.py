"""Which messages PyArrow decodes, and what they become."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.json import decode_messages
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
COLUMNS = {"id": "id", "called": "name"}


def records(*values: bytes) -> pa.Table:
    offsets = pa.array(range(7, 7 + len(values)), pa.int64())
    messages = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": offsets})
    return pa.Table.from_batches(decode_messages([messages], SCHEMA, COLUMNS))


def test_messages_become_rows() -> None:
    decoded = records(b'{"id": 1, "name": "a\\n", "more": {"x": [null]}}', b'{\n"name": null}')
    assert decoded.to_pylist() == [
        {"id": 1, "called": "a\n", MAJOR: 0, MINOR: 7},
        {"id": None, "called": None, MAJOR: 0, MINOR: 8},
    ]


def test_a_string_may_be_json() -> None:
    decoded = records(b'{"id": 1, "name": "{}"}', b'{"name": "[{\\"a\\": {\\"b\\": 1}}]"}')
    assert decoded["called"].to_pylist() == ["{}", '[{"a": {"b": 1}}]']


@pytest.mark.parametrize(
    "values",
    [
        (b"",),
        (b" ",),
        (b"null",),
        (b"1",),
        (b'[{"id": 1}]',),
        (b'{"id": 1',),
        (b'{"id": 1} {"id": 2}', b""),
        (b'{"id": 1} null {"id": 2}',),
        (b'{"id": 1} "more"',),
        (b'{"id": 1', b"}", b'{"id": 2}{"id": 3}'),
        (b'{"name": "a', b'b"}'),
        (b'{"more": {"id": 1}', b'{"id": 2}}'),
        (b'{"id": "1"}',),
        (b'{"id": 1.0}',),
        (b'{"id": 9223372036854775808}',),
        (b'{"id": 1, "id": 2}',),
        (b'{"name": 1}',),
        (b'{"name": {"a": 1}}',),
        (b"{'id': 1}",),
        (b'{"id": 01}',),
        (b'{"amount": 1e400}',),
        (b'{"name": "\xff"}',),
        (b'{"name": "\\ud800"}',),
    ],
)
def test_what_spark_must_see(values: tuple[bytes, ...]) -> None:
    with pytest.raises(ArrowFallback):
        records(b'{"id": 0}', *values)
    with pytest.raises(ArrowFallback):
        records(*values, b'{"id": 0}')
