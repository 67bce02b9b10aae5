"""Pieces of Parquet files as changes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, UUIDType

from dbt.adapters.iceberg_stream.stream.sources.iceberg.file_rows import (
    CHANGE_TYPE,
    PIECE,
    FileRows,
    Unreadable,
)
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema


def field(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


STORED = pa.schema([field(1, "id", pa.int32()), field(2, "old", pa.string())])
NOW = pa.schema(
    [field(2, "new", pa.string()), field(1, "id", pa.int64()), field(3, "u", pa.uuid())]
)
OUTPUT = pa.schema(
    [
        ("new", pa.string()),
        ("id", pa.int64()),
        ("u", pa.string()),
        ("__stream", CHANGE_TYPE),
        ("__snapshot", pa.int64()),
    ]
)


def read(
    path: Path,
    now: pa.Schema = NOW,
    output: pa.Schema = OUTPUT,
    **fields: Any,
) -> list[dict[str, Any]]:
    piece = {"location": str(path), "path": str(path), "deleted": False, "major": 7, "minor": 1}
    piece |= {"positions": [], "takes": False, "only_keys": False, "snapshot": 9} | fields
    reader = FileRows(fs.LocalFileSystem(), now, output)
    batches = reader.run([pa.RecordBatch.from_pylist([piece], PIECE)])
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "f.parquet"
    rows = pa.table([range(6), list("abcdef")], schema=STORED)
    pq.write_table(rows, path, row_group_size=2)
    return path


def test_columns_are_those_of_now(path: Path) -> None:
    (row,) = read(path, positions=[0, 1, 2, 4, 5])
    change = {"major": 7, "minor": 4, "deleted": False, "truncated": False}
    assert row == {"new": "d", "id": 3, "u": None, "__stream": change, "__snapshot": 9}


@pytest.mark.parametrize("positions", [[0], [1, 4], [5, 2], [], list(range(6))])
def test_positions(path: Path, positions: list[int]) -> None:
    deleted = read(path, positions=positions, takes=True, deleted=True)
    assert sorted(row["id"] for row in deleted) == sorted(positions)
    assert {row["__stream"]["minor"] for row in deleted} <= {1}
    ids = [row["id"] for row in read(path, positions=positions)]
    assert ids == [number for number in range(6) if number not in positions]


def test_uuids_are_texts_in_spark(tmp_path: Path) -> None:
    value = uuid.uuid4()
    stored = pa.schema([field(3, "u", pa.uuid())])
    rows = pa.table([pa.array([value.bytes, None], pa.uuid())], schema=stored)
    pq.write_table(rows, tmp_path / "u.parquet")
    assert [row["u"] for row in read(tmp_path / "u.parquet")] == [str(value), None]


def test_a_file_that_is_older_than_a_column_with_a_default(path: Path) -> None:
    value = uuid.UUID(int=5)
    columns = [
        NestedField(2, "new", StringType(), required=False, initial_default="x"),
        NestedField(1, "id", LongType(), required=False),
        NestedField(3, "u", UUIDType(), required=False, initial_default=value),
    ]
    now = file_schema(Schema(*columns))
    assert {row["u"] for row in read(path, now)} == {str(value)}
    assert {row["u"] for row in read(path, now, deleted=True)} == {str(value)}
    assert {row["u"] for row in read(path, now, deleted=True, only_keys=True)} == {None}
    assert {row["new"] for row in read(path, now)} == set("abcdef")


def test_what_cannot_be_read(path: Path, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="is gone"):
        read(tmp_path / "none.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "plain.parquet")
    with pytest.raises(Unreadable, match="no field ids"):
        read(tmp_path / "plain.parquet")
    now = pa.schema([field(2, "new", pa.struct([field(5, "a", pa.string())]))])
    with pytest.raises(Unreadable, match="The column `new` is string, but the table has struct"):
        read(path, now=now)


@pytest.mark.parametrize(("begin", "end"), [(0, 6), (1, 2), (1, 5), (2, 4), (5, 6), (3, None)])
def test_a_range(path: Path, begin: int, end: int | None) -> None:
    """Rows keep their places; deleted ones are left out."""
    rows = read(path, begin=begin, end=end, positions=[1, 4])
    expected = [n for n in range(begin, 6 if end is None else end) if n not in (1, 4)]
    assert [row["id"] for row in rows] == expected
    assert [row["__stream"]["minor"] for row in rows] == [n + 1 for n in expected]


def test_nested_columns_are_matched_by_their_ids(tmp_path: Path) -> None:
    """Writers encode names, fields are renamed and widened since, elements have any name."""

    def column(names: list[str], number: pa.DataType, element: str) -> pa.Field:
        fields = [field(5 + i, name, number) for i, name in enumerate(names)]
        structs = pa.map_(
            field(3, "key", pa.string()).with_nullable(False), field(4, "value", pa.struct(fields))
        )
        return field(2, "new", pa.list_(field(7, element, structs)))

    stored = pa.schema([column(["y_x2Ez", "b"], pa.int32(), "item")])
    rows = [{"new": [[("k", {"y_x2Ez": 1, "b": 2}), ("l", None)], []]}, {"new": None}, {"new": []}]
    path = tmp_path / "nested.parquet"
    pq.write_table(pa.Table.from_pylist(rows, stored), path)
    now = pa.schema([column(["b", "y.z"], pa.int64(), "element")])
    output = pa.schema([now.field("new"), *list(OUTPUT)[-2:]])
    actual = read(path, now=now, output=output)
    assert [row["new"] for row in actual] == [
        [[("k", {"b": 1, "y.z": 2}), ("l", None)], []],
        None,
        [],
    ]
