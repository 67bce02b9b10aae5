"""The key index of a large table on disk: how long a look-up takes, and what memory it needs."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result
from dbt.adapters.iceberg_stream.tables.keys.codes import Keys, Mask, encode
from dbt.adapters.iceberg_stream.tables.keys.runs import Entries, Run, RunWriter, merge_runs

KEYS, KEYS_OF_A_FILE, LOOKED_UP = 200_000_000, 2_000_000, 100_000
MERGED = 10
# Coprime to the number of keys, so that each key is there once, in an order that looks random.
STEP = 7_919


def index_200m(bench: Bench) -> list[Result]:
    """Build the run of an index of 200 million keys, and look 100,000 of them up."""
    keys = bench.size(KEYS)
    code = (
        "from benchmarks.stream.key_index import measure; "
        f"measure({str(bench.folder / 'index')!r}, {keys}, {bench.runs(5)})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(done.stderr)
    measured = json.loads(done.stdout)
    note = (
        f"{LOOKED_UP:,} random keys among {keys:,}, an integer each, in one run of "
        f"{measured['bytes'] / 2**30:.1f} GiB that the system caches; sorted and merged in "
        f"{measured['build']:.0f} s."
    )
    seconds, mebibytes = measured["seconds"], [measured["mebibytes"]]
    return [
        Result.of("index_200m", "a limit of 0.5 s", seconds, [0.5] * len(seconds), 1, note),
        Result.of("index_200m_memory", "a limit of 300 MiB", mebibytes, [300.0], 1, note, "MiB"),
    ]


def measure(folder: str, keys: int, runs: int) -> None:
    """Print the seconds of building and of each look-up, and the memory over the idle process."""
    root = Path(folder)
    root.mkdir()
    idle = psutil.Process().memory_info().rss
    begin = time.perf_counter()
    run = _build(root, keys)
    built = time.perf_counter() - begin
    generator = np.random.default_rng(1)
    seconds = []
    for _ in range(runs):
        wanted = generator.integers(0, keys, LOOKED_UP)
        begin = time.perf_counter()
        index, _ = run.find(Entries.of(_encoded(wanted), 0, 0).lookup_keys())
        seconds.append(time.perf_counter() - begin)
        assert len(index) == LOOKED_UP
    size = sum(path.stat().st_size for path in run.folder.iterdir())
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - idle) / 2**20
    print(json.dumps({"build": built, "seconds": seconds, "mebibytes": peak, "bytes": size}))


def _build(root: Path, keys: int) -> Run:
    """Write a sorted run for each file, and merge ten at a time, as an index does."""
    runs = [_write(root, number, keys) for number in range(-(-keys // KEYS_OF_A_FILE))]
    while len(runs) > 1:
        groups = [runs[begin : begin + MERGED] for begin in range(0, len(runs), MERGED)]
        runs = [_merge(root / uuid.uuid4().hex, group) for group in groups]
    return runs[0]


def _write(root: Path, number: int, keys: int) -> Run:
    begin = number * KEYS_OF_A_FILE
    positions = np.arange(begin, min(begin + KEYS_OF_A_FILE, keys), dtype=np.int64)
    writer = RunWriter(root / str(number))
    writer.append(Entries.of(_encoded(positions * STEP % keys), number, 0))
    return writer.close()


def _merge(folder: Path, runs: list[Run]) -> Run:
    merged = merge_runs(runs, folder, _all)
    for run in runs:
        run.remove()
    return merged


def _all(entries: Entries) -> Mask:
    return np.ones(len(entries.rows), np.bool_)


def _encoded(ids: np.ndarray) -> Keys:
    return encode(pa.table({"id": ids}))
