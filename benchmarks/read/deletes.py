"""Tables with many equality deletes: read by Spark, read once, and converted."""

from __future__ import annotations

import time
import uuid

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Operation

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result, alternate
from benchmarks.read.upserts import READS, Tables, reads_beside_clean
from benchmarks.stream.tables import read
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.deletes.conversion import (
    convert_equality_deletes,
    stage_conversion,
)
from dbt.adapters.iceberg_stream.tables.files.deletes import write_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.tables.merge.candidates import live_entries

SPARK = "Spark's own reader"
ROWS, DATA_FILES = 5_000_000, 50


def deletes(bench: Bench, version: int, files: int, keys: int) -> list[Result]:
    """A table of 5,000,000 rows in 50 data files, and equality deletes that apply to all."""
    tables, rows = Tables(bench), bench.size(ROWS)
    try:
        measured: dict[str, str] = {}

        def create(use: str) -> str:
            measured[use] = _table(tables, version, rows, files, keys)
            return measured[use]

        def by_spark() -> float:
            return read(tables.rig.session, f"s.{measured['spark']}")[0]

        def once() -> float:
            # A new table each time: a staged conversion is used again.
            name = create("once")
            begin = time.perf_counter()
            snapshot_id = stage_conversion(tables.rig.lake, ("s", name), {})
            measured["rows"] = str(_count(tables, f"s.{name} version as of {snapshot_id}"))
            return time.perf_counter() - begin

        def convert() -> float:
            name = create("converted")
            begin = time.perf_counter()
            convert_equality_deletes(tables.rig.lake, ("s", name), {})
            return time.perf_counter() - begin

        create("spark")
        runs = bench.runs(3)
        seconds = alternate({"once": once, "convert": convert, "spark": by_spark}, runs)
        if int(measured["rows"]) != _count(tables, f"s.{measured['spark']}"):
            raise BenchmarkError("Reading once gave other rows than Spark's own reader")
        name = f"deletes_v{version}_{files}x{keys // 1000}k"
        note = (
            f"{rows:,} rows in {DATA_FILES} data files, {files:,} equality delete files of "
            f"{keys:,} keys, format version {version}"
        )
        reads = f"{note}. Once: positions located and written, and the query (count, sum)."
        return [
            Result.of(f"{name}_once", SPARK, seconds["once"], seconds["spark"], 15.0, reads),
            Result.of(
                f"{name}_convert",
                "reading once",
                seconds["convert"],
                seconds["once"],
                1.0,
                f"{note}. The conversion alone.",
            ),
            *_after(tables, name, measured["converted"], note, bench.runs(READS)),
        ]
    finally:
        tables.rig.close()


def _after(tables: Tables, name: str, table: str, note: str, runs: int) -> list[Result]:
    """Reads of the converted table beside those of a clean one."""
    base = tables.rig.lake.load(("s", table))
    assert base is not None
    left = len(live_entries(base.io, base.metadata, ManifestContent.DELETES))
    text = f"{note}. After the conversion, which leaves {left} delete files."
    return reads_beside_clean(tables, name, table, text, 0.83, runs)


def _table(tables: Tables, version: int, rows: int, files: int, keys: int) -> str:
    name, lake = f"d{uuid.uuid4().hex[:8]}", tables.rig.lake
    random = np.random.default_rng(7)
    ids = np.array_split(random.permutation(rows), DATA_FILES)
    properties = {"format-version": str(version)}
    for number, part in enumerate(ids):
        batch = pa.record_batch({"id": part, "amount": part * 0.5, "note": part.astype(str)})
        mode = Mode.APPEND if number else Mode.CREATE
        data = pa.RecordBatchReader.from_batches(batch.schema, [batch])
        ingest(lake, ("s", name), data, mode, properties=None if number else properties)
    base = lake.load(("s", name))
    assert base is not None
    target = WriteTarget.of(base.metadata, base.io)
    added = [
        AddedFiles(deletes=(write_equality_deletes(target, f"deletes-{number}", part),))
        for number in range(files)
        for part in [pa.table({"id": random.integers(0, rows, keys)})]
    ]
    change = Change(Operation.DELETE, tuple(added))
    Committer(lake, ("s", name), change, base).commit()
    return name


def _count(tables: Tables, relation: str) -> int:
    counted = tables.rig.session.rows(f"select count(*) as n, sum(amount) as s from {relation}")
    return int(counted["n"][0].as_py())
