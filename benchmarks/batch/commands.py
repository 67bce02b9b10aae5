"""Commands of dbt that need no engine, which show what the adapter adds to dbt's own start."""

from __future__ import annotations

from functools import partial

from benchmarks import projects
from benchmarks.bench import Bench
from benchmarks.harness import Result, alternate

# An adapter may add a twentieth to dbt with its smallest adapter.
AIM = 0.95
PEER = "dbt-spark, which opens no connection here"
NOTE = "The shop of five models, parsed before, except by `parse`, which parses all of it"
COMMANDS = {
    "dbt_ls": ("ls", "--quiet"),
    "dbt_parse": ("parse", "--no-partial-parse"),
    # dbt-spark cannot compile the incremental model without a connection.
    "dbt_compile": (
        *("compile", "--quiet", "--no-introspect", "--no-populate-cache"),
        *("--exclude", "config.materialized:incremental"),
    ),
}


def without_engine(bench: Bench) -> list[Result]:
    """`dbt ls`, `dbt parse` and `dbt compile --no-introspect`."""
    trio = bench.trio("shop", projects.shop(500))
    results = []
    for name, command in COMMANDS.items():
        measures = {
            side: partial(contender.seconds, *command)
            for side, contender in (("ours", trio.ours), ("peer", trio.peer))
        }
        seconds = alternate(measures, bench.runs(5))
        results.append(Result.of(name, PEER, seconds["ours"], seconds["peer"], AIM, f"{NOTE}."))
    return results
