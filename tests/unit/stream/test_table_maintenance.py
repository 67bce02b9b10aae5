"""When a stream merges the small files of its table."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.stream import table_maintenance
from dbt.adapters.iceberg_stream.stream.errors import Fenced
from dbt.adapters.iceberg_stream.stream.table_maintenance import TableMaintenance


class Clock:
    """Time that passes only in merges, and where a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(table_maintenance.time, "monotonic", made)
    return made


def sink(clock: Clock, seconds: float, *results: Any) -> Mock:
    """A sink whose merges take so long, and end so."""

    def merge() -> bool:
        clock.now += seconds
        result = made.results.pop(0) if made.results else False
        if isinstance(result, Exception):
            raise result
        return bool(result)

    made = Mock(results=list(results), **{"merge_small_files.side_effect": merge})
    made.name = ("s", "t")
    return made


def merges(maintenance: TableMaintenance, table: Mock, clock: Clock, commits: int) -> int:
    before = table.merge_small_files.call_count
    for _ in range(commits):
        clock.now += 1.0
        maintenance.after_commit(table)
    return int(table.merge_small_files.call_count - before)


def test_every_eighth_commit(clock: Clock) -> None:
    maintenance, table = TableMaintenance(0.5, clock.now), sink(clock, 0.1)
    assert merges(maintenance, table, clock, 7) == 0
    assert merges(maintenance, table, clock, 1) == 1
    assert merges(maintenance, table, clock, 16) == 2


def test_until_nothing_is_left_to_merge(clock: Clock) -> None:
    maintenance, table = TableMaintenance(0.5, clock.now), sink(clock, 0.1, True, True, False)
    assert merges(maintenance, table, clock, 8) == 3


def test_within_its_share_of_the_time(clock: Clock) -> None:
    maintenance, table = TableMaintenance(0.2, clock.now), sink(clock, 5.0)
    assert merges(maintenance, table, clock, 8) == 1
    # 5 s are a fifth of 25 s, of which 13 have passed.
    assert merges(maintenance, table, clock, 11) == 0
    assert merges(maintenance, table, clock, 1) == 1


def test_debt_does_not_grow_without_bound(clock: Clock) -> None:
    maintenance, table = TableMaintenance(0.2, clock.now), sink(clock, 500.0)
    assert merges(maintenance, table, clock, 8) == 1
    assert merges(maintenance, table, clock, 63) == 0
    assert merges(maintenance, table, clock, 1) == 1


def test_a_share_of_nothing(clock: Clock) -> None:
    maintenance, table = TableMaintenance(0.0, clock.now), sink(clock, 0.1)
    assert merges(maintenance, table, clock, 100) == 0


@pytest.mark.parametrize("error", [CatalogError("no"), OSError("no")])
def test_an_error_ends_the_maintenance_only(clock: Clock, error: Exception) -> None:
    maintenance, table = TableMaintenance(0.5, clock.now), sink(clock, 0.1, error)
    assert merges(maintenance, table, clock, 100) == 1


def test_another_run_has_taken_over(clock: Clock) -> None:
    maintenance, table = TableMaintenance(0.5, clock.now), sink(clock, 0.1, Fenced("gone"))
    with pytest.raises(Fenced):
        merges(maintenance, table, clock, 8)
