"""Files that have landed in a folder, and the frontier that records which of them were read."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

# Characters of a file's name in a frontier: 96 bits in base 64.
NAME_LENGTH = 16
# A frontier groups files by the second of their time, in milliseconds.
SECOND_MS = 1000


@dataclass(frozen=True)
class LandedFile:
    """A file of a folder.

    Attributes:
        path: on the filesystem.
        modified: time of its last modification, in milliseconds since the epoch.
        size: in bytes.
    """

    path: str
    modified: int
    size: int

    @cached_property
    def name(self) -> str:
        """The file's name in a frontier: a hash that is long enough to be unique.

        It has the time and the size, too: a file that is rewritten in its place is another one.
        """
        # No path contains a null character.
        return _short(hashlib.sha256(f"{self.path}\0{self.modified}\0{self.size}".encode()))

    @cached_property
    def old_names(self) -> tuple[str, str]:
        """The names in frontiers of older versions, which know a file by its path only."""
        digest = hashlib.sha256(self.path.encode())
        # Two of a million files may share the second one.
        return _short(digest), digest.hexdigest()[:10]


def _short(digest: hashlib._Hash) -> str:
    return base64.b64encode(digest.digest()[: NAME_LENGTH * 3 // 4]).decode()


def frontier_after(
    lower: Frontier | None, files: Sequence[LandedFile], late_seconds: float
) -> Frontier:
    """Return the frontier after a batch of files.

    Args:
        lower: the frontier that the batch begins at.
        files: the batch: the oldest files that are not in `lower`.
        late_seconds: how much later than its time a file may appear.
    """
    read = {} if lower is None else dict(lower.get("read") or {})
    old = {} if lower is None else lower.get("names") or {}
    for modified, names in names_by_second(files).items():
        read[modified] = read.get(modified, "") + names
    last = max(file.modified for file in files)
    # A file may have a time in the future; files that land before that time must still be read.
    newest = min(last, int(time.time() * 1000))
    settled = newest - int(late_seconds * 1000)
    if lower is not None:
        settled = max(settled, lower["settled"])
    recent = {modified: names for modified, names in read.items() if int(modified) >= settled}
    last = max(last, (lower or {}).get("last", 0))
    frontier = {"settled": settled, "last": last, "read": recent, "files": len(files)}
    if recent_old := {name: modified for name, modified in old.items() if modified >= settled}:
        frontier["names"] = recent_old
    return frontier


def names_by_second(files: Sequence[LandedFile]) -> dict[str, str]:
    """Return the concatenated names of files, by their time rounded up to a second.

    The times are texts, in milliseconds since the epoch.
    """
    names: dict[str, list[str]] = {}
    for file in files:
        names.setdefault(str(_second(file.modified)), []).append(file.name)
    return {second: "".join(several) for second, several in names.items()}


def read_check(frontier: Frontier | None) -> Callable[[LandedFile], bool]:
    """Return a function that tells whether a file is read according to a frontier."""
    if frontier is None:
        return lambda _: False
    settled, old = frontier["settled"], frontier.get("names") or {}
    read = {
        (int(second), names[begin : begin + NAME_LENGTH])
        for second, names in (frontier.get("read") or {}).items()
        for begin in range(0, len(names), NAME_LENGTH)
    }
    read |= {(_second(modified), name) for name, modified in old.items()}

    def is_read(file: LandedFile) -> bool:
        # Older versions' names lack the time: a file that was rewritten since has another second.
        second = _second(file.modified)
        names = (file.name, *file.old_names)
        return file.modified < settled or any((second, name) in read for name in names)

    return is_read


def _second(modified: int) -> int:
    """Return a time rounded up to a second, in milliseconds."""
    return -(-modified // SECOND_MS) * SECOND_MS


def ranks(files: Sequence[LandedFile]) -> list[int]:
    """Number files with the same time from 0; files with different times have 0.

    Args:
        files: sorted by their time.
    """
    ranks = [0]
    for before, file in pairwise(files):
        ranks.append(ranks[-1] + 1 if file.modified == before.modified else 0)
    return ranks
