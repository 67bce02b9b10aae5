"""The area `rows`: merges into large tables of the layouts that companies have."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Benchmark

from . import cluster, layouts, planning, strategies

SIZES = {"3m": 3_000_000, "5m": 5_000_000, "20m": 20_000_000}
# Spark's tasks process the larger tables.
ON_A_CLUSTER = {"2m": 2_000_000, "10m": 10_000_000}
LAYOUTS_ON_A_CLUSTER = ("flat", "by_day", "by_day_predicates")

BENCHMARKS: dict[str, Benchmark] = {
    **{
        f"{layout}_{label}": partial(layouts.merges, layout=layout, rows=rows, label=label)
        for label, rows in SIZES.items()
        for layout in layouts.LAYOUTS
    },
    **{
        f"cluster_{layout}_{label}": partial(cluster.merges, layout=layout, rows=rows, label=label)
        for label, rows in ON_A_CLUSTER.items()
        for layout in LAYOUTS_ON_A_CLUSTER
    },
    **{
        f"{name}_1m": partial(strategies.strategy, name=name, rows=1_000_000)
        for name in strategies.CASES
    },
    "planning_1m": planning.planning_1m,
}
