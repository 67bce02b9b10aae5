"""A merge into a table of a million data files, of which only a few are there."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DoubleType, LongType, NestedField, StringType

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Result
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.files.reader import OldFile
from dbt.adapters.iceberg_stream.tables.merge.engine import merge
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileChange, FileRewrite
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan
from dbt.adapters.iceberg_stream.tables.merge.threads import in_threads
from tests.unit.local_tables import NAME, commit, data_file, make_catalog, make_table, write

SCHEMA = Schema(
    NestedField(1, "day", DateType(), required=False),
    NestedField(2, "id", LongType(), required=False),
    NestedField(3, "customer", StringType(), required=False),
    NestedField(4, "price", DoubleType(), required=False),
)
BY_DAY = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
FIRST_DAY = date(2024, 1, 1)
DAYS, FILES_OF_A_DAY, DAYS_OF_A_MANIFEST = 1000, 1000, 50
# Days with real files, each in a manifest of its own, and their rows.
REAL_DAYS, REAL_FILES, REAL_ROWS = (7, 500, 980), 4, 20_000
ROWS_OF_A_FILE, KEYS = 100_000, 100_000


def planning_1m(bench: Bench) -> list[Result]:
    """Merge 100,000 keys of three days, which are in twelve files."""
    folder = bench.folder / "planning"
    make(folder, bench.size(DAYS))
    measured = [_merge_in_a_process(folder) for _ in range(bench.runs(3))]
    note = (
        f"{bench.size(DAYS) * FILES_OF_A_DAY:,} data files in manifests of "
        f"{DAYS_OF_A_MANIFEST * FILES_OF_A_DAY:,}; {KEYS:,} keys of {len(REAL_DAYS)} days, the "
        "merge without its commit."
    )
    seconds, mebibytes = ([values[at] for values in measured] for at in range(2))
    limits = [3.0] * len(seconds), [300.0] * len(seconds)
    return [
        Result.of("planning_1m", "a limit of 3 s", seconds, limits[0], 1, note),
        Result.of("planning_1m_memory", "a limit of 300 MiB", mebibytes, limits[1], 1, note, "MiB"),
    ]


def make(folder: Path, days: int) -> None:
    """Make the table, with a commit and a manifest for every 50 days."""
    lake = make_catalog(folder)
    properties = {"commit.manifest-merge.enabled": "false"}
    make_table(lake, schema=SCHEMA, spec=BY_DAY, properties=properties)
    for begin in range(0, days, DAYS_OF_A_MANIFEST):
        group = range(begin, min(begin + DAYS_OF_A_MANIFEST, days))
        files = [file for day in group for file in _files(day)]
        real = [file for day in group if day in REAL_DAYS for file in _write(lake, day)]
        commit(lake, Change(Operation.APPEND, (AddedFiles((*files, *real)),)))
    lake.close()


def _write(lake: IcebergCatalog, day: int) -> Iterator[DataFile]:
    rows = _real_rows(day)
    for place in range(REAL_FILES):
        yield from write(lake, rows.slice(place * REAL_ROWS, REAL_ROWS))


def _files(day: int) -> Iterator[DataFile]:
    """Describe files that are not there, each with other ids."""
    number = (FIRST_DAY + timedelta(day)).toordinal() - date(1970, 1, 1).toordinal()
    columns = [field.field_id for field in SCHEMA.fields]
    of_day = to_bytes(DateType(), number)
    for place in range(FILES_OF_A_DAY):
        first = _first_id(day) + place * ROWS_OF_A_FILE
        ids = [to_bytes(LongType(), first + offset) for offset in (0, ROWS_OF_A_FILE - 1)]
        yield data_file(
            f"file:///nowhere/day={day}/{uuid.uuid4()}.parquet",
            ROWS_OF_A_FILE,
            (number,),
            column_sizes=dict.fromkeys(columns, 100_000),
            value_counts=dict.fromkeys(columns, ROWS_OF_A_FILE),
            null_value_counts=dict.fromkeys(columns, 0),
            lower_bounds={1: of_day, 2: ids[0], 3: b"customer 0", 4: to_bytes(DoubleType(), 0.0)},
            upper_bounds={1: of_day, 2: ids[1], 3: b"customer 9", 4: to_bytes(DoubleType(), 9.0)},
        )


def _first_id(day: int) -> int:
    return 2 * day * FILES_OF_A_DAY * ROWS_OF_A_FILE


def _real_rows(day: int, price: float = 1.0) -> pa.Table:
    """Rows of a day whose ids are in no other file."""
    count = REAL_FILES * REAL_ROWS
    first = _first_id(day) + FILES_OF_A_DAY * ROWS_OF_A_FILE
    return pa.table(
        {
            "day": pa.repeat(FIRST_DAY + timedelta(day), count),
            "id": np.arange(first, first + count),
            "customer": pa.repeat("customer 1", count),
            "price": pa.repeat(price, count),
        }
    )


def _merge_in_a_process(folder: Path) -> tuple[float, float]:
    """Return the seconds before the commit, and the MiB over the idle process by then."""
    code = f"from benchmarks.rows.planning import measure; measure({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(done.stderr)
    seconds, mebibytes = map(float, done.stdout.split())
    print(f"  {seconds:.2f} s, {mebibytes:.0f} MiB", flush=True)
    return seconds, mebibytes


def measure(folder: str) -> None:
    """Print the seconds that a merge takes before its commit, and its memory."""
    lake = IcebergCatalog("lake", SqliteBackend("lake", Path(folder) / "warehouse"))
    generator = np.random.default_rng(1)
    rows = pa.concat_tables([_real_rows(day, time.time()) for day in REAL_DAYS])
    rows = rows.take(np.sort(generator.permutation(rows.num_rows)[:KEYS]))
    plan = MergePlan(("day", "id"), ("customer", "price"), True)
    ends: list[float] = []
    peaks: list[int] = []

    def run(rewrite: FileRewrite, files: Sequence[OldFile]) -> Iterator[FileChange]:
        yield from in_threads(rewrite, files)
        ends.append(time.perf_counter())
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)

    idle = psutil.Process().memory_info().rss
    begin = time.perf_counter()
    source = lambda: iter([rows.schema, *rows.to_batches()])  # noqa: E731
    merged = merge(lake, NAME, plan, {}, source, uuid.uuid4().hex, {}, run)
    assert merged.outcome is not None, merged
    print(ends[-1] - begin, (peaks[-1] - idle) / 2**20)
