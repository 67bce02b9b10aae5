"""The second `dbt run` of a shop of five models: from cold, warm, and one model of it."""

from __future__ import annotations

from benchmarks import projects
from benchmarks.bench import Bench
from benchmarks.contenders import Peer, WarmPeer, require_same_rows
from benchmarks.harness import Result, alternate, less

ORDERS = 500
NET = "Net: less the time of `dbt ls` with the same adapter and project"


# The least net ratio that is wanted against a peer on the same warm server.
WARM_NET = 4


def cold(bench: Bench) -> list[Result]:
    """No engine runs before, none after."""
    files = projects.shop(ORDERS)
    # First, because it leaves the archive of JVM classes that the warm engine starts from, too.
    ours = bench.cold("shop", files)
    peer = bench.trio("shop", files).peer
    seconds = alternate(
        {"ours": lambda: ours.seconds("run"), "peer": lambda: peer.seconds("run")},
        bench.runs(),
        lambda: require_same_rows([ours, peer]),
    )
    note = (
        "Whole command, five models, raw data loaded before. "
        "Ours starts its engine within it, with the archive of JVM classes an earlier one left."
    )
    return [Result.of("shop_cold", Peer.label, seconds["ours"], seconds["peer"], 1.8, note)]


def warm(bench: Bench) -> list[Result]:
    """The engine is there from the command before."""
    note = "Whole command, five models"
    return _warm(bench, "shop_warm", ["run"], note, total=2.8, net=5, warm_total=2)


def one_model(bench: Bench) -> list[Result]:
    """The developer's loop: one small table model again and again."""
    command = ["run", "--select", "daily_revenue"]
    note = "Whole command, one table model"
    return _warm(bench, "one_model_warm", command, note, total=3, net=15, warm_total=1.6)


def _warm(
    bench: Bench,
    name: str,
    command: list[str],
    note: str,
    total: float,
    net: float,
    warm_total: float,
) -> list[Result]:
    ours, peer, warm_peer = trio = bench.trio("shop", projects.shop(ORDERS))
    seconds = alternate(
        {
            "ours": lambda: ours.seconds(*command),
            "peer": lambda: peer.seconds(*command),
            "warm peer": lambda: warm_peer.seconds(*command),
            "ours, ls": lambda: ours.seconds("ls", "--quiet"),
            "peer, ls": lambda: peer.seconds("ls", "--quiet"),
        },
        bench.runs(),
        lambda: require_same_rows(list(trio)),
    )
    ours_net = less(seconds["ours"], seconds["ours, ls"])
    peer_net = less(seconds["peer"], seconds["peer, ls"])
    warm_net = less(seconds["warm peer"], seconds["peer, ls"])
    warm, warm_name = WarmPeer.label, f"{name}_connect_peer"
    return [
        Result.of(name, Peer.label, seconds["ours"], seconds["peer"], total, f"{note}."),
        Result.of(f"{name}_net", Peer.label, ours_net, peer_net, net, f"{NET}."),
        Result.of(warm_name, warm, seconds["ours"], seconds["warm peer"], warm_total, f"{note}."),
        Result.of(f"{warm_name}_net", warm, ours_net, warm_net, WARM_NET, f"{NET}."),
    ]
