"""Alternating runs, what they come to, and on which machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path

import psutil

from dbt.adapters.iceberg_stream.engines.java import find_java
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES

RESULTS = Path(__file__).parent / "results"

Measure = Callable[[], float]


class BenchmarkError(Exception):
    """A command failed or gave wrong rows: its time means nothing."""


@cache
def machine() -> dict[str, str | int | float]:
    """What the figures depend on, without names or paths."""
    iceberg = next(p for p in DEFAULT_PACKAGES if "iceberg" in p)
    return {
        "cores": os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "cpu": _cpu_model(),
        "python": platform.python_version(),
        "java": find_java().version,
        "spark": version("pyspark"),
        "iceberg": iceberg.rpartition(":")[2],
        "dbt_core": version("dbt-core"),
        "dbt_spark": version("dbt-spark"),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


@dataclass(frozen=True)
class Result:
    """One comparison; a higher ratio is better for us.

    Attributes:
        name: the benchmark's name.
        peer: what ours is compared with.
        ratio: the median of the peer's value / our value.
        low: the lowest ratio.
        high: the highest ratio.
        aim: the ratio to reach.
        runs: number of rounds.
        ours_seconds: our median; despite its name in `unit`, as the peer's is.
        peer_seconds: the peer's median.
        note: what is measured.
        unit: `s` or `MiB`.
        machine: the machine and the versions.
    """

    name: str
    peer: str
    ratio: float
    low: float
    high: float
    aim: float | None
    runs: int
    ours_seconds: float
    peer_seconds: float
    note: str
    unit: str = "s"
    machine: dict[str, str | int | float] = field(default_factory=machine)

    @classmethod
    def of(
        cls,
        name: str,
        peer: str,
        ours: Sequence[float],
        theirs: Sequence[float],
        aim: float | None,
        note: str,
        unit: str = "s",
    ) -> Result:
        """Compare times pair by pair, so that a slow minute of the machine hits both sides."""
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        return cls(
            name=name,
            peer=peer,
            ratio=round(statistics.median(ratios), 2),
            low=round(min(ratios), 2),
            high=round(max(ratios), 2),
            aim=aim,
            runs=len(ratios),
            ours_seconds=round(statistics.median(ours), 3),
            peer_seconds=round(statistics.median(theirs), 3),
            note=note,
            unit=unit,
        )

    def write(self, area: str, folder: Path = RESULTS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        record = {"area": area, **asdict(self)}
        path = folder / f"{area}_{self.name}.json"
        path.write_text(json.dumps(record, indent=2) + "\n")

    def __str__(self) -> str:
        aim = "" if self.aim is None else f", aim {self.aim:g}"
        return (
            f"{self.name}: {self.ratio:.2f} ({self.low:.2f}–{self.high:.2f}{aim}), "
            f"{self.ours_seconds:.2f} {self.unit} against {self.peer_seconds:.2f} {self.unit} of "
            f"{self.peer}"
        )


def alternate(
    measures: Mapping[str, Measure], runs: int, check: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Measure A B A B …; the check runs after each round, outside of the times."""
    seconds: dict[str, list[float]] = {name: [] for name in measures}
    for run in range(1, runs + 1):
        for name, measure in measures.items():
            seconds[name].append(measure())
            print(f"  run {run} of {runs}, {name}: {seconds[name][-1]:.2f} s", flush=True)
        check()
    return seconds


def steady(few: Sequence[float], many: Sequence[float]) -> list[float]:
    """What more of the same work takes, so that no start and no end is in."""
    seconds = [b - a for a, b in zip(few, many, strict=True)]
    if min(seconds) <= 0:
        raise BenchmarkError("More changes took less time. The machine is not quiet.")
    return seconds


def less(seconds: Sequence[float], base: Sequence[float]) -> list[float]:
    """The times without the median of their base, whose own jitter would blur small rests."""
    net = [each - statistics.median(base) for each in seconds]
    if min(net) <= 0:
        raise BenchmarkError(f"A run was faster than `dbt ls`: {net}. The machine is not quiet.")
    return net
