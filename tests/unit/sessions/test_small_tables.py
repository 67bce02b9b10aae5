"""Which tables are small enough for this process to write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.sessions import small_tables
from dbt.adapters.iceberg_stream.sessions.small_tables import SmallTables
from dbt.adapters.iceberg_stream.sessions.storage_reach import StorageReach
from dbt.adapters.iceberg_stream.sessions.table_sizes import TableSizes

QUERY = "select 1 as id"
CREATE = f"create or replace table lake.s.t using iceberg as {QUERY}"


SMALL = {"total-records": "100", "total-files-size": "2000"}
# Of a table that Spark has created without any.
LAYOUT = {
    "format-version": 2,
    "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
    "current-schema-id": 0,
    "partition-specs": [{"spec-id": 0, "fields": []}],
    "default-spec-id": 0,
    "default-sort-order-id": 0,
}


def tables(summary: dict[str, str], **layout: int) -> SmallTables:
    """Return what replaces small tables, in a catalog whose tables' snapshots have a summary."""
    snapshot = {"snapshot-id": 1, "timestamp-ms": 0, "summary": summary}
    metadata = {"current-snapshot-id": 1, "snapshots": [snapshot], **LAYOUT, **layout}
    catalogs: Any = SimpleNamespace(
        metadata=lambda _, history: metadata,
        split=lambda name: (SimpleNamespace(name="lake"), name),
    )
    return SmallTables(catalogs, TableSizes(catalogs, 100), StorageReach())


def query_of(tables: SmallTables) -> str | None:
    """Return the query of a statement that replaces a table, if this process runs it."""
    query = tables.query_of(CREATE, ("s", "t"), {})
    return query.strip() if query else None


@pytest.mark.parametrize(
    ("summary", "is_small"),
    [
        (SMALL, True),
        ({"total-records": "101", "total-files-size": "2000"}, False),
        ({"total-records": "100", "total-files-size": "20001"}, False),
        # Writers may leave the totals out.
        ({"total-records": "100"}, False),
        ({"total-files-size": "2000"}, False),
        ({}, False),
    ],
)
def test_by_the_summary_of_the_last_snapshot(
    summary: dict[str, str], is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_tables, "TABLES_OF_SPARK", 0)
    assert query_of(tables(summary)) == (QUERY if is_small else None)


@pytest.mark.parametrize("layout", [{"default-sort-order-id": 1}, {"format-version": 3}])
def test_not_if_the_old_table_has_a_layout(
    layout: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_tables, "WRITER", "pytest")
    assert query_of(tables(SMALL, **layout)) is None


def test_spark_writes_the_first_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_tables, "WRITER", "not.imported")
    command = tables(SMALL)
    first = [query_of(command) for _ in range(small_tables.TABLES_OF_SPARK)]
    assert first == [None] * len(first)
    assert query_of(command) == QUERY


def test_not_if_the_writer_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_tables, "WRITER", "pytest")
    assert query_of(tables(SMALL)) == QUERY
