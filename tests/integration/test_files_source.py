"""Folders of files: names, columns that are not all the same, and what records become."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.sources.files import json_files
from dbt.adapters.iceberg_stream.stream.sources.files.definition import files_source
from dbt.adapters.iceberg_stream.stream.sources.files.source import FilesSource
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import NO_RECORD
from dbt.adapters.iceberg_stream.stream.sources.formats.values import OF_TIME
from dbt.adapters.iceberg_stream.stream.sources.source import (
    BAD,
    MAJOR,
    MINOR,
    WHERE,
    Frontier,
    RecordSource,
)
from tests.integration.message_ways import unfit


def land(folder: Path, name: str, second: int, *columns: str) -> None:
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table({column: [second] for column in columns}), path)
    os.utime(path, (1_700_000_000 + second, 1_700_000_000 + second))


def test_a_late_file_of_other_columns(spark: Session, tmp_path: Path) -> None:
    """A batch that it is not in has the columns of its own files."""
    source = FilesSource(f"file://{tmp_path}", fs.LocalFileSystem(), str(tmp_path), "parquet")
    land(tmp_path, "first", 0, "id")
    lower = source.plan_batch(None, 1000)
    land(tmp_path, "next", 20, "id")
    until = source.present(lower)
    land(tmp_path, "late", 10, "id", "more")

    upper = source.plan_batch(lower, 1000, until)
    assert upper is not None
    assert source.schema_id(lower, upper) == source.schema_id(None)
    assert source.empty(spark.spark, lower, upper).columns == ["id", "__stream"]
    assert source.read(spark.spark, lower, upper).columns == ["id", "__stream"]

    after = source.plan_batch(upper, 1000)
    assert source.schema_id(upper, after) != source.schema_id(lower, upper)
    assert source.empty(spark.spark, upper, after).columns == ["id", "more", "__stream"]


def rows_of(
    spark: Session, source: FilesSource, lower: Frontier | None, upper: Frontier
) -> list[dict[str, Any]]:
    """The good records of a batch, in the order of the changes."""
    if isinstance(source, RecordSource):
        parts = [records.rows for records in source.decode(spark, lower, upper)]
        rows = pa.Table.from_batches(parts).sort_by([(MAJOR, "ascending"), (MINOR, "ascending")])
        return list(rows.drop_columns([MAJOR, MINOR]).to_pylist())
    frame = source.read(spark.spark, lower, upper)
    sql = f"select * except (__stream, {BAD}, {WHERE}) from v where {BAD} is null "
    sql += "order by __stream.major, __stream.minor"
    return list(spark.rows(sql, v=frame).to_pylist())


# Those of JSON lines are read in this process, the others by Spark.
KINDS = [{"format": "json"}, {"format": "json", "options": {"primitivesAsString": "false"}}]


@pytest.mark.parametrize("kind", [*KINDS, {"format": "csv"}])
def test_names_that_look_like_patterns(
    spark: Session, tmp_path: Path, kind: dict[str, Any]
) -> None:
    names = ["part1", "part[1]", "a", "a*", "b1", "b{1,2}", "c?", "cc", "d e", "e%20f", "g+h"]
    for number, name in enumerate(names):
        text = f'{{"name": "{name}"}}' if kind["format"] == "json" else f'"{name}"'
        (tmp_path / f"{name}.any").write_text(f"{text}\n")
        os.utime(tmp_path / f"{name}.any", (1_700_000_000 + number,) * 2)
    spec = {"path": f"file://{tmp_path}", "columns": "name string", **kind}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path))
    lower = None
    for name in names:
        # A batch of one file each.
        upper = source.plan_batch(lower, 0)
        assert upper is not None
        assert rows_of(spark, source, lower, upper) == [{"name": name}]
        lower = upper
    assert lower is not None
    assert rows_of(spark, source, None, lower) == [{"name": name} for name in names]


LINES = [
    '{"id": 1, "x": "a", "day": "2025-12-31"}',
    '{"x": "b"}',
    '{"ID": 2}',
    '{"id": null, "x": "c"}',
    "",
    '[{"id": 3, "x": "d"}, {"x": "e"}]',
    '{"id": "no number"}',
    " \t\r",
    "{",
    '  {"id": 4}\r',
    "[1, {}]",
    "[]",
    '{"id": 5',
]


def test_records_that_lack_a_key(spark: Session, tmp_path: Path) -> None:
    """One that is null on purpose is allowed."""
    (tmp_path / "one.json").write_text("\n".join(LINES), newline="")
    spec = {"path": f"file://{tmp_path}", "columns": "id int, x string, day date"}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path), ["Id"])
    upper = source.plan_batch(None, 1000)
    assert isinstance(source, RecordSource) and upper is not None
    assert source.empty(spark.spark).columns == ["id", "x", "day", "__stream"]
    good = [(row["id"], row["x"], row["day"]) for row in rows_of(spark, source, None, upper)]
    assert good == [
        (1, "a", date(2025, 12, 31)),
        (None, "c", None),
        (3, "d", None),
        (4, None, None),
    ]
    bad = [own for records in source.decode(spark, None, upper) for own in records.bad]
    assert all(own.place.startswith(f"file://{tmp_path}/one.json, line ") for own in bad)
    no_key = "lacks the key `id`"
    assert [(int(own.place.split()[-1]), own.record, own.reason) for own in bad] == [
        (2, LINES[1], no_key),
        (3, LINES[2], no_key),
        (6, '{"x": "e"}', no_key),
        (7, LINES[6], unfit("id")),
        (9, "{", NO_RECORD),
        (11, "1", NO_RECORD),
        (11, "{}", no_key),
        (13, LINES[12], NO_RECORD),
    ]


def test_records_of_a_reader_with_options(spark: Session, tmp_path: Path) -> None:
    """They are as Spark's reader sees them: a key that is missing is null."""
    lines = ['{"id": 1, "x": "a", "day": "31.12.2025"}', '[{"id": 3}, {"x": "e"}]', "{"]
    (tmp_path / "one.json").write_text("\n".join(lines))
    columns = "id int, x string, day date"
    spec = {"path": f"file://{tmp_path}", "columns": columns, "options": {"dateFormat": "d.M.y"}}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path))
    upper = source.plan_batch(None, 1000)
    assert upper is not None
    frame = source.read(spark.spark, None, upper)
    assert frame.columns == source.empty(spark.spark).columns
    rows = [tuple(row.values()) for row in rows_of(spark, source, None, upper)]
    assert rows == [(1, "a", date(2025, 12, 31)), (3, None, None), (None, "e", None)]
    sql = f"select id, x, {BAD}, {WHERE} from v where {BAD} is not null"
    [bad] = spark.rows(sql, v=frame).to_pylist()
    assert bad[BAD] == "{" and bad[WHERE].endswith("/one.json")
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path), ["id"])
    frame = source.read(spark.spark, None, upper)
    assert frame.columns == source.empty(spark.spark).columns
    bad = spark.rows(f"select {BAD} as bad from v where {BAD} is not null order by 1", v=frame)
    assert bad["bad"].to_pylist() == ["{", '{"x":"e"}']
    assert [row["id"] for row in rows_of(spark, source, None, upper)] == [1, 3]


@pytest.mark.timeout(60)
def test_numbers_that_are_not_of_their_columns(spark: Session, tmp_path: Path) -> None:
    """Readers of numbers with any exponent would work on some of these for hours."""
    columns = "id bigint, price decimal(10,2), note string, at timestamp"
    good = [{"id": 1, "price": 1.5, "note": "1e1000000000"}, {"id": 2, "price": 2e1}]
    bad = [('"price": 1e1000000000', unfit("price")), ('"price": "-2E+1000000000"', unfit("price"))]
    bad += [('"at": 1731508712229', OF_TIME), ('"at": [1]', unfit("at"))]
    bad += [(f'"id": {number}', unfit("id")) for number in ("1e1000000000", "1.5", "9" * 1001)]
    lines = [f'{{"note": "{n}", {text}}}' for n, (text, _) in enumerate(bad)]
    (tmp_path / "a.json").write_text("\n".join([*map(json.dumps, good), *lines]))
    spec = {"path": f"file://{tmp_path}", "columns": columns, "options": {"multiLine": "false"}}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path))
    upper = source.plan_batch(None, 1000)
    assert isinstance(source, RecordSource) and upper is not None
    rows = [(row["id"], str(row["price"])) for row in rows_of(spark, source, None, upper)]
    assert rows == [(1, "1.50"), (2, "20.00")]
    found = [own for records in source.decode(spark, None, upper) for own in records.bad]
    assert [(own.record, own.reason) for own in found] == [
        (line, why) for line, (_, why) in zip(lines, bad, strict=True)
    ]


def test_lines_that_are_longer_than_a_block(
    spark: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is read once, in the order of the files, whatever their blocks are."""
    texts = [json.dumps({"id": n, "x": "é" * (n % 40)}, ensure_ascii=False) for n in range(300)]
    for number in range(3):
        lines = texts[100 * number : 100 * (number + 1)]
        (tmp_path / f"{number}.json").write_text("\n\n".join(lines) + "\n" * (number % 2))
    spec = {"path": f"file://{tmp_path}", "columns": "id bigint, x string"}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path))
    upper = source.plan_batch(None, 10**6)
    assert upper is not None
    for size in (7, 64, 2**20):
        monkeypatch.setattr(json_files, "BLOCK_BYTES", size)
        rows = rows_of(spark, source, None, upper)
        assert rows == [json.loads(text) for text in texts]
