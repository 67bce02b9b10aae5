"""What a benchmark is given: a folder, sizes, the number of runs, and contenders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dbt.adapters.iceberg_stream.engines.embedded import stop

from .contenders import Files, Ours, OursCold, Peer, WarmPeer
from .harness import Result


class Trio(NamedTuple):
    """The same project three times, built: ours, the peer, and the peer on our warm engine."""

    ours: Ours
    peer: Peer
    warm_peer: WarmPeer


@dataclass
class Bench:
    """One run of the harness. `small` makes everything tiny, to see that it works."""

    folder: Path
    wanted_runs: int | None = None
    small: bool = False
    scale_factor: str = "1"
    _trios: dict[str, Trio] = field(default_factory=dict)

    @property
    def engine(self) -> Path:
        """The folder of the warm engine, one for all projects."""
        return self.folder / "engine"

    def size(self, full: int) -> int:
        return max(1, full // 10) if self.small else full

    def runs(self, default: int = 3) -> int:
        return self.wanted_runs or (1 if self.small else default)

    def trio(
        self,
        name: str,
        files: Files,
        warehouse: Path | None = None,
        prepare: Sequence[str] = ("build",),
    ) -> Trio:
        """The warm contenders of a project, made once for all benchmarks.

        Each runs the dbt command `prepare`, untimed, so that the first timed run finds the
        project parsed and the engine warm.
        """
        if name not in self._trios:
            print(f"  preparing {name} with each adapter", flush=True)
            root = self.folder / name
            trio = Trio(
                Ours(root / "ours", files, self.engine, warehouse),
                Peer(root / "peer", files, warehouse),
                WarmPeer(root / "warm_peer", files, self.engine, warehouse),
            )
            for contender in trio if prepare else ():
                contender.dbt(*prepare)
            self._trios[name] = trio
        return self._trios[name]

    def cold(self, name: str, files: Files) -> OursCold:
        """Our adapter with the project built and an engine of its own, which never stays."""
        root = self.folder / name / "cold"
        ours = OursCold(root, files, root / ".iceberg_stream")
        ours.prepare()
        return ours

    def close(self) -> None:
        stop(self.engine)


Benchmark = Callable[[Bench], list[Result]]
