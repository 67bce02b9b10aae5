"""The area `write`: our own files and commits."""

from __future__ import annotations

from benchmarks.bench import Benchmark

from . import commits, ingest, merges

BENCHMARKS: dict[str, Benchmark] = {
    "ingest_2m": ingest.ingest_2m,
    "adbc_ingest_2m": ingest.adbc_ingest_2m,
    "ingest_memory": ingest.ingest_memory,
    "commits_1000": commits.commits_1000,
    "merges_5m": merges.merges_5m,
    "merges_20m": merges.merges_20m,
}
