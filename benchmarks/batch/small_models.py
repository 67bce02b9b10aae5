"""Many small models at four threads: tables, merges and appends."""

from __future__ import annotations

from benchmarks import projects
from benchmarks.bench import Bench, Trio
from benchmarks.contenders import THREADS, Ours, Peer, WarmPeer, require_same_rows
from benchmarks.harness import Result, alternate

MANY_THREADS = 16
INCLUDED = f"Whole command at {THREADS} threads"


def tables(bench: Bench) -> list[Result]:
    """Tables of 100 rows: the first run makes all but one, the later ones rebuild them."""
    files = projects.tables(bench.size(100))
    trio = bench.trio("tables", files, prepare=("build", "--select", "table_001"))
    return _compare("tables_100", trio, aim=1.5, warm_aim=2.5, runs=bench.runs(2))


def merges(bench: Bench) -> list[Result]:
    """Merges of 200 rows into tables of 1,000; every run has 100 rows to update at least."""
    trio = bench.trio("merges", projects.merges(bench.size(20)))
    return _compare("merges_20", trio, aim=3, warm_aim=3, runs=bench.runs(3))


def appends(bench: Bench) -> list[Result]:
    """Appends of 200 rows to tables of 1,000 and more."""
    trio = bench.trio("appends", projects.appends(bench.size(20)))
    return _compare("appends_20", trio, aim=None, warm_aim=None, runs=bench.runs(3))


def mixed(bench: Bench) -> list[Result]:
    """300 small models of all kinds at 16 threads, each run after the first."""
    files, root = projects.mixed(bench.size(300)), bench.folder / "mixed"
    ours = Ours(root / "ours", files, bench.engine)
    warm_peer = WarmPeer(root / "warm_peer", files, bench.engine)
    threads = ("--threads", str(MANY_THREADS))
    for contender in (ours, warm_peer):
        contender.dbt("build", *threads)
    command = ("run", *threads)
    seconds = alternate(
        {
            "ours": lambda: ours.seconds(*command),
            "warm peer": lambda: warm_peer.seconds(*command),
        },
        bench.runs(2),
        lambda: require_same_rows([ours, warm_peer]),
    )
    note = (
        f"Whole command at {MANY_THREADS} threads: 180 tables, 75 incremental models and 45 views "
        "of one to three inputs; both use the same warm server."
    )
    name = "models_300_connect_peer"
    return [Result.of(name, WarmPeer.label, seconds["ours"], seconds["warm peer"], 3, note)]


def _compare(
    name: str, trio: Trio, aim: float | None, warm_aim: float | None, runs: int
) -> list[Result]:
    ours, peer, warm_peer = trio
    seconds = alternate(
        {
            "ours": lambda: ours.seconds("run"),
            "peer": lambda: peer.seconds("run"),
            "warm peer": lambda: warm_peer.seconds("run"),
        },
        runs,
        lambda: require_same_rows(list(trio)),
    )
    note = f"{INCLUDED}; the peer has no warm mode: its start of Spark is in its time."
    warm_note = f"{INCLUDED}; both use the same warm server."
    warm_name, warm_label = f"{name}_connect_peer", WarmPeer.label
    our_seconds = seconds["ours"]
    return [
        Result.of(name, Peer.label, our_seconds, seconds["peer"], aim, note),
        Result.of(warm_name, warm_label, our_seconds, seconds["warm peer"], warm_aim, warm_note),
    ]
