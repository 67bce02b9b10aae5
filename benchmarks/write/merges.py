"""Merges by rewriting files against Spark's MERGE, and against PyArrow copying the same files."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result, alternate
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_files
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.tables.merge.engine import merge
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan

from .ingest import batches, open_catalog

NAME = ("s", "t")
SPARK = "Spark's MERGE, copy-on-write, as dbt-spark says it"
ARROW = "PyArrow reading and writing the same files"
COLUMNS = next(batches(1)).schema.names
PLAN = MergePlan(("id",), tuple(c for c in COLUMNS if c != "id"), True)
# Ten files for five million rows.
PROPERTIES = {"write.target-file-size-bytes": str(16 * 1024 * 1024)}


class Merger:
    """A table, an increment that lies in Spark, and both ways to merge it."""

    def __init__(self, bench: Bench, rows: int) -> None:
        folder = bench.folder / f"merge{rows}"
        self.rows = rows
        self.lake: IcebergCatalog = open_catalog(folder)
        schema = next(batches(1)).schema
        data = pa.RecordBatchReader.from_batches(schema, batches(rows))
        ingest(self.lake, NAME, data, Mode.CREATE, properties=PROPERTIES)
        self.engine = EmbeddedEngine(EngineSettings(bench.engine, keep_alive=300))
        self.session = Session(self.engine.endpoint(), spark_settings("lake", folder.resolve()))
        self.first = self._snapshot()

    def stage(self, ids: np.ndarray, changes: bool = True) -> None:
        """The increment: rows of the table, with another price if they change."""
        self.session.register("wanted", pa.table({"id": ids}))
        price = "t.price + 1 as price" if changes else "t.price"
        columns = ", ".join(price if c == "price" else f"t.{c}" for c in COLUMNS)
        # A table of its own: what is cached from the target is computed anew after each write.
        self.session.run(
            "create or replace table s.staged using iceberg as "
            f"select {columns} from s.t t join wanted using (id)"
        )

    def ours(self) -> float:
        begin = time.perf_counter()
        result = merge(
            self.lake,
            NAME,
            PLAN,
            {},
            lambda: self.session.stream("select * from s.staged"),
            uuid.uuid4().hex,
            {},
        )
        if result.spark_because:
            raise BenchmarkError(result.spark_because)
        return time.perf_counter() - begin

    def spark(self) -> float:
        sets = ", ".join(f"d.{c} = n.{c}" for c in COLUMNS)
        begin = time.perf_counter()
        self.session.run(
            "merge into s.t d using s.staged n on n.id = d.id when matched then update set "
            f"{sets} when not matched then insert *"
        )
        return time.perf_counter() - begin

    def arrow(self, paths: list[Path], target: Path) -> float:
        """Read and write files, two threads at once, as the merge does."""
        from concurrent.futures import ThreadPoolExecutor

        begin = time.perf_counter()

        def copy(path: Path) -> None:
            pq.write_table(pq.read_table(path), target / path.name, compression="zstd")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(copy, paths))
        return time.perf_counter() - begin

    def touched(self, work: Callable[[], float]) -> list[Path]:
        """Files that a merge replaces."""
        before = self._files()
        work()
        gone = before - self._files()
        self.undo()
        return [Path(path.removeprefix("file://")) for path in sorted(gone)]

    def undo(self) -> None:
        """Back to the first snapshot, with the same number of rows as ever."""
        counted = as_rows(self.session.query("select count(*), count(distinct id) from s.t"))
        if counted != [(self.rows, self.rows)]:
            raise BenchmarkError(f"{counted} rows after a merge of {self.rows:,}")
        call = f"call lake.system.rollback_to_snapshot('s.t', {self.first})"
        if self._snapshot() != self.first:
            self.session.fetch(self.session.run(call))

    def size(self) -> int:
        return sum(Path(p.removeprefix("file://")).stat().st_size for p in self._files())

    def close(self) -> None:
        self.session.close()
        self.engine.release()

    def _snapshot(self) -> int:
        table = self.lake.load(NAME)
        assert table is not None
        return int(table.metadata["current-snapshot-id"])

    def _files(self) -> set[str]:
        table = self.lake.load(NAME)
        assert table is not None
        return {file.file_path for file in live_files(table.io, table.metadata)}


def merges_5m(bench: Bench) -> list[Result]:
    return _merges(bench, bench.size(5_000_000), "5m")


def merges_20m(bench: Bench) -> list[Result]:
    return _merges(bench, bench.size(20_000_000), "20m")


def _merges(bench: Bench, rows: int, name: str) -> list[Result]:
    """One percent of the rows, side by side or scattered, a tenth, and one percent unchanged."""
    merger = Merger(bench, rows)
    random = np.random.default_rng(2)
    few, many = rows // 100, rows // 10
    cases = {
        "clustered": (np.arange(rows // 2, rows // 2 + few), True, 3.0),
        "scattered": (random.choice(rows, few, replace=False), True, 1.5),
        "tenth": (random.choice(rows, many, replace=False), True, 1.5),
        "unchanged": (random.choice(rows, few, replace=False), False, 10.0),
    }
    try:
        results = []
        for case, (ids, changes, aim) in cases.items():
            merger.stage(ids, changes)
            results += _case(bench, merger, f"merge_{case}_{name}", changes, aim)
        return results + ([_growth(merger, random)] if name == "5m" else [])
    finally:
        merger.close()


def _case(bench: Bench, merger: Merger, name: str, changes: bool, aim: float) -> list[Result]:
    touched = merger.touched(merger.ours)
    target = bench.folder / "copies"
    target.mkdir(exist_ok=True)
    measures = {"ours": merger.ours, "spark": merger.spark}
    if changes:
        measures["arrow"] = partial(merger.arrow, touched, target)
    undone = {key: partial(_undone, merger, measure) for key, measure in measures.items()}
    seconds = alternate(undone, bench.runs(3), lambda: None)
    note = f"{merger.rows:,} rows of 8 columns; {len(touched)} files are rewritten by ours."
    against = Result.of(name, SPARK, seconds["ours"], seconds["spark"], aim, note)
    if not changes:
        return [against]
    limit = Result.of(f"{name}_limit", ARROW, seconds["ours"], seconds["arrow"], 0.5, note)
    return [against, limit]


def _undone(merger: Merger, measure: Callable[[], float]) -> float:
    seconds = measure()
    merger.undo()
    return seconds


def _growth(merger: Merger, random: np.random.Generator) -> Result:
    """Size of the table's files after ten scattered merges, against before."""
    before = merger.size()
    for _ in range(10):
        merger.stage(random.choice(merger.rows, merger.rows // 100, replace=False))
        merger.ours()
    after = merger.size()
    note = (
        f"After ten scattered merges of 1 % the live files have {after / before:.2f} times the "
        "size of before. The ratio is before / after."
    )
    ours, fresh, aim = [after / 2**20], [before / 2**20], round(1 / 1.1, 2)
    return Result.of("merge_growth_5m", "a fresh table", ours, fresh, aim, note, "MiB")
