"""The area `read`: how fast tables are that streams have written, right after the last commit."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Benchmark

from . import upserts

BENCHMARKS: dict[str, Benchmark] = {
    "upserts_v3": partial(upserts.upserts, version=3, per_file=100_000),
    "upserts_v2": partial(upserts.upserts, version=2, per_file=100_000),
    "upserts_v3_batches_10k": partial(upserts.upserts, version=3, per_file=10_000),
    "upserts_20m_v3": partial(upserts.upserts, version=3, per_file=100_000, rows=20_000_000),
    "commits_200": upserts.commits,
}
