"""Which tables are small enough for this process to write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.sessions.small_tables import SmallTables
from dbt.adapters.iceberg_stream.sessions.storage_reach import StorageReach

QUERY = "select 1 as id"
CREATE = f"create or replace table lake.s.t using iceberg as {QUERY}"


def query_of(summary: dict[str, str]) -> str | None:
    """Return the query of a statement that replaces a table whose snapshot has a summary."""
    snapshot = {"snapshot-id": 1, "timestamp-ms": 0, "summary": summary}
    metadata = {"current-snapshot-id": 1, "snapshots": [snapshot]}
    catalogs: Any = SimpleNamespace(
        metadata=lambda _: metadata, split=lambda name: (SimpleNamespace(name="lake"), name)
    )
    query = SmallTables(catalogs, 100, StorageReach()).query_of(CREATE, ("s", "t"), {})
    return query.strip() if query else None


@pytest.mark.parametrize(
    ("summary", "is_small"),
    [
        ({"total-records": "100", "total-files-size": "2000"}, True),
        ({"total-records": "101", "total-files-size": "2000"}, False),
        ({"total-records": "100", "total-files-size": "20001"}, False),
        # Writers may leave the totals out.
        ({"total-records": "100"}, False),
        ({"total-files-size": "2000"}, False),
        ({}, False),
    ],
)
def test_by_the_summary_of_the_last_snapshot(summary: dict[str, str], is_small: bool) -> None:
    assert query_of(summary) == (QUERY if is_small else None)
