"""Frontiers of Kafka: offsets, and which topics they are of.

A topic that is created again has the name of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

IDS = "topic-ids"


def offsets_of(frontier: Frontier | None) -> Frontier | None:
    """A frontier without ids of topics."""
    if frontier is None or IDS not in frontier:
        return frontier
    return {name: offset for name, offset in frontier.items() if name != IDS}


def with_ids(frontier: Frontier, ids: Mapping[str, str]) -> Frontier:
    """A frontier that holds the ids of its topics, by their names."""
    return {**frontier, IDS: dict(ids)} if ids else frontier


def require_same(frontier: Frontier | None, ids: Mapping[str, str]) -> None:
    """Compare ids with those of a frontier; older versions have stored none.

    Raises:
        StreamError: a topic is another one.
    """
    stored = (frontier or {}).get(IDS) or {}
    other = [topic for topic, id in ids.items() if stored.get(topic, id) != id]
    if other:
        raise StreamError(
            f"The topic {', '.join(other)} was deleted and created again: the stream's offsets are "
            "of the one before. Rebuild the table with --full-refresh if the topic holds all rows, "
            "else load them from where they come from."
        )


def shares(begin: Mapping[str, int], limit: Mapping[str, int], rows: int) -> dict[str, int]:
    """Each partition gives its share, so that none is left behind."""
    waiting = {p: limit[p] - begin[p] for p in begin if limit[p] > begin[p]}
    share = min(1.0, rows / max(1, sum(waiting.values())))
    taken = {p: max(1, int(count * share)) for p, count in waiting.items()}
    return {p: begin[p] + taken.get(p, 0) for p in begin}
