"""The area `rows`: merges into large tables of the layouts that companies have."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Benchmark

from . import layouts

BENCHMARKS: dict[str, Benchmark] = {
    f"{layout}_{label}": partial(layouts.merges, layout=layout, rows=rows, label=label)
    for label, rows in (("3m", 3_000_000), ("5m", 5_000_000), ("20m", 20_000_000))
    for layout in layouts.LAYOUTS
}
