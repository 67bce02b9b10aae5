"""The versions of a source, by the log of its snapshots."""

from __future__ import annotations

from typing import Any

from dbt.adapters.iceberg_stream.materializations.snapshot_history import _history


def test_the_clock_of_a_writer_is_behind() -> None:
    """A snapshot that has read what came before it reads this version, too."""
    log = [(100, 1), (200, 2), (195, 3), (196, 4), (210, 5)]
    snapshots = [
        {"snapshot-id": n, "parent-snapshot-id": n - 1 or None, "summary": {"operation": "append"}}
        for _, n in log
    ]
    metadata: dict[str, Any] = {
        "snapshots": snapshots,
        "snapshot-log": [{"timestamp-ms": at, "snapshot-id": n} for at, n in log],
        "current-snapshot-id": 5,
    }
    assert list(_history(metadata)) == [(100, 1), (200, 2), (201, 3), (202, 4), (210, 5)]
