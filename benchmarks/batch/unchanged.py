"""A `dbt build` in which nothing has changed, with `skip_unchanged`."""

from __future__ import annotations

from typing import Any

from benchmarks import projects
from benchmarks.bench import Bench
from benchmarks.contenders import THREADS, Files, Ours, Peer, require_same_rows
from benchmarks.harness import BenchmarkError, Result, alternate

LISTING = "iceberg_stream, dbt ls"


class Skipping(Ours):
    """Our adapter with `skip_unchanged`."""

    def profile(self) -> dict[str, Any]:
        return {**super().profile(), "skip_unchanged": True}

    def build(self) -> float:
        """Return the seconds of a build that skips all nodes."""
        done = self.dbt("build")
        if "PASS=0 " not in done.output:
            raise BenchmarkError(f"Nodes were built:\n{done.output[-2000:]}")
        return done.seconds


def shop(bench: Bench) -> list[Result]:
    """The shop, whose seeds, views, tables and merge have all been built before."""
    return _compare(bench, "build_unchanged", projects.shop(bench.size(10_000)))


def diamonds(bench: Bench) -> list[Result]:
    """Views, tables and merges in fifteen layers."""
    return _compare(bench, "build_unchanged_300", projects.diamonds(bench.size(300)))


def _compare(bench: Bench, name: str, files: Files) -> list[Result]:
    ours = Skipping(bench.folder / name / "ours", files, bench.engine)
    peer = Peer(bench.folder / name / "peer", files)
    for contender in (ours, peer):
        contender.dbt("build")
    # An incremental model whose code asks the run is built once more.
    ours.dbt("build")
    seconds = alternate(
        {
            "ours": ours.build,
            "dbt ls": lambda: ours.seconds("ls"),
            "peer": lambda: peer.seconds("build"),
        },
        bench.runs(3),
        lambda: require_same_rows([ours, peer]),
    )
    note = f"Whole command at {THREADS} threads; ours skips all nodes."
    return [
        Result.of(name, Peer.label, seconds["ours"], seconds["peer"], 5, note),
        Result.of(f"{name}_ls", LISTING, seconds["ours"], seconds["dbt ls"], 0.77, note),
    ]
