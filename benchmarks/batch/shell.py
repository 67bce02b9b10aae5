"""Commands in `iceberg-stream shell`, which neither starts dbt nor imports anything again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks import projects
from benchmarks.batch.shop import ORDERS
from benchmarks.batch.small_models import MANY_THREADS
from benchmarks.bench import Bench
from benchmarks.contenders import Ours, Shell, WarmPeer, require_same_rows
from benchmarks.harness import Result, alternate

PROCESS = "iceberg_stream, dbt run"
ONE_MODEL = ("run", "--select", "daily_revenue")
# From the line to the end of the command.
AIM_SECONDS = 1.0
NOTE = (
    "Ours in a shell, from the line to the end of the command; the peer is a process for each "
    "command, because dbt-spark has no shell. Both use the same warm server."
)


def one_model(bench: Bench) -> list[Result]:
    """One small table model again and again, against `dbt run` as a process."""
    ours = bench.trio("shop", projects.shop(ORDERS)).ours
    with Shell(ours) as shell:
        # A shell parses the project with its first command.
        shell.seconds(*ONE_MODEL)
        seconds = alternate(
            {
                "shell": lambda: shell.seconds(*ONE_MODEL),
                "dbt": lambda: ours.seconds(*ONE_MODEL),
            },
            bench.runs(5),
        )
    note = (
        "One table model again and again, from the line to the end of the command; the peer is a "
        "process for each command. The aim is one second."
    )
    aim = round(statistics.median(seconds["dbt"]) / AIM_SECONDS, 2)
    return [Result.of("one_model_shell", PROCESS, seconds["shell"], seconds["dbt"], aim, note)]


def against_peer(bench: Bench) -> list[Result]:
    """What a developer waits for: the projects of the other benchmarks, in a shell."""
    shop = bench.trio("shop", projects.shop(ORDERS))
    tables = bench.trio("tables", projects.tables(bench.size(100)))
    merges = bench.trio("merges", projects.merges(bench.size(20)))
    mixed, root = projects.mixed(bench.size(300)), bench.folder / "mixed"
    many = Ours(root / "ours", mixed, bench.engine), WarmPeer(root / "peer", mixed, bench.engine)
    threads = ("--threads", str(MANY_THREADS))
    for contender in many:
        contender.dbt("build", *threads)
    return [
        _compare(bench, "one_model", shop.ours, shop.warm_peer, ONE_MODEL),
        _compare(bench, "shop", shop.ours, shop.warm_peer, ("run",)),
        _compare(bench, "tables_100", tables.ours, tables.warm_peer, ("run",)),
        _compare(bench, "merges_20", merges.ours, merges.warm_peer, ("run",)),
        _compare(bench, "models_300", *many, ("run", *threads)),
    ]


def _compare(bench: Bench, name: str, ours: Ours, peer: WarmPeer, command: Sequence[str]) -> Result:
    with Shell(ours) as shell:
        shell.seconds(*command)
        seconds = alternate(
            {"shell": lambda: shell.seconds(*command), "peer": lambda: peer.seconds(*command)},
            bench.runs(2),
            lambda: require_same_rows([ours, peer]),
        )
    name = f"{name}_shell_connect_peer"
    return Result.of(name, WarmPeer.label, seconds["shell"], seconds["peer"], None, NOTE)
