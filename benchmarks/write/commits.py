"""What a commit costs as a table's snapshots grow."""

from __future__ import annotations

import statistics
import time

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.harness import Result
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

from .ingest import open_catalog

NAME = ("s", "t")
SAMPLE = 11


def commits_1000(bench: Bench) -> list[Result]:
    """One small append after the other; the commit alone is timed, loading the table with it."""
    lake = open_catalog(bench.folder / "commits")
    row = pa.table({"id": [1], "name": ["a"]})
    ingest(lake, NAME, row.to_reader(), Mode.CREATE)
    last = bench.size(1000)
    seconds = [_commit(lake, row) for _ in range(last + SAMPLE // 2)]
    few, many = (_around(seconds, n) for n in (min(10, last), last))
    note = (
        f"Commit of one file: median {statistics.median(few) * 1000:.1f} ms around snapshot 10, "
        f"{statistics.median(many) * 1000:.1f} ms around snapshot {last:,}, longest of all "
        f"{max(seconds) * 1000:.0f} ms (small manifests are merged every 100). Aim: at most twice."
    )
    return [Result.of("commits_1000", "the 10th commit", sorted(many), sorted(few), 0.5, note)]


def _commit(lake: IcebergCatalog, row: pa.Table) -> float:
    base = lake.load(NAME)
    assert base is not None
    writer = DataFileWriter(WriteTarget.of(base.metadata, base.io), "insert", f"{time.time_ns()}")
    writer.write(row.to_batches())
    files = writer.close()
    begin = time.perf_counter()
    base = lake.load(NAME)
    assert base is not None
    Committer(lake, NAME, append(*files, properties={}), base).commit()
    return time.perf_counter() - begin


def _around(seconds: list[float], number: int) -> list[float]:
    return seconds[number - SAMPLE // 2 - 1 : number + SAMPLE // 2]
