"""A folder of Parquet files whose columns are not all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.sources.files.source import FilesSource, files_source
from dbt.adapters.iceberg_stream.stream.sources.source import BAD, REASON, WHERE


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


def test_names_that_look_like_patterns(spark: Session, tmp_path: Path) -> None:
    names = ["part1", "part[1]", "a", "a*", "b1", "b{1,2}", "c?", "cc", "d e", "e%20f", "g+h"]
    for number, name in enumerate(names):
        (tmp_path / f"{name}.json").write_text(f'{{"name": "{name}"}}\n')
        os.utime(tmp_path / f"{name}.json", (1_700_000_000 + number,) * 2)
    spec = {"path": f"file://{tmp_path}", "format": "json", "columns": "name string"}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path))
    lower = None
    for name in names:
        # A batch of one file each.
        upper = source.plan_batch(lower, 0)
        assert upper is not None
        rows = source.read(spark.spark, lower, upper).select("name").collect()
        assert [row["name"] for row in rows] == [name]
        lower = upper


def test_records_that_lack_a_key(spark: Session, tmp_path: Path) -> None:
    """One that is null on purpose is allowed; otherwise records are as Spark's reader sees them."""
    lines = [
        '{"id": 1, "x": "a", "day": "31.12.2025"}',
        '{"x": "b"}',
        '{"ID": 2}',
        '{"id": null, "x": "c"}',
        "",
        '[{"id": 3, "x": "d"}, {"x": "e"}]',
        '{"id": "no number"}',
        "{",
    ]
    (tmp_path / "one.json").write_text("\n".join(lines))
    columns = "id int, x string, day date"
    spec = {"path": f"file://{tmp_path}", "columns": columns, "options": {"dateFormat": "d.M.y"}}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path), ["Id"])
    upper = source.plan_batch(None, 1000)
    assert upper is not None
    frame = source.read(spark.spark, None, upper)
    assert frame.columns == source.empty(spark.spark).columns
    sql = (
        f"select id, x, cast(day as string) as day, {BAD}, {REASON} as why, {WHERE} as place from v"
    )
    rows = spark.rows(f"{sql} order by __stream.minor", v=frame).to_pylist()
    no_key, no_record = "lacks the key `id`", "does not fit the source's `columns`"
    assert [row["why"] for row in rows] == [
        *(None, no_key, no_key, None, None, no_key, no_record, no_record)
    ]
    good = [(row["id"], row["x"], row["day"]) for row in rows if row["why"] is None]
    assert good == [(1, "a", "2025-12-31"), (None, "c", None), (3, "d", None)]
    assert rows[1][BAD] == '{"x": "b"}'
    assert all(row["place"].endswith("/one.json") for row in rows)

    plain = files_source(spec, fs.LocalFileSystem(), str(tmp_path)).read(spark.spark, None, upper)
    by_spark = spark.rows(
        "select id, x, cast(day as string) as day from v where __stream_bad is null", v=plain
    )
    seen = [tuple(row.values()) for row in by_spark.to_pylist()]
    assert seen == [good[0], (None, "b", None), (None, None, None), *good[1:], (None, "e", None)]
