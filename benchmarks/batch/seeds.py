"""Seeds of six columns, loaded again over the table of the run before."""

from __future__ import annotations

import statistics

from benchmarks import projects
from benchmarks.bench import Bench
from benchmarks.contenders import Contender, Ours, Peer, require_same_rows
from benchmarks.harness import BenchmarkError, Result, alternate, less

LIMIT_SECONDS = 3.0
NET = "net: less the time of `dbt ls`"


class Timed:
    """Runs `dbt seed` and keeps what dbt says the seed itself took."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.nodes: list[float] = []

    def __call__(self) -> float:
        seconds = self.contender.seconds("seed")
        self.nodes.append(self.contender.node_seconds())
        return seconds

    def ls(self) -> float:
        return self.contender.seconds("ls", "--quiet")

    @property
    def node(self) -> float:
        return statistics.median(self.nodes)


def against_peer(bench: Bench, rows: int, aim: float, runs: int) -> list[Result]:
    """The peer writes rows as text into one INSERT; its time grows with their square."""
    files = projects.seed(bench.size(rows))
    root = bench.folder / f"seed_{rows}"
    contenders = [Ours(root / "ours", files, bench.engine), Peer(root / "peer", files)]
    # Ours gets its engine warm. The peer only parses: its second load takes as long as its first.
    contenders[0].dbt("seed")
    contenders[1].dbt("ls", "--quiet")
    ours, peer = (Timed(contender) for contender in contenders)
    seconds = alternate(
        {"ours": ours, "peer": peer, "ours, ls": ours.ls, "peer, ls": peer.ls},
        bench.runs(runs),
        lambda: require_same_rows(contenders),
    )
    net = less(seconds["ours"], seconds["ours, ls"]), less(seconds["peer"], seconds["peer, ls"])
    note = (
        f"{rows:,} rows, {NET}; whole commands {statistics.median(seconds['ours']):.1f} s against "
        f"{statistics.median(seconds['peer']):.1f} s, the seed node alone {ours.node:.2f} s "
        f"against {peer.node:.2f} s."
    )
    return [Result.of(f"seed_{rows}", Peer.label, *net, aim, note)]


def alone(bench: Bench) -> list[Result]:
    """100,000 rows, against a limit in seconds: the peer would take hours."""
    rows = bench.size(100_000)
    contender = Ours(bench.folder / "seed_100000", projects.seed(rows), bench.engine)
    contender.dbt("seed")
    timed = Timed(contender)

    def check() -> None:
        if contender.rows() != {"people": rows}:
            raise BenchmarkError(f"Of {rows} rows these came: {contender.rows()}")

    seconds = alternate({"ours": timed, "ours, ls": timed.ls}, bench.runs(), check)
    net = less(seconds["ours"], seconds["ours, ls"])
    note = (
        f"100,000 rows, {NET}; the ratio is the limit of {LIMIT_SECONDS:g} s / our seconds; "
        f"the seed node alone {timed.node:.2f} s."
    )
    limits = [LIMIT_SECONDS] * len(net)
    return [Result.of("seed_100000", "a limit of 3 s", net, limits, 1, note)]
