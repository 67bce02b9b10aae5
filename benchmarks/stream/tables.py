"""What a table looks like after a stream: snapshots, files, bytes, and how long Spark reads it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.harness import BenchmarkError
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows


@dataclass(frozen=True)
class Shape:
    """Counts of the current snapshot; `snapshots` of all, `bytes` of data and delete files."""

    snapshots: int
    data_files: int
    delete_files: int
    bytes: int
    manifests: int

    def __str__(self) -> str:
        return (
            f"{self.snapshots:,} snapshots, {self.data_files:,} data and {self.delete_files:,} "
            f"delete files, {self.bytes / 2**20:.0f} MiB, {self.manifests:,} manifests"
        )


def shape(session: Session, table: str) -> Shape:
    """Of a table, as Spark names it."""
    [(snapshots,)] = as_rows(session.query(f"select count(*) from {table}.snapshots"))
    [(data, deletes, size)] = as_rows(
        session.query(
            "select count_if(content = 0), count_if(content > 0), sum(file_size_in_bytes) "
            f"from {table}.files"
        )
    )
    [(manifests,)] = as_rows(session.query(f"select count(*) from {table}.manifests"))
    return Shape(int(snapshots), int(data), int(deletes), int(size or 0), int(manifests))


def read(session: Session, table: str) -> tuple[float, tuple[int, float]]:
    """Seconds that Spark reads the table for, its rows, and the sum of their amounts."""
    begin = time.perf_counter()
    [(rows, amount)] = as_rows(session.query(f"select count(*), sum(amount) from {table}"))
    return time.perf_counter() - begin, (int(rows), float(amount))


def check(session: Session, table: str, expected: tuple[int, float]) -> None:
    """Raise BenchmarkError if the table does not hold what the changes come to."""
    count = read(session, table)[1]
    if count != expected:
        raise BenchmarkError(f"{table} holds {count}, but the changes come to {expected}")


def compact(session: Session, table: str) -> float:
    """Seconds to rewrite all files that have deletes."""
    catalog, name = ("lake", table) if table.count(".") == 1 else table.split(".", 1)
    begin = time.perf_counter()
    call = (
        f"call {catalog}.system.rewrite_data_files(table => '{name}', "
        "options => map('delete-file-threshold', '1', 'min-input-files', '2'))"
    )
    session.fetch(session.run(call))
    return time.perf_counter() - begin
