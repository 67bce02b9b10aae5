from __future__ import annotations

import itertools

import pytest

from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome
from dbt.adapters.iceberg_stream.tables.commit.table_change import TableChange


def outcome(before: int | None, after: int | None, inserted: int, at: int, **more: int) -> Outcome:
    numbers = {"rows_updated": 0, "rows_deleted": 0, "bytes_written": 10, **more}
    return Outcome(
        snapshot_id=at,
        operation="overwrite",
        rows_affected=0,
        rows_inserted=inserted,
        files_added=1,
        files_removed=0,
        rows_before=before,
        rows_after=after,
        timestamp_ms=at,
        **numbers,
    )


@pytest.mark.parametrize("order", itertools.permutations(range(3)), ids=str)
def test_commits_of_parallel_batches_in_any_order(order: tuple[int, ...]) -> None:
    commits = [outcome(10, 12, 2, 1), outcome(12, 11, 0, 2), outcome(11, 14, 4, 3, rows_updated=2)]
    change = TableChange()
    for number in order:
        change.add(commits[number])
    assert (change.rows_before, change.rows_after) == (10, 14)
    assert (change.rows_inserted, change.rows_updated, change.rows_removed) == (6, 2, 2)
    assert (change.commits, change.bytes_written) == (3, 30)
    assert change.share_changed == 0.4
    assert change.share_lost == 0
    assert not change.is_rebuilt


def test_a_rebuilt_table() -> None:
    change = TableChange()
    change.add(outcome(20, 5, 5, 1))
    assert (change.rows_removed, change.share_changed, change.share_lost) == (20, 1.0, 0.75)
    assert change.is_rebuilt


@pytest.mark.parametrize(("before", "after"), [(0, 4), (None, 4)])
def test_no_share_without_rows_before(before: int | None, after: int) -> None:
    change = TableChange()
    change.add(outcome(before, after, 4, 1))
    assert (change.share_changed, change.share_lost, change.is_rebuilt) == (None, 0.0, False)


def test_rows_after_are_unknown() -> None:
    change = TableChange()
    change.add(outcome(8, None, 1, 1, rows_deleted=3))
    assert (change.rows_removed, change.share_lost, change.is_rebuilt) == (3, 0.0, False)
