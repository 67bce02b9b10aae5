"""Build and compare frontiers of Kafka: offsets, the ids of their topics, and those of schemas.

The ids show that a topic was deleted and created again under its name. The ids of the schemas that
a registry had under each subject decide the columns of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

IDS = "topic-ids"
SCHEMA_IDS = "schema-ids"


def offsets_of(frontier: Frontier | None) -> Frontier | None:
    """Return a frontier without the ids of topics and schemas.

    Args:
        frontier: the frontier.
    """
    if frontier is None:
        return None
    return {name: offset for name, offset in frontier.items() if name not in (IDS, SCHEMA_IDS)}


def schema_ids_of(frontier: Frontier | None) -> Mapping[str, Sequence[int]]:
    """Return the ids of a frontier's schemas by the registry's subjects.

    Args:
        frontier: the frontier.
    """
    return (frontier or {}).get(SCHEMA_IDS) or {}


def with_ids(frontier: Frontier, ids: Mapping[str, str]) -> Frontier:
    """Return a frontier with the ids of its topics.

    Args:
        frontier: the offsets.
        ids: the ids by the topics' names.
    """
    return {**frontier, IDS: dict(ids)} if ids else frontier


def require_same_topics(frontier: Frontier | None, ids: Mapping[str, str]) -> None:
    """Check that no topic was deleted and created again.

    Args:
        frontier: the stream's frontier; those of older versions have no ids.
        ids: the current ids by the topics' names.

    Raises:
        StreamError: a topic has another id.
    """
    stored = (frontier or {}).get(IDS) or {}
    other = [topic for topic, id in ids.items() if stored.get(topic, id) != id]
    if other:
        raise StreamError(
            f"The topic {', '.join(other)} was deleted and created again, so the stream's offsets "
            "are no longer valid. Rebuild the table with --full-refresh if the topic has all rows; "
            "otherwise load them from the system that wrote them."
        )


def limit_rows(begin: Mapping[str, int], limit: Mapping[str, int], rows: int) -> dict[str, int]:
    """Return the end of a batch of about `rows` messages, the same share of each partition.

    Args:
        begin: offsets at which the batch starts.
        limit: the highest offsets at which it may end.
        rows: number of messages.
    """
    unread = {p: limit[p] - begin[p] for p in begin if limit[p] > begin[p]}
    share = min(1.0, rows / max(1, sum(unread.values())))
    taken = {p: max(1, int(count * share)) for p, count in unread.items()}
    return {p: begin[p] + taken.get(p, 0) for p in begin}
