"""Memory of a stream's process, as its changes and its commits grow."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result

from .data import upserts, write_files
from .rig import Rig

KEYS = 100_000
FEW, MANY = 1_000_000, 50_000_000
SECOND, NEVER = 1.0, 1e9
# So that the fewer changes are several batches, too; of files these are three times as many.
BATCH_ROWS = 100_000
AIM = round(1 / 1.2, 2)


class Peak(NamedTuple):
    """MiB resident at the peak, and before; and how often was committed."""

    peak: float
    idle: float
    commits: int

    def __str__(self) -> str:
        return f"{self.peak:.0f} MiB ({self.idle:.0f} before) with {self.commits:,} commits"


def memory(bench: Bench) -> list[Result]:
    """Fifty times the changes, with a commit a second and with one in the end."""
    few, many = bench.size(FEW), bench.size(MANY)
    folder = bench.folder / "memory"
    for rows in (few, many):
        write_files(folder / f"source{rows}", upserts(rows, KEYS))
    base, more, together = (
        _peak(bench, folder, rows, interval)
        for rows, interval in ((few, SECOND), (many, SECOND), (many, NEVER))
    )
    note = (
        "Peak of resident memory of the stream's process, Spark's JVM apart. "
        f"{few:,} changes: {base}. {many:,}: {more}. {many:,} in one commit: {together}. "
        "The ratio is the peak of few changes / of many, and what stands as seconds is MiB. At "
        "most 1.2 times the memory is the aim."
    )
    peer = f"{few:,} changes"
    return [
        Result.of("memory_changes", peer, [more.peak], [base.peak], AIM, note),
        Result.of("memory_commits", "commits a second", [together.peak], [more.peak], AIM, note),
    ]


def _peak(bench: Bench, folder: Path, rows: int, interval: float) -> Peak:
    """Measured in a process of its own."""
    given = (str(folder), str(bench.engine), rows, interval)
    code = f"from benchmarks.stream.memory import measure; measure(*{given!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(done.stderr)
    found = Peak(*json.loads(done.stdout.splitlines()[-1]))
    print(f"  {rows:,} changes, a commit after {interval:g} s: {found}", flush=True)
    return found


def measure(folder: str, engine: str, rows: int, interval: float) -> None:
    """Print the peak of a drain, and what the process took when it had drained a little."""
    first = Path(folder) / "first"
    if not first.exists():
        write_files(first, upserts(1000, 1000))
    rig = Rig(Path(folder) / f"lake{rows}_{interval:g}", Path(engine))
    try:
        rig.drained({"type": "files", "path": str(first), "format": "parquet"})
        idle = psutil.Process().memory_info().rss
        source = {"type": "files", "path": f"{folder}/source{rows}", "format": "parquet"}
        _, stream = rig.drained(source, commit_interval=interval, batch_rows=BATCH_ROWS)
        assert stream.tables[0].status.changes == rows
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([peak / 2**20, idle / 2**20, stream.tables[0].status.commits]))
    finally:
        rig.close()
