"""Frontiers in snapshot summaries, each of which extends the one before it.

A folder's frontier names every file of the last `late_seconds`. The table's property has the whole
frontier. A table keeps thousands of summaries, so each has only the names that its own commit
added; the frontier of an older snapshot is restored from the summaries before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

# The part of a frontier that grows: names of files, concatenated, by the files' time.
READ = "read"
# The write id of the commit whose names a summary leaves out.
SINCE = "since"


@dataclass(frozen=True)
class FrontierChain:
    """The summaries of one run: the first has a whole frontier, and some of the later ones.

    Attributes:
        write_id: of the last commit; empty before the run's first one.
        frontier: the whole frontier of the last commit.
        size: characters of names in the summaries since the last whole frontier.
    """

    write_id: str = ""
    frontier: Frontier | None = None
    size: int = 0

    def next_summary(
        self, frontier: Frontier | None, write_id: str
    ) -> tuple[Frontier | None, FrontierChain]:
        """Return what the next commit's summary has of its frontier, and the chain after it.

        Args:
            frontier: the whole frontier of the next commit.
            write_id: of the next commit.
        """
        added = self._added(frontier)
        if added is None:
            return frontier, FrontierChain(write_id, frontier)
        size = self.size + len(json.dumps(added[READ]))
        return added, FrontierChain(write_id, frontier, size)

    def _added(self, frontier: Frontier | None) -> Frontier | None:
        """Return the frontier without the last one's names; None if a whole one is due."""
        if self.frontier is None or frontier is None or READ not in frontier:
            return None
        before, current = self.frontier.get(READ) or {}, frontier[READ]
        if any(not current[time].startswith(before.get(time, "")) for time in current):
            return None
        # Write a whole frontier once the names since the last one are longer than it.
        if self.size > len(json.dumps(current)):
            return None
        names = {time: current[time][len(before.get(time, "")) :] for time in current}
        added = {time: added_names for time, added_names in names.items() if added_names}
        return {**frontier, READ: added, SINCE: self.write_id}


def whole_frontier(commits: Iterable[tuple[str, Frontier]]) -> Frontier | None:
    """Restore the whole frontier of a commit from its summary and those before it.

    Args:
        commits: write ids and frontiers of a stream's summaries, newest first.

    Returns:
        The whole frontier; None if a snapshot with a part of it has expired.
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
            return _with_names(newest, read)
    return None


def _with_names(frontier: Frontier, read: Mapping[str, str]) -> Frontier:
    """Return the frontier with those of the names that are not older than its settled time."""
    if READ not in frontier:
        return frontier
    names = {time: read[time] for time in sorted(read) if int(time) >= frontier["settled"]}
    return {**{key: part for key, part in frontier.items() if key != SINCE}, READ: names}
