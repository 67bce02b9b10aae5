"""Files of a folder, and what a frontier remembers of those that were read."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

# Letters of a file's name in a frontier: 96 bits.
NAME = 16
# Milliseconds whose files a frontier keeps, and lets go, together.
SECOND = 1000


@dataclass(frozen=True)
class LandedFile:
    path: str
    modified: int
    size: int

    @cached_property
    def name(self) -> str:
        """Short enough to be remembered, long enough that no two files have the same."""
        return base64.b64encode(self._digest[: NAME * 3 // 4]).decode()

    @cached_property
    def old_name(self) -> str:
        """As in frontiers of older versions, which two of a million files may share."""
        return self._digest.hex()[:10]

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(self.path.encode()).digest()


def frontier_after(
    lower: Frontier | None, files: Sequence[LandedFile], late_seconds: float
) -> Frontier:
    """The frontier behind files, which are the oldest of those not read yet."""
    read = {} if lower is None else dict(lower.get("read") or {})
    old = {} if lower is None else lower.get("names") or {}
    for modified, names in names_of(files).items():
        read[modified] = read.get(modified, "") + names
    last = max(file.modified for file in files)
    # A file may have a time that is still to come, and those of until then come after it.
    newest = min(last, int(time.time() * 1000))
    settled = newest - int(late_seconds * 1000)
    if lower is not None:
        settled = max(settled, lower["settled"])
    kept = {modified: names for modified, names in read.items() if int(modified) >= settled}
    last = max(last, (lower or {}).get("last", 0))
    frontier = {"settled": settled, "last": last, "read": kept, "files": len(files)}
    if left := {name: modified for name, modified in old.items() if modified >= settled}:
        frontier["names"] = left
    return frontier


def names_of(files: Sequence[LandedFile]) -> dict[str, str]:
    """Names of files by the second of their time, in milliseconds and rounded up."""
    names: dict[str, list[str]] = {}
    for file in files:
        names.setdefault(str(-(-file.modified // SECOND) * SECOND), []).append(file.name)
    return {second: "".join(several) for second, several in names.items()}


def membership(frontier: Frontier | None) -> Callable[[LandedFile], bool]:
    """Whether a file is in a frontier."""
    if frontier is None:
        return lambda _: False
    settled, old = frontier["settled"], frontier.get("names") or {}
    read = {
        names[begin : begin + NAME]
        for names in (frontier.get("read") or {}).values()
        for begin in range(0, len(names), NAME)
    }
    return lambda file: file.modified < settled or file.name in read or file.old_name in old


def ranks(files: Sequence[LandedFile]) -> list[int]:
    """What tells files of one millisecond apart."""
    ranks = [0]
    for before, file in pairwise(files):
        ranks.append(ranks[-1] + 1 if file.modified == before.modified else 0)
    return ranks
