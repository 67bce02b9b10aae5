"""CTAS of TPC-H's lineitem against a bare Parquet write of the same rows, on one server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyarrow import parquet

from benchmarks.bench import Bench
from benchmarks.contenders import CATALOG, KEEP_ALIVE, SCHEMA
from benchmarks.harness import BenchmarkError, Result, alternate
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend, spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings

TABLES = ("lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region")
ROOT = Path(__file__).parents[2]
CODEC = "zstd"  # Iceberg's own default


def lineitem(bench: Bench) -> list[Result]:
    """The same query, session settings and codec; the two in turn after one untimed write each."""
    scale = "0.01" if bench.small else bench.scale_factor
    data = _generated(scale)
    warehouse = bench.folder / "ctas"
    source, target = data / "lineitem.parquet", warehouse / "bare" / "lineitem"
    with _session(bench.engine, warehouse) as session:
        session.run(f"create namespace if not exists {SCHEMA}")

        def write_parquet() -> None:
            frame = session.spark.read.parquet(str(source))
            frame.write.mode("overwrite").option("compression", CODEC).parquet(str(target))

        measures = {
            "CTAS": lambda: _timed(lambda: _ctas(session, data, "lineitem")),
            "bare Parquet": lambda: _timed(write_parquet),
        }
        print("  one untimed write each", flush=True)
        for measure in measures.values():
            measure()
        seconds = alternate(measures, bench.runs(3), lambda: _check(warehouse, source))
        all_tables = sum(_timed(partial(_ctas, session, data, table)) for table in TABLES)
    rows = parquet.read_metadata(source).num_rows
    note = (
        f"{rows:,} rows at scale factor {scale}, both with {CODEC} in the same session; "
        f"all eight tables one after the other: {all_tables:.1f} s."
    )
    name = "ctas_lineitem" if scale == "1" else f"ctas_lineitem_sf{scale}"
    peer = "a bare df.write.parquet"
    return [Result.of(name, peer, seconds["CTAS"], seconds["bare Parquet"], 0.95, note)]


@contextmanager
def _session(engine_home: Path, warehouse: Path) -> Iterator[Session]:
    engine = EmbeddedEngine(EngineSettings(home=engine_home, keep_alive=KEEP_ALIVE))
    # Opening the catalog makes its file, which Spark then finds.
    IcebergCatalog(CATALOG, SqliteBackend(CATALOG, warehouse)).close()
    session = Session(engine.endpoint(), spark_settings(CATALOG, warehouse))
    try:
        yield session
    finally:
        session.close()
        engine.release()


def _ctas(session: Session, data: Path, table: str) -> None:
    session.run(
        f"create or replace table {SCHEMA}.{table} using iceberg as "
        f"select * from parquet.`{data / f'{table}.parquet'}`"
    )


def _timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _check(warehouse: Path, source: Path) -> None:
    """Both have written all rows."""
    wanted = parquet.read_metadata(source).num_rows
    lake = IcebergCatalog(CATALOG, SqliteBackend(CATALOG, warehouse))
    snapshot = lake.table((SCHEMA, "lineitem")).current_snapshot()
    lake.close()
    summary = snapshot.summary if snapshot else None
    table = int(summary.additional_properties["total-records"]) if summary else 0
    files = (warehouse / "bare" / "lineitem").glob("*.parquet")
    bare = sum(parquet.read_metadata(file).num_rows for file in files)
    if not table == bare == wanted:
        raise BenchmarkError(f"Of {wanted} rows CTAS wrote {table}, Parquet {bare}")


def _generated(scale: str) -> Path:
    """The folder of TPC-H data, the demo's or our own."""
    demo = ROOT / "examples" / "tpch" / ".data" / f"sf{scale}"
    if all((demo / f"{table}.parquet").exists() for table in TABLES):
        return demo
    folder = ROOT / "benchmarks" / ".data" / f"sf{scale}"
    if all((folder / f"{table}.parquet").exists() for table in TABLES):
        return folder
    generator = Path(sys.executable).with_name("tpchgen-cli")
    if not generator.exists():
        raise BenchmarkError("TPC-H data is made by tpchgen-cli: pip install 'tpchgen-cli>=4.0,<5'")
    print(f"  generating TPC-H data of scale factor {scale}", flush=True)
    subprocess.run(
        [str(generator), "parquet", "-s", scale, "--output-dir", str(folder)], check=True
    )
    return folder
