"""How often catalogs are asked what queries read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.sessions.table_sizes import INTERPRETED_ROWS, TableSizes


class OneTable:
    """Catalogs of one table, which grows by a row each time that it is loaded."""

    def __init__(self, rows: int) -> None:
        self.rows, self.loaded = rows, 0

    def find_qualified(self, parts: tuple[str, ...]) -> QualifiedName:
        return parts[-2], parts[-1]

    def split(self, name: QualifiedName) -> tuple[Any, QualifiedName]:
        return SimpleNamespace(name="lake"), name

    def metadata(self, name: QualifiedName) -> Metadata:
        rows, self.loaded = self.rows + self.loaded, self.loaded + 1
        summary = {"total-records": str(rows), "total-files-size": "1"}
        return {
            "table-uuid": "u",
            "current-schema-id": 0,
            "schemas": [{"schema-id": 0, "fields": []}],
            "last-updated-ms": 0,
            "current-snapshot-id": 1,
            "snapshots": [{"snapshot-id": 1, "timestamp-ms": 0, "summary": summary}],
        }


@pytest.mark.parametrize(
    ("remembers", "answers"), [(True, [True] * 3), (False, [True, False, False])]
)
def test_what_queries_read(remembers: bool, answers: list[bool]) -> None:
    catalogs: Any = OneTable(INTERPRETED_ROWS)
    sizes = TableSizes(catalogs, 100_000, remembers)
    assert [sizes.computes_few_rows("select * from s.t", {}) for _ in range(3)] == answers
    assert catalogs.loaded == (1 if remembers else 3)


def test_no_more_rows_than_small_tables_have() -> None:
    catalogs: Any = OneTable(10)
    assert not TableSizes(catalogs, 9).computes_few_rows("select * from s.t", {})


@pytest.mark.parametrize(
    ("summary", "most_rows"),
    [
        (None, 500),
        ({"total-records": "0", "total-files-size": "0"}, 500),
        ({"total-records": "10", "total-files-size": "2000"}, 500),
        ({"total-records": "10", "total-files-size": "20000"}, 50),
        ({"total-records": "10"}, 100),
    ],
)
def test_merges_of_large_rows(summary: dict[str, str] | None, most_rows: int) -> None:
    catalogs: Any = OneTable(1)
    snapshot = {"snapshot-id": 1, "timestamp-ms": 1, "summary": summary}
    metadata = {"current-snapshot-id": 1, "snapshots": [snapshot]}
    sizes = TableSizes(catalogs, 100)
    assert sizes.most_merged_rows(None if summary is None else metadata) == most_rows
