"""Arrow into a table against bare PyArrow writing the same rows to one file."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Measure, Result, alternate
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.flight.serve import TOKEN_VARIABLE
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

ROWS = 2_000_000
BATCH = 50_000
PEER = "pyarrow.parquet.write_table, zstd, one file"


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Eight columns: keys, numbers, texts, a time; the same for each call."""
    random = np.random.default_rng(1)
    for begin in range(0, rows, BATCH):
        count = min(BATCH, rows - begin)
        ids = np.arange(begin, begin + count)
        yield pa.record_batch(
            {
                "id": ids,
                "customer": random.integers(0, 100_000, count),
                "quantity": random.integers(1, 50, count).astype(np.int32),
                "price": random.random(count).round(2),
                "discount": random.random(count),
                "status": pa.array(np.array(["new", "paid", "sent"])[ids % 3]),
                "comment": pa.array([f"order {i % 9973} of customer {i % 997}" for i in ids]),
                "ordered_at": pa.array(ids * 1_000_000, pa.timestamp("us", "UTC")),
            }
        )


def open_catalog(folder: Path) -> IcebergCatalog:
    names = SqliteBackend("lake", folder)
    names.create_namespace("s")
    return IcebergCatalog("lake", names)


def ingest_2m(bench: Bench) -> list[Result]:
    """In this process."""
    lake = open_catalog(bench.folder / "ingest")
    data = pa.Table.from_batches(batches(bench.size(ROWS)))

    def ours() -> float:
        begin = time.perf_counter()
        ingest(lake, ("s", "t"), data.to_reader(), Mode.REPLACE)
        return time.perf_counter() - begin

    note = f"{data.num_rows:,} rows of 8 columns, encoded by as many threads as there are cores."
    return [_against_pyarrow(bench, "ingest_2m", ours, data, note)]


def adbc_ingest_2m(bench: Bench) -> list[Result]:
    """Through `iceberg-stream serve`, by an ADBC client."""
    folder = bench.folder / "adbc"
    data = pa.Table.from_batches(batches(bench.size(ROWS)))
    with _server(folder) as connection, connection.cursor() as cursor:

        def ours() -> float:
            begin = time.perf_counter()
            cursor.adbc_ingest("t", data.to_reader(), mode="replace")
            return time.perf_counter() - begin

        note = f"{data.num_rows:,} rows of 8 columns, sent by another process over loopback."
        return [_against_pyarrow(bench, "adbc_ingest_2m", ours, data, note)]


def _against_pyarrow(bench: Bench, name: str, ours: Measure, data: pa.Table, note: str) -> Result:
    target = bench.folder / "bare.parquet"

    def bare() -> float:
        begin = time.perf_counter()
        pq.write_table(data, target, compression="zstd")
        return time.perf_counter() - begin

    ours()
    bare()
    seconds = alternate({"ours": ours, "bare": bare}, bench.runs(7), lambda: None)
    return Result.of(name, PEER, seconds["ours"], seconds["bare"], 0.8, note)


class _server:
    """A Flight SQL server as a process of its own, and a connection to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lake = open_catalog(folder / "lakehouse")
        profile = {"type": "iceberg_stream", "schema": "s"}
        (folder / "dbt_project.yml").write_text("{name: p, profile: p}")
        profiles = {"p": {"target": "dev", "outputs": {"dev": profile}}}
        (folder / "profiles.yml").write_text(json.dumps(profiles))

    def __enter__(self) -> adbc.Connection:
        command = [sys.executable, "-m", "dbt.adapters.iceberg_stream", "serve"]
        self._process = subprocess.Popen(
            [*command, "--project-dir", str(self._folder)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, TOKEN_VARIABLE: "bench"},
        )
        assert self._process.stdout is not None
        uri = self._process.stdout.readline().split(" at ")[1].strip()
        header = {"adbc.flight.sql.authorization_header": "Bearer bench"}
        return adbc.connect(uri, db_kwargs=header, autocommit=True)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def ingest_memory(bench: Bench) -> list[Result]:
    """Peak of memory over the idle process, for ten times the rows."""
    small, large = bench.size(5_000_000), bench.size(50_000_000)
    peaks = {rows: _peak(bench.folder / f"memory{rows}", rows) for rows in (small, large)}
    note = (
        f"Peak of resident memory over the idle process: {peaks[small] / 2**20:.0f} MiB for "
        f"{small:,} rows, {peaks[large] / 2**20:.0f} MiB for {large:,}. The ratio is small / "
        "large. The aim is at most 1.2 times the memory."
    )
    ours, peer = ([peaks[rows] / 2**20] for rows in (large, small))
    aim = round(1 / 1.2, 2)
    return [Result.of("ingest_memory", f"{small:,} rows", ours, peer, aim, note, "MiB")]


def _peak(folder: Path, rows: int) -> float:
    """Bytes, measured in a process of its own."""
    code = f"from benchmarks.write.ingest import measure; measure({str(folder)!r}, {rows})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(done.stderr)
    return float(done.stdout)


def measure(folder: str, rows: int) -> None:
    """Print how much more memory an ingest took at its peak than the process before."""
    lake = open_catalog(Path(folder))
    schema = next(batches(1)).schema
    # What the first one loads is not the stream's.
    first = pa.RecordBatchReader.from_batches(schema, batches(1000))
    ingest(lake, ("s", "first"), first, Mode.CREATE)
    idle = psutil.Process().memory_info().rss
    data = pa.RecordBatchReader.from_batches(schema, batches(rows))
    done = ingest(lake, ("s", "t"), data, Mode.CREATE)
    assert done.rows == rows
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - idle)
