"""Scattered upserts, written and read right after, against the same rows written once."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result, alternate
from benchmarks.stream.data import changes, write_files
from benchmarks.stream.merges import FILE_SIZE, UPSERTS, Case, base_batches
from benchmarks.stream.rig import PICKS, Rig
from benchmarks.stream.tables import read, shape
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.tables import duckdb_connection

CLEAN = "the same rows written once"
EQUALITY = "the same stream with equality deletes"
# A table that a stream has written may take twice as long as one that was written once.
AIM = 0.5
READS = 7
COMMITS, ROWS_PER_COMMIT, SMALL_TABLE = 200, 1_000, 500_000
SAMPLE = 11
COPIED_AT_ONCE = 2_000_000


class Tables:
    """Tables of one warehouse, read by Spark and by DuckDB."""

    def __init__(self, bench: Bench) -> None:
        self.rig = Rig(bench.folder / f"read_{uuid.uuid4().hex[:8]}", bench.engine)

    def create(self, rows: int, version: int) -> str:
        """Create a table with rows before any upsert; return its name."""
        name = f"t{uuid.uuid4().hex[:8]}"
        data = pa.RecordBatchReader.from_batches(next(base_batches(1)).schema, base_batches(rows))
        properties = {"format-version": str(version), **FILE_SIZE}
        ingest(self.rig.lake, ("s", name), data, Mode.CREATE, properties=properties)
        return name

    def stream(self, name: str, files: Path, **options: object) -> Stream:
        source: dict[str, object] = {"type": "files", "path": str(files), "format": "parquet"}
        # A batch takes one file, however small it is said to be.
        return self.rig.stream(name, source, PICKS, batch_rows=1, commit_interval=0.0, **options)

    def copy(self, name: str) -> str:
        """Write the live rows of a table once."""
        copied = f"{name}_clean"
        schema = next(self.rig.session.stream(f"select * from s.{name} limit 0"))
        data = pa.RecordBatchReader.from_batches(schema, self._batches(name))
        ingest(self.rig.lake, ("s", copied), data, Mode.CREATE, properties=FILE_SIZE)
        return copied

    def _batches(self, name: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table; Spark's server does not hold 20 million in its memory."""
        last = self.rig.session.rows(f"select max(id) as id from s.{name}")["id"][0].as_py()
        for begin in range(0, last + 1, COPIED_AT_ONCE):
            ids = f"id >= {begin} and id < {begin + COPIED_AT_ONCE}"
            _, *batches = self.rig.session.stream(f"select * from s.{name} where {ids}")
            yield from batches

    def spark(self, name: str) -> float:
        return read(self.rig.session, f"s.{name}")[0]

    def duckdb(self, name: str) -> float:
        sql = self._duckdb_sql(name)
        begin = time.perf_counter()
        duckdb_connection().execute(sql).fetchall()
        return time.perf_counter() - begin

    def duckdb_answer(self, name: str) -> tuple[Any, ...]:
        return duckdb_connection().execute(self._duckdb_sql(name)).fetchall()[0]

    def _duckdb_sql(self, name: str) -> str:
        table = self.rig.lake.load(("s", name))
        assert table is not None
        return f"select count(*), sum(amount) from iceberg_scan('{table.location}')"


def upserts(bench: Bench, version: int, per_file: int, rows: int = 5_000_000) -> list[Result]:
    """A million upserts in batches, a commit each, read right after the last one."""
    tables, rows = Tables(bench), bench.size(rows)
    try:
        case = Case.of(tables.rig.folder / "changes", rows, bench.size(UPSERTS), per_file)
        names: dict[str, str] = {}

        def write(encoding: str) -> float:
            names[encoding] = tables.create(rows, version)
            stream = tables.stream(names[encoding], case.files[0].parent, delete_encoding=encoding)
            begin = time.perf_counter()
            stream.drain()
            return time.perf_counter() - begin

        write("auto")
        seconds = alternate({e: partial(write, e) for e in ("auto", "equality")}, bench.runs(3))
        table = names["auto"]
        _check(tables, table, case)
        name = f"upserts_v{version}" + (f"_{rows // 1_000_000}m" if rows > 5_000_000 else "")
        name += "_batches_10k" if per_file == 10_000 else ""
        note = (
            f"{case.upserts:,} scattered upserts of {rows:,} rows in {len(case.files)} batches, a "
            f"commit for each, format version {version}, without `maintain`: "
            f"{shape(tables.rig.session, f's.{table}')}."
        )
        written = f"{note} From the start of the run, its key index built and stored, to its end."
        return [
            Result.of(
                f"{name}_written", EQUALITY, seconds["auto"], seconds["equality"], None, written
            ),
            *reads_beside_clean(tables, name, table, note, AIM, bench.runs(READS)),
        ]
    finally:
        tables.rig.close()


def reads_beside_clean(
    tables: Tables, name: str, table: str, note: str, aim: float, runs: int
) -> list[Result]:
    """Read a table, and the same rows written once, with Spark and DuckDB."""
    clean = tables.copy(table)
    if tables.duckdb_answer(table) != read(tables.rig.session, f"s.{table}")[1]:
        raise BenchmarkError(f"DuckDB and Spark read other rows of s.{table}")
    results = []
    for reader, measure in (("spark", tables.spark), ("duckdb", tables.duckdb)):
        measures = {"ours": partial(measure, table), "clean": partial(measure, clean)}
        for each in measures.values():
            each()
        seconds = alternate(measures, runs)
        results.append(
            Result.of(f"{name}_{reader}", CLEAN, seconds["ours"], seconds["clean"], aim, note)
        )
    return results


def _check(tables: Tables, table: str, case: Case) -> None:
    count = read(tables.rig.session, f"s.{table}")[1]
    if count != case.truth(len(case.files)):
        raise BenchmarkError(f"s.{table} holds {count}, not what the changes come to")


def commits(bench: Bench) -> list[Result]:
    """Small commits into one table: how the later ones compare with the first."""
    tables = Tables(bench)
    try:
        rows, count = bench.size(SMALL_TABLE), bench.size(COMMITS)
        random, folder = np.random.default_rng(5), tables.rig.folder / "small"
        parts = (random.permutation(rows)[:ROWS_PER_COMMIT] for _ in range(count))
        write_files(folder, (changes(ids, 4, n) for n, ids in enumerate(parts)))
        table = tables.create(rows, 3)
        stream = tables.stream(table, folder)
        seconds = _timed_commits(stream)
        few, many = seconds[5 : 5 + SAMPLE], seconds[-SAMPLE:]
        note = (
            f"{count} commits of {ROWS_PER_COMMIT:,} scattered upserts into {rows:,} rows: median "
            f"{statistics.median(few) * 1000:.0f} ms around the 10th, "
            f"{statistics.median(many) * 1000:.0f} ms around the last. Then: "
            f"{shape(tables.rig.session, f's.{table}')}."
        )
        last = Result.of("commits_200", "the 10th commit", sorted(many), sorted(few), 0.77, note)
        return [
            last,
            *reads_beside_clean(tables, "commits_200", table, note, AIM, bench.runs(READS)),
        ]
    finally:
        tables.rig.close()


def _timed_commits(stream: Stream) -> list[float]:
    sink, seconds = stream.tables[0].sink, []
    commit = sink.commit

    def timed(write_id: str, batches: Sequence[Any]) -> Any:
        begin = time.perf_counter()
        committed = commit(write_id, batches)
        seconds.append(time.perf_counter() - begin)
        return committed

    sink.commit = timed  # type: ignore[method-assign]
    stream.drain()
    return seconds
