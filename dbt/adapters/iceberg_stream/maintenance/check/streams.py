"""Checks the progress of streams against the snapshots of their table."""

from __future__ import annotations

from collections.abc import Iterator

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.progress import (
    SINK_ID,
    forgotten_version,
    recorded_ids,
    recover,
)


def check_streams(metadata: Metadata) -> Iterator[Finding]:
    """Recover each stream's progress as its next run would, and report errors.

    Args:
        metadata: table metadata.
    """
    for sink_id in sink_ids(metadata):
        try:
            recover(metadata, sink_id)
        except StreamError as error:
            yield Finding("stream-progress", f"stream {sink_id}", str(error).split(". ")[0] + ".")
        except (ValueError, KeyError, TypeError) as error:
            yield Finding(
                "stream-progress",
                f"stream {sink_id}",
                f"Its progress cannot be read ({type(error).__name__}: {error}).",
            )


def sink_ids(metadata: Metadata) -> list[str]:
    """Return the ids of the streams that have written to a table, by its properties and snapshots.

    Those whose progress was removed are left out.

    Args:
        metadata: table metadata.
    """
    sinks = set(recorded_ids(metadata))
    for snapshot in metadata.get("snapshots") or []:
        sink = (snapshot.get("summary") or {}).get(SINK_ID)
        sinks |= {sink} if sink else set()
    return sorted(sink for sink in sinks if not _is_forgotten(metadata, sink))


def _is_forgotten(metadata: Metadata, sink_id: str) -> bool:
    try:
        return forgotten_version(metadata, sink_id) is not None
    except (ValueError, KeyError, TypeError):
        return False  # `check_streams` reports it
