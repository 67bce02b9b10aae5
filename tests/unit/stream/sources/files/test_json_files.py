"""Lines of files in JSON: each is a record, or a list of records."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pytest

from dbt.adapters.iceberg_stream.stream.sources.files import json_files
from dbt.adapters.iceberg_stream.stream.sources.files.definition import files_source
from dbt.adapters.iceberg_stream.stream.sources.files.json_files import JsonFilesSource, are_lines
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR

COLUMNS = pa.schema([("id", pa.int64()), ("x", pa.float64())])


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JsonFilesSource:
    monkeypatch.setattr(Envelope, "declared", lambda *_: COLUMNS)
    spec = {"path": f"file://{tmp_path}", "columns": "id bigint, x double"}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path), ["id"])
    assert isinstance(source, JsonFilesSource)
    return source


def read(source: JsonFilesSource) -> tuple[list[Any], list[tuple[int, str, str]]]:
    """The ids and orders of rows, and the lines and texts of bad records, with the reasons."""
    session: Any = SimpleNamespace(spark=None, setting=lambda _: "UTC")
    upper = source.plan_batch(None, 1000)
    assert upper is not None
    rows: list[Any] = []
    bad: list[tuple[int, str, str]] = []
    for records in source.decode(session, None, upper):
        rows += [(r["id"], r[MAJOR], r[MINOR]) for r in records.rows.to_pylist()]
        bad += [(int(b.place.rpartition(" ")[2]), b.record, b.reason) for b in records.bad]
        assert records.rows.schema.names == [*COLUMNS.names, MAJOR, MINOR]
    assert len({(major, minor) for _, major, minor in rows}) == len(rows)
    return rows, bad


TEXT = (
    b'{"id": 1}\n\n  \r\n{"id": 2}\r\n[{"id": 3}, {"id": 4}]\n[]\nbad\n{"x": 1}\n'
    b'[{"id": 5}, {"id": "x"}]\n[1\n{"id": 6}'
)
NO_RECORD = "does not fit the source's `columns`"


@pytest.mark.parametrize("block", [1, 2, 7, 64, 1 << 20])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_lines(
    source: JsonFilesSource, tmp_path: Path, block: int, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "BLOCK_BYTES", block)
    (tmp_path / "a.json").write_bytes(TEXT + end)
    rows, bad = read(source)
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row[2] for row in rows] == sorted(row[2] for row in rows)
    assert bad == [
        (7, "bad", NO_RECORD),
        (8, '{"x": 1}', "lacks the key `id`"),
        (9, '{"id": "x"}', f"has a value in `id` that {NO_RECORD}"),
        (10, "[1", NO_RECORD),
    ]


def test_records_in_lists_are_as_alone(source: JsonFilesSource, tmp_path: Path) -> None:
    """Also with what is no JSON, but often written."""
    texts = [b'{"id": 1, "x": NaN}', b'{"id": 2, "x": -Infinity, "more": "]"}', b'{"id": 3}']
    for whole in (b"\n".join(texts), b"[" + b", ".join(texts) + b"]"):
        (tmp_path / "a.json").write_bytes(whole)
        rows, bad = read(source)
        assert ([row[0] for row in rows], bad) == ([1, 2, 3], [])


@pytest.mark.parametrize("line", [b"[" * 100_000, b'[{"a":' * 100_000, b'["\xff"]', b"\xff", b"{"])
def test_bad_lines(source: JsonFilesSource, tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.json").write_bytes(b'{"id": 1}\n' + line + b'\n{"id": 2}')
    rows, bad = read(source)
    assert [row[0] for row in rows] == [1, 2]
    assert [number for number, *_ in bad] == [2]


def test_files_come_one_after_the_other(source: JsonFilesSource, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.json").write_bytes(b'{"id": 1}\n{"id": 2}')
    rows, _ = read(source)
    assert len(rows) == 4
    assert len({major for _, major, _ in rows}) == 2


def test_other_options_need_spark(tmp_path: Path) -> None:
    assert are_lines({}) and are_lines({"multiLine": "False"})
    assert not are_lines({"multiLine": "true"}) and not are_lines({"encoding": "UTF-16"})
    spec = {"path": f"file://{tmp_path}", "columns": "id int", "options": {"allowComments": "true"}}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path))
    assert not isinstance(source, JsonFilesSource)
