"""Which of Debezium's messages PyArrow decodes, and what they become."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.debezium import decode_debezium
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR, ROW_DELETED

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
COLUMNS = {"id": "id", "called": "name"}


def changes(*values: bytes) -> list[dict[str, object]]:
    offsets = pa.array(range(7, 7 + len(values)), pa.int64())
    messages = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": offsets})
    return pa.Table.from_batches(decode_debezium([messages], SCHEMA, COLUMNS)).to_pylist()


def change(number: int | None, name: str | None, offset: int, deleted: bool) -> dict[str, object]:
    return {"id": number, "called": name, MAJOR: 0, MINOR: offset, ROW_DELETED: deleted}


def test_changes_become_rows() -> None:
    decoded = changes(
        b'{"before": null, "after": {"id": 1, "name": "a", "more": [{}]}, "op": "c", "ts_ms": 1}',
        b'{"before": {"id": 1}, "after": {"id": 1, "name": null}, "op": "u", "transaction": {}}',
        b'{"op": "m", "message": {"prefix": "p"}}',
        b'{"before": {"id": 1, "name": "b"}, "after": null, "op": "d", "source": {"lsn": 5}}',
        b'{"before": {"id": 3}, "op": "d", "payload": null}',
        b'{"after": {"name": "z", "id": 2}, "op": "r", "source": {"table": "t", "pos": null}}',
    )
    assert decoded == [
        change(1, "a", 7, False),
        change(1, None, 8, False),
        change(1, "b", 10, True),
        change(3, None, 11, True),
        change(2, "z", 12, False),
    ]


def test_a_header_of_json_schema() -> None:
    assert changes(b'\0\0\0\0\7{"after": {"id": 1}, "op": "c"}') == [change(1, None, 7, False)]


@pytest.mark.parametrize(
    "value",
    [
        b"null",
        b'{"after": {"id": 1}}',
        b'{"after": {"id": 1}, "op": null}',
        b'{"after": {"id": 1}, "op": "x"}',
        b'{"op": "t"}',
        b'{"after": {"id": "1"}, "op": "c"}',
        b'{"after": 1, "op": "c"}',
        b'{"before": {"id": 1.5}, "after": {"id": 1}, "op": "u"}',
        b'{"after": {"id": 1}, "op": "c", "ts_ms": "now"}',
        b'{"after": {"id": 1}, "op": "c", "source": {"lsn": "0/1"}}',
        b'{"after": {"id": 1, "id": 2}, "op": "c"}',
        b'{"schema": {}, "payload": {"after": {"id": 1}, "op": "c"}}',
        b'{"after": {"id": 1}, "op": "c", "payload": {}}',
        b'{"after": {"id": 1}, "op": "c", "payload": "x"}',
        b'{"after": {"name": "\xff"}, "op": "c"}',
        b'{"after": {"id": 1}, "op": "c"',
    ],
)
def test_what_spark_must_see(value: bytes) -> None:
    with pytest.raises(ArrowFallback):
        changes(b'{"after": {"id": 1}, "op": "c"}', value)
