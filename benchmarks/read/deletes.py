"""Tables with many equality deletes: read by Spark, read once, converted, and written again."""

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
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.compaction.deleted_rows import rewrite_deleted_rows
from dbt.adapters.iceberg_stream.tables.deletes.conversion import (
    convert_equality_deletes,
    stage_conversion,
)
from dbt.adapters.iceberg_stream.tables.files.deletes import write_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

SPARK = "Spark's own reader"
ROWS, DATA_FILES = 5_000_000, 50


class Case:
    """A table of 5,000,000 rows in 50 data files, and equality deletes that apply to all."""

    def __init__(self, bench: Bench, version: int, files: int, keys: int) -> None:
        self.tables, self.rows = Tables(bench), bench.size(ROWS)
        self.version, self.files, self.keys = version, files, keys
        self.name = f"deletes_v{version}_{files}x{keys // 1000}k"
        self.note = (
            f"{self.rows:,} rows in {DATA_FILES} data files, {files:,} equality delete files of "
            f"{keys:,} keys, format version {version}"
        )
        # The last table of each use, and the rows that reading once has left.
        self.last: dict[str, str] = {}
        self.left = 0
        self.create("spark")

    def create(self, use: str) -> str:
        name = _table(self.tables, self.version, self.rows, self.files, self.keys)
        self.last[use] = name
        return name

    def by_spark(self) -> float:
        return read(self.tables.rig.session, f"s.{self.last['spark']}")[0]

    def once(self) -> float:
        # A new table each time: a staged conversion is used again.
        name = self.create("once")
        begin = time.perf_counter()
        snapshot_id = stage_conversion(self.tables.rig.lake, ("s", name), {})
        self.left = _count(self.tables, f"s.{name} version as of {snapshot_id}")
        return time.perf_counter() - begin

    def convert(self) -> float:
        name = self.create("converted")
        begin = time.perf_counter()
        convert_equality_deletes(self.tables.rig.lake, ("s", name), {})
        return time.perf_counter() - begin

    def rewrite(self) -> float:
        """The whole step `convert_deletes`: files that have lost many rows are written again."""
        name = self.create("rewritten")
        begin = time.perf_counter()
        convert_equality_deletes(self.tables.rig.lake, ("s", name), {})
        while rewrite_deleted_rows(self.tables.rig.lake, ("s", name), {}):
            pass
        return time.perf_counter() - begin

    def beside_spark(self, seconds: dict[str, list[float]], aim: float | None) -> Result:
        """Reading once beside Spark's own reader, which must see the same rows."""
        if self.left != _count(self.tables, f"s.{self.last['spark']}"):
            raise BenchmarkError("Reading once gave other rows than Spark's own reader")
        note = f"{self.note}. Once: positions located and written, and the query (count, sum)."
        ours, theirs = seconds["once"], seconds["spark"]
        return Result.of(f"{self.name}_once", SPARK, ours, theirs, aim, note)


def deletes(bench: Bench, version: int, files: int, keys: int) -> list[Result]:
    """Read once, converted, and then read beside a clean table."""
    case = Case(bench, version, files, keys)
    try:
        measures = {
            "once": case.once,
            "convert": case.convert,
            "rewrite": case.rewrite,
            "spark": case.by_spark,
        }
        seconds = alternate(measures, bench.runs(3))
        notes = {
            "convert": "The conversion alone.",
            "rewrite": "The conversion, and files with many deleted rows written again.",
        }
        return [
            case.beside_spark(seconds, 15.0),
            *(
                Result.of(
                    f"{case.name}_{part}",
                    "reading once",
                    seconds[part],
                    seconds["once"],
                    1.0 if part == "convert" else None,
                    f"{case.note}. {note}",
                )
                for part, note in notes.items()
            ),
            *_after(case.tables, case.name, case.last["rewritten"], case.note, bench.runs(READS)),
        ]
    finally:
        case.tables.rig.close()


def fewer_deletes(bench: Bench) -> list[Result]:
    """Where the gain begins: from a few delete files to many."""
    results = []
    for files in (2, 5, 15, 50):
        case = Case(bench, 3, files, 20_000)
        try:
            seconds = alternate({"once": case.once, "spark": case.by_spark}, bench.runs(2))
            results.append(case.beside_spark(seconds, None))
        finally:
            case.tables.rig.close()
    return results


def _after(tables: Tables, name: str, table: str, note: str, runs: int) -> list[Result]:
    """Reads of the table beside those of a clean one."""
    base = tables.rig.lake.load(("s", table))
    assert base is not None
    left = len(live_entries(base.io, base.metadata, ManifestContent.DELETES))
    text = f"{note}. After conversion and rewrite, which leave {left} delete files."
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
