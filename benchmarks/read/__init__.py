"""The area `read`: tables of streams, tables with equality deletes, and versions compared."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Benchmark

from . import deletes, diffs, upserts

BENCHMARKS: dict[str, Benchmark] = {
    "upserts_v3": partial(upserts.upserts, version=3, per_file=100_000),
    "upserts_v2": partial(upserts.upserts, version=2, per_file=100_000),
    "upserts_v3_batches_10k": partial(upserts.upserts, version=3, per_file=10_000),
    "upserts_20m_v3": partial(upserts.upserts, version=3, per_file=100_000, rows=20_000_000),
    "commits_200": upserts.commits,
    "deletes_v3_150x20k": partial(deletes.deletes, version=3, files=150, keys=20_000),
    "fewer_deletes": deletes.fewer_deletes,
    "deletes_v2_150x20k": partial(deletes.deletes, version=2, files=150, keys=20_000),
    "diff_merge_clustered": diffs.clustered,
    "diff_merge_scattered": diffs.scattered,
    "diff_rebuilt": diffs.rebuilt,
    "deletes_v3_1000x1k": partial(deletes.deletes, version=3, files=1000, keys=1_000),
}
