"""Memory of a stream, as its changes and its commits grow."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import uuid
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result
from dbt.adapters.iceberg_stream.engines.embedded import status, stop

from .data import upserts, write_files
from .rig import BY_SPARK, PICKS, Rig

KEYS = 100_000
FEW, MANY = 1_000_000, 50_000_000
SECOND, NEVER = 1.0, 1e9
# So that the fewer changes are several batches, too; of files these are three times as many.
BATCH_ROWS = 100_000
AIM = round(1 / 1.2, 2)


class Peak(NamedTuple):
    """MiB resident at the peak, and before, and of Spark's JVM; and how often was committed."""

    peak: float
    idle: float
    jvm: float
    commits: int

    def __str__(self) -> str:
        return (
            f"{self.peak:.0f} MiB ({self.idle:.0f} before; Spark's JVM {self.jvm:.0f}) with "
            f"{self.commits:,} commits"
        )


def memory(bench: Bench) -> list[Result]:
    """Fifty times the changes, with a commit a second and with one in the end."""
    few, many = bench.size(FEW), bench.size(MANY)
    folder = bench.folder / "memory"
    for rows in (few, many):
        write_files(folder / f"source{rows}", upserts(rows, KEYS))
    results = []
    for sql, label in ((PICKS, ""), (BY_SPARK, "_by_spark")):
        base, more, together = (
            _peak(bench, folder, sql, rows, interval)
            for rows, interval in ((few, SECOND), (many, SECOND), (many, NEVER))
        )
        note = (
            "Peak of resident memory of the stream's process. "
            f"{few:,} changes: {base}. {many:,}: {more}. {many:,} in one commit: {together}. "
            "The ratio is the peak of few changes / of many. The aim is at most 1.2 times the "
            "memory."
        )
        changes, commits = f"memory_changes{label}", f"memory_commits{label}"
        results += [
            Result.of(changes, f"{few:,} changes", [more.peak], [base.peak], AIM, note, "MiB"),
            Result.of(commits, "commits a second", [together.peak], [more.peak], AIM, note, "MiB"),
        ]
    return results


def _peak(bench: Bench, folder: Path, sql: str, rows: int, interval: float) -> Peak:
    """Measured in a process of its own, on a JVM of its own."""
    stop(bench.engine)
    given = (str(folder), str(bench.engine), sql, rows, interval)
    code = f"from benchmarks.stream.memory import measure; measure(*{given!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(done.stderr)
    peak = Peak(*json.loads(done.stdout.splitlines()[-1]))
    print(f"  {sql}, {rows:,} changes, a commit after {interval:g} s: {peak}", flush=True)
    return peak


def measure(folder: str, engine: str, sql: str, rows: int, interval: float) -> None:
    """Print the peak of a drain, and what the process took when it had drained a little."""
    first = Path(folder) / "first"
    if not first.exists():
        write_files(first, upserts(1000, 1000))
    rig = Rig(Path(folder) / f"lake{uuid.uuid4().hex[:8]}", Path(engine))
    try:
        rig.drained({"type": "files", "path": str(first), "format": "parquet"}, sql)
        idle = psutil.Process().memory_info().rss
        source = {"type": "files", "path": f"{folder}/source{rows}", "format": "parquet"}
        _, stream = rig.drained(source, sql, commit_interval=interval, batch_rows=BATCH_ROWS)
        assert stream.tables[0].status.changes == rows
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        commits = stream.tables[0].status.commits
        print(json.dumps([peak / 2**20, idle / 2**20, _jvm_peak(Path(engine)), commits]))
    finally:
        rig.close()


def _jvm_peak(engine: Path) -> float:
    """MiB resident at the peak of the engine's JVM, as Linux tells."""
    server = status(engine)
    assert server is not None
    text = Path(f"/proc/{server.jvm.pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024
