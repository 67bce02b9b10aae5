"""The streams of a table, from its metadata."""

from __future__ import annotations

from dataclasses import dataclass

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, snapshots
from dbt.adapters.iceberg_stream.maintenance.check.streams import check_streams, sink_ids
from dbt.adapters.iceberg_stream.stream.sink.progress import SINK_ID, read_property


@dataclass(frozen=True)
class StreamHealth:
    """A stream that writes to a table.

    Attributes:
        sink_id: identifies the stream in the table.
        last_commit_ms: time of its last snapshot in milliseconds since 1970; None if that expired.
        last_progress_ms: time of its last commit or progress, also of an idle run; None if unknown.
        problem: why the stream cannot continue; None if it can.
    """

    sink_id: str
    last_commit_ms: int | None
    last_progress_ms: int | None
    problem: str | None


def stream_health(metadata: Metadata) -> tuple[StreamHealth, ...]:
    """Return the streams of a table, sorted by id.

    Args:
        metadata: of the table.
    """
    problems = {finding.where: finding.problem for finding in check_streams(metadata)}
    committed: dict[str, int] = {}
    for snapshot in snapshots(metadata):
        sink_id = snapshot.properties.get(SINK_ID)
        # Compactions copy the summary.
        if sink_id is not None and snapshot.operation != "replace":
            committed.setdefault(sink_id, snapshot.timestamp_ms)
    return tuple(
        StreamHealth(
            sink_id,
            committed.get(sink_id),
            _last_progress(metadata, sink_id) or committed.get(sink_id),
            problems.get(f"stream {sink_id}"),
        )
        for sink_id in sink_ids(metadata)
    )


def _last_progress(metadata: Metadata, sink_id: str) -> int | None:
    try:
        progress = read_property(metadata, sink_id)
    except (ValueError, KeyError, TypeError):
        return None  # `check_streams` reports it
    return None if progress is None else progress.recorded
