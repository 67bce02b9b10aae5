"""A stream into a large table, against Spark's MERGE of each batch."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import Bench
from benchmarks.harness import Result, alternate
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

from .data import PER_FILE, changes, write_files
from .merge_peer import COPY_ON_WRITE, MERGE_ON_READ, PEERS, merge_files, properties
from .rig import BY_SPARK, PICKS, Rig
from .tables import check, compact, read, shape

UPSERTS = 1_000_000
# Batches of a run that merges; of more the time is scaled.
MERGED = {MERGE_ON_READ: 10, COPY_ON_WRITE: 3}
# As in the benchmarks of batch merges: ten files for five million rows.
FILE_SIZE = {"write.target-file-size-bytes": str(16 * 1024 * 1024)}


@dataclass
class Case:
    """Scattered upserts of a table's rows, each id at most once, in files of so many rows."""

    rows: int
    upserts: int
    files: list[Path]

    @classmethod
    def of(cls, folder: Path, rows: int, upserts: int, per_file: int) -> Case:
        ids = np.random.default_rng(3).permutation(rows)[:upserts]
        parts = (changes(ids[n : n + per_file], 4, n) for n in range(0, upserts, per_file))
        write_files(folder, parts)
        return cls(rows, upserts, sorted(folder.iterdir()))

    def truth(self, files: int) -> tuple[int, float]:
        """What the table comes to when so many files are in it."""
        amounts = _amounts(self.rows).copy()
        for file in self.files[:files]:
            table = pq.read_table(file)
            amounts[table["id"].to_numpy()] = table["amount"].to_numpy()
        return self.rows, float(amounts.sum())


class Merges:
    """The same table over and over, and three ways to bring upserts into it."""

    def __init__(self, bench: Bench, rows: int, version: int) -> None:
        self.rows, self.version = rows, version
        self.rig = Rig(bench.folder / f"stream_merge_{uuid.uuid4().hex[:8]}", bench.engine)
        self._made = 0
        self.last: dict[str, str] = {}

    def ours(self, case: Case, commit_interval: float, sql: str = PICKS) -> float:
        name = self.table("ours", {})
        source = {"type": "files", "path": str(case.files[0].parent), "format": "parquet"}
        # A batch takes one file, however small it is said to be.
        stream = self.rig.stream(name, source, sql, batch_rows=1, commit_interval=commit_interval)
        begin = time.perf_counter()
        stream.drain()
        seconds = time.perf_counter() - begin
        check(self.rig.session, f"s.{name}", case.truth(len(case.files)))
        return seconds

    def merged(self, mode: str, case: Case) -> float:
        """Seconds for all files, of which some are merged."""
        name, files = self.table(mode, properties(mode)), case.files[: MERGED[mode]]
        seconds = merge_files(self.rig.session, f"s.{name}", files)
        check(self.rig.session, f"s.{name}", case.truth(len(files)))
        return seconds * len(case.files) / len(files)

    def warm_up(self, case: Case) -> None:
        """Spark's first MERGE, and our first batch, find a cold JVM."""
        for mode in PEERS:
            self.merged(mode, Case(case.rows, case.upserts, case.files[:2]))
        for sql in (PICKS, BY_SPARK):
            self.ours(case, 0.0, sql)

    def summary(self, contender: str) -> str:
        """How the last table of a contender looks, and how long it is read, then compacted."""
        table, session = f"s.{self.last[contender]}", self.rig.session
        looks, seconds = shape(session, table), read(session, table)[0]
        took = compact(session, table)
        after = read(session, table)[0]
        return (
            f"{contender}: {looks}; Spark reads it in {seconds:.2f} s, after rewrite_data_files "
            f"({took:.1f} s) in {after:.2f} s."
        )

    def table(
        self,
        contender: str,
        more: dict[str, str],
        change: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
    ) -> str:
        """Create a contender's table with the rows before any upsert; drop its last one."""
        if contender in self.last:
            drop_table(self.rig.lake, ("s", self.last[contender]))
        self._made += 1
        name = self.last[contender] = f"t{self._made}"
        data = pa.RecordBatchReader.from_batches(
            change(next(base_batches(1))).schema, map(change, base_batches(self.rows))
        )
        wanted = {"format-version": str(self.version), **FILE_SIZE, **more}
        ingest(self.rig.lake, ("s", name), data, Mode.CREATE, properties=wanted)
        return name


def base_batches(rows: int) -> Iterator[pa.RecordBatch]:
    """The table's rows before any upsert."""
    for begin in range(0, rows, PER_FILE):
        yield changes(np.arange(begin, min(begin + PER_FILE, rows)), 5, begin)


@cache
def _amounts(rows: int) -> np.ndarray:
    return np.concatenate([batch["amount"].to_numpy() for batch in base_batches(rows)])


def merges_5m(bench: Bench) -> list[Result]:
    return _merges(bench, bench.size(5_000_000), "5m", bench.runs(3))


def merges_5m_v3(bench: Bench) -> list[Result]:
    """The same with deletion vectors, which Spark's MERGE writes in format version 3, too."""
    return _merges(bench, bench.size(5_000_000), "5m_v3", bench.runs(3), version=3)


def merges_20m(bench: Bench) -> list[Result]:
    return _merges(bench, bench.size(20_000_000), "20m", bench.runs(1))


def _merges(bench: Bench, rows: int, size: str, runs: int, version: int = 2) -> list[Result]:
    merges = Merges(bench, rows, version)
    try:
        results: list[Result] = []
        for per_file, label, aim in ((100_000, "100k", 20.0), (10_000, "10k", 40.0)):
            folder = merges.rig.folder / label
            case = Case.of(folder, rows, bench.size(UPSERTS), bench.size(per_file))
            if not results:
                merges.warm_up(case)
            results += _case(merges, case, f"merges_{size}_batches_{label}", runs, aim)
        return results
    finally:
        merges.rig.close()


def _case(merges: Merges, case: Case, name: str, runs: int, aim: float) -> list[Result]:
    measures: dict[str, Callable[[], float]] = {
        "ours": partial(merges.ours, case, 0.0),
        **{mode: partial(merges.merged, mode, case) for mode in PEERS},
    }
    seconds = alternate(measures, runs)
    summary = [merges.summary("ours"), *(merges.summary(mode) for mode in PEERS)]
    merged = [f"{min(most, len(case.files))} of them ({mode})" for mode, most in MERGED.items()]
    note = (
        f"{case.upserts:,} scattered upserts of {case.rows:,} rows in {len(case.files)} batches, "
        f"format version {merges.version}, ours with a commit for each. MERGE took "
        f"{' and '.join(merged)}, its time is scaled. " + " ".join(summary)
    )
    results = [
        Result.of(f"{name}_{label}", PEERS[mode], seconds["ours"], seconds[mode], wanted, note)
        for mode, label, wanted in ((MERGE_ON_READ, "mor", aim), (COPY_ON_WRITE, "cow", None))
    ]
    ways = (
        ("each_second", 1.0, PICKS, "a commit a second, which MERGE cannot have"),
        ("by_spark", 0.0, BY_SPARK, "a query that Spark has to compute"),
    )
    for label, interval, sql, what in ways:
        way = {f"ours, {label}": partial(merges.ours, case, interval, sql)}
        [ours] = alternate(way, runs).values()
        note = f"As {name}_mor, ours with {what}. {merges.summary('ours')}"
        peer, theirs = PEERS[MERGE_ON_READ], seconds[MERGE_ON_READ]
        results.append(Result.of(f"{name}_{label}", peer, ours, theirs, aim, note))
    return results
