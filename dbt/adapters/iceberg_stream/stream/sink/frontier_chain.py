"""Frontiers of snapshot summaries, each of which adds to the one before it.

A folder's frontier names every file of the last `late_seconds`. The table's property has it whole;
a summary, of which a table keeps thousands, has the names that its own commit added. A frontier of
an older snapshot is put together from the summaries behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

# The part of a frontier that grows: names of files, one behind the other, by their time.
READ = "read"
# The write id of the commit whose names a summary leaves out.
SINCE = "since"


@dataclass(frozen=True)
class FrontierChain:
    """The summaries of one run, of which the first is whole, and later ones are once in a while.

    Attributes:
        write_id: of the last commit; empty before the run's first one.
        frontier: of the last commit, whole.
        size: letters of names that summaries have since the last whole one.
    """

    write_id: str = ""
    frontier: Frontier | None = None
    size: int = 0

    def next_summary(
        self, frontier: Frontier | None, write_id: str
    ) -> tuple[Frontier | None, FrontierChain]:
        """What the summary of the next commit has of its frontier, and the chain behind it."""
        added = self._added(frontier)
        if added is None:
            return frontier, FrontierChain(write_id, frontier)
        size = self.size + len(json.dumps(added[READ]))
        return added, FrontierChain(write_id, frontier, size)

    def _added(self, frontier: Frontier | None) -> Frontier | None:
        """The frontier without what the last one has, or None if a whole one is due."""
        if self.frontier is None or frontier is None or READ not in frontier:
            return None
        before, now = self.frontier.get(READ) or {}, frontier[READ]
        if any(not now[time].startswith(before.get(time, "")) for time in now):
            return None
        # A whole one as soon as it costs no more than what has been left out since the last.
        if self.size > len(json.dumps(now)):
            return None
        names = {time: now[time][len(before.get(time, "")) :] for time in now}
        added = {time: several for time, several in names.items() if several}
        return {**frontier, READ: added, SINCE: self.write_id}


def whole_frontier(commits: Iterable[tuple[str, Frontier]]) -> Frontier | None:
    """The frontier of a commit, from its summary and from those behind it.

    Args:
        commits: write ids and frontiers of a stream's summaries, newest first.

    Returns:
        The whole frontier; None if a snapshot that has a part of it has expired.
    """
    newest: Frontier = {}
    read: dict[str, str] = {}
    expected = None
    for write_id, frontier in commits:
        if expected is not None and write_id != expected:
            return None
        newest = newest or frontier
        for time, names in (frontier.get(READ) or {}).items():
            read[time] = names + read.get(time, "")
        expected = frontier.get(SINCE)
        if expected is None:
            return _settled(newest, read)
    return None


def _settled(frontier: Frontier, read: Mapping[str, str]) -> Frontier:
    """The frontier with all names but those that it needs no longer."""
    if READ not in frontier:
        return frontier
    kept = {time: read[time] for time in sorted(read) if int(time) >= frontier["settled"]}
    return {**{key: part for key, part in frontier.items() if key != SINCE}, READ: kept}
