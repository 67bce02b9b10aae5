from __future__ import annotations

from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.metadata import snapshots

METADATA: dict[str, Any] = {
    "snapshots": [
        {"snapshot-id": 1, "timestamp-ms": 1},
        {"snapshot-id": 2, "timestamp-ms": 2, "parent-snapshot-id": 1},
        {"snapshot-id": 3, "timestamp-ms": 3, "parent-snapshot-id": 2},
        {"snapshot-id": 4, "timestamp-ms": 4},
    ],
    # Snapshot 3 is on a branch; snapshot 4 replaced the table.
    "snapshot-log": [{"snapshot-id": n, "timestamp-ms": n} for n in (1, 2, 4)],
}


@pytest.mark.parametrize(("number", "previous"), [(1, None), (2, 1), (3, 2), (4, 2)])
def test_the_snapshot_before_another(number: int, previous: int | None) -> None:
    (snapshot,) = (s for s in snapshots(METADATA) if s.snapshot_id == number)
    assert snapshot.previous_id == previous


def test_without_a_log() -> None:
    without = {"snapshots": METADATA["snapshots"]}
    assert next(snapshots(without)).previous_id is None
