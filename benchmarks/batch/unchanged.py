"""A `dbt build` in which nothing has changed, with `skip_unchanged`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import projects
from benchmarks.bench import Bench
from benchmarks.contenders import THREADS, Files, Ours, Peer, require_same_rows
from benchmarks.harness import BenchmarkError, Result, alternate

LISTING = "iceberg_stream, dbt ls"
NOTE = f"Whole command at {THREADS} threads; ours skips all nodes."


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
    """The shop, whose seeds, views, tables and merge have been built before.

    The seeds are small: the peer loads 10,000 rows in minutes, and a skipped seed loads none.
    """
    files = projects.shop(1_000)
    # A model that reads the clock is never skipped.
    files = {path: text.replace("current_timestamp()", "o.ordered") for path, text in files.items()}
    ours, peer = _ours(bench, "shop", files), Peer(bench.folder / "build_unchanged" / "peer", files)
    peer.dbt("build")
    seconds = alternate(
        {
            "ours": ours.build,
            "dbt ls": lambda: ours.seconds("ls"),
            "peer": lambda: peer.seconds("build"),
        },
        bench.runs(3),
        lambda: require_same_rows([ours, peer]),
    )
    return [
        Result.of("build_unchanged", Peer.label, seconds["ours"], seconds["peer"], 5, NOTE),
        _against_listing("build_unchanged_ls", seconds),
    ]


def diamonds(bench: Bench) -> list[Result]:
    """300 views, tables and merges in fifteen layers."""
    ours = _ours(bench, "diamonds", projects.diamonds(bench.size(300)))
    measures = {"ours": ours.build, "dbt ls": lambda: ours.seconds("ls")}
    return [_against_listing("build_unchanged_300_ls", alternate(measures, bench.runs(5)))]


def _ours(bench: Bench, name: str, files: Files) -> Skipping:
    """Return our project, built."""
    ours = Skipping(bench.folder / f"unchanged_{name}" / "ours", files, bench.engine)
    ours.dbt("build")
    return ours


def _against_listing(name: str, seconds: Mapping[str, Sequence[float]]) -> Result:
    return Result.of(name, LISTING, seconds["ours"], seconds["dbt ls"], 0.77, NOTE)
