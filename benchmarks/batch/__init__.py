"""The area `batch`: what a `dbt build` is made of."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Benchmark

from . import commands, ctas, publish, relation_cache, seeds, shell, shop, small_models, unchanged

BENCHMARKS: dict[str, Benchmark] = {
    "shop_cold": shop.cold,
    "shop_warm": shop.warm,
    "one_model_warm": shop.one_model,
    "one_model_shell": shell.one_model,
    "shell": shell.against_peer,
    "without_engine": commands.without_engine,
    "tables_100": small_models.tables,
    "merges_20": small_models.merges,
    "appends_20": small_models.appends,
    "models_300": small_models.mixed,
    "publish_100": publish.tables,
    "build_unchanged": unchanged.shop,
    "build_unchanged_300": unchanged.diamonds,
    "seed_1000": partial(seeds.against_peer, rows=1_000, aim=8, runs=3),
    # The peer takes about a minute.
    "seed_4000": partial(seeds.against_peer, rows=4_000, aim=50, runs=2),
    "seed_100000": seeds.alone,
    "relation_cache_500": relation_cache.fill,
    "ctas_lineitem": ctas.lineitem,
}
