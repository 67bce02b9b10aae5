"""When a stream merges the small files of its table, and converts its equality deletes."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.stream import table_maintenance
from dbt.adapters.iceberg_stream.stream.errors import Fenced
from dbt.adapters.iceberg_stream.stream.table_maintenance import Budget, TableMaintenance
from dbt.adapters.iceberg_stream.tables.deletes.conversion import NotConvertible
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting


class Clock:
    """Time that passes only in merges and conversions, and where a test says so."""

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

    def merge(most_bytes: int) -> bool:
        made.bytes.append(most_bytes)
        clock.now += seconds
        result = made.results.pop(0) if made.results else False
        if isinstance(result, Exception):
            raise result
        return bool(result)

    made = Mock(
        results=list(results), bytes=[], **{"maintenance.merge_small_files.side_effect": merge}
    )
    made.name = ("s", "t")
    return made


Maintained = tuple[TableMaintenance, Budget]


def maintained(clock: Clock, share: float | None) -> Maintained:
    return TableMaintenance(share), Budget(clock.now)


def merges(maintained: Maintained, table: Mock, clock: Clock, commits: int) -> int:
    maintenance, budget = maintained
    before = table.maintenance.merge_small_files.call_count
    for _ in range(commits):
        clock.now += 1.0
        maintenance.after_commit(table, budget)
    return int(table.maintenance.merge_small_files.call_count - before)


def test_every_eighth_commit(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.5), sink(clock, 0.1)
    assert merges(maintenance, table, clock, 7) == 0
    assert merges(maintenance, table, clock, 1) == 1
    assert merges(maintenance, table, clock, 16) == 2


def test_until_nothing_is_left_to_merge(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.5), sink(clock, 0.1, True, True, False)
    assert merges(maintenance, table, clock, 8) == 3


def test_within_its_share_of_the_time(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.2), sink(clock, 5.0)
    assert merges(maintenance, table, clock, 8) == 1
    # 5 s are a fifth of 25 s, of which 13 have passed.
    assert merges(maintenance, table, clock, 12) == 0
    assert merges(maintenance, table, clock, 1) == 1


def test_no_more_bytes_than_there_is_time_for(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.2), sink(clock, 1.0, True, True)
    merges(maintenance, table, clock, 8)
    # A fifth of 8 s, and after one second of merging what is left of a fifth of 9 s.
    second = table_maintenance.BYTES_PER_SECOND
    assert table.bytes == pytest.approx([1.6 * second, 0.8 * second])


def test_files_with_deleted_rows_have_half_of_the_time_that_is_left(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.2), sink(clock, 0.5)
    rewrite = table.maintenance.rewrite_deleted_rows
    assert merges(maintenance, table, clock, 63) == 7
    assert rewrite.call_count == 0
    merges(maintenance, table, clock, 1)
    # Half of a fifth of 68 s, without the 4 s that the merges have taken.
    (most_bytes,) = rewrite.call_args.args
    assert most_bytes == pytest.approx(4.8 * table_maintenance.BYTES_PER_SECOND, abs=1)
    merges(maintenance, table, clock, 63)
    assert rewrite.call_count == 1


def test_files_with_deleted_rows_wait_for_small_files(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.2), sink(clock, 20.0, True)
    assert merges(maintenance, table, clock, 64) == 1
    assert table.maintenance.rewrite_deleted_rows.call_count == 0


def test_debt_does_not_grow_without_bound(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.2), sink(clock, 500.0, True)
    assert merges(maintenance, table, clock, 8) == 1
    assert merges(maintenance, table, clock, 63) == 0
    assert merges(maintenance, table, clock, 1) == 1


def test_files_that_are_too_large_for_the_time_are_merged_at_last(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.001), sink(clock, 0.0)
    merges(maintenance, table, clock, 64)
    assert table.bytes[-1] == table_maintenance.BYTES_AT_ONCE
    assert max(table.bytes[:-1]) < table_maintenance.BYTES_AT_ONCE
    assert len(table.bytes) == 8


def test_a_share_of_nothing(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.0), sink(clock, 0.1)
    assert merges(maintenance, table, clock, 100) == 0


def test_the_default_share(clock: Clock) -> None:
    maintenance, table = maintained(clock, None), sink(clock, 0.1)
    assert merges(maintenance, table, clock, 8) == 1
    table.index = None
    assert merges(maintenance, table, clock, 100) == 0


def test_tables_of_a_stream_share_its_time(clock: Clock) -> None:
    (first, budget), table = maintained(clock, 0.2), sink(clock, 5.0)
    second = TableMaintenance(0.2), budget
    assert merges((first, budget), table, clock, 8) == 1
    # 5 s are a fifth of 25 s, of which 13 have passed.
    assert merges(second, table, clock, 12) == 0
    assert merges(second, table, clock, 1) == 1


@pytest.mark.parametrize("error", [CatalogError("away"), OSError("away")])
def test_an_error_that_may_pass(clock: Clock, error: Exception) -> None:
    maintenance, table = maintained(clock, 0.5), sink(clock, 0.1, error)
    assert merges(maintenance, table, clock, 8) == 1
    assert merges(maintenance, table, clock, 71) == 0
    assert merges(maintenance, table, clock, 1) == 1


def test_a_file_that_cannot_be_merged(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.5), sink(clock, 0.1, NotByRewriting("no ids"))
    assert merges(maintenance, table, clock, 200) == 1


def test_another_run_has_taken_over(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.5), sink(clock, 0.1, Fenced("gone"))
    with pytest.raises(Fenced):
        merges(maintenance, table, clock, 8)


def without_index(clock: Clock, seconds: float, *errors: Exception, needs: int = 1) -> Mock:
    """A sink without a key index, whose conversions take so long, read so many rows, and fail so."""

    def convert(most_rows: int) -> int:
        made.rows.append(most_rows)
        if most_rows < needs:
            return needs
        clock.now += seconds
        made.converted += 1
        if made.errors:
            raise made.errors.pop(0)
        return 0

    made = sink(clock, 0.0)
    made.configure_mock(index=None, errors=list(errors), rows=[], converted=0)
    made.maintenance.convert_equality_deletes.side_effect = convert
    return made


def conversions(maintained: Maintained, table: Mock, clock: Clock, commits: int) -> int:
    before = table.converted
    merges(maintained, table, clock, commits)
    return int(table.converted - before)


def converting(clock: Clock, share: float | None = 0.2) -> Maintained:
    return TableMaintenance(share, converts_deletes=True), Budget(clock.now)


def test_equality_deletes_are_converted_before_small_files_are_merged(clock: Clock) -> None:
    maintenance, table = converting(clock), without_index(clock, 0.1)
    assert conversions(maintenance, table, clock, 7) == 0
    assert conversions(maintenance, table, clock, 1) == 1
    names = [name for name, _, _ in table.mock_calls]
    assert names[:2] == ["maintenance.convert_equality_deletes", "maintenance.merge_small_files"]
    assert conversions(maintenance, table, clock, 16) == 2


def test_nothing_is_converted_beside_a_key_index(clock: Clock) -> None:
    maintenance, table = converting(clock), without_index(clock, 0.1)
    table.index = Mock()
    assert merges(maintenance, table, clock, 8) == 1
    assert table.converted == 0


def test_nothing_is_converted_where_its_stream_needs_equality_deletes(clock: Clock) -> None:
    maintenance, table = maintained(clock, 0.2), without_index(clock, 0.1)
    assert merges(maintenance, table, clock, 8) == 1
    assert table.converted == 0


def test_half_of_the_time_is_for_conversions(clock: Clock) -> None:
    maintenance, table = converting(clock), without_index(clock, 0.0)
    merges(maintenance, table, clock, 8)
    # Half of a fifth of 8 s.
    assert table.rows == [pytest.approx(0.8 * table_maintenance.ROWS_PER_SECOND, abs=1)]


def test_a_larger_table_waits_longer(clock: Clock) -> None:
    needs = 10 * table_maintenance.ROWS_PER_SECOND
    maintenance, table = converting(clock), without_index(clock, 10.0, needs=needs)
    # 10 s are half of a fifth of 100 s. Until then, small files have equality deletes, too.
    assert merges(maintenance, table, clock, 100) == 0
    assert table.converted == 0
    assert merges(maintenance, table, clock, 1) == 1
    assert table.converted == 1
    # The table was looked at once before.
    assert len(table.rows) == 2
    # What it has taken counts: 30 s are a fifth of 150 s, of which 111 have passed.
    assert conversions(maintenance, table, clock, 39) == 0
    assert conversions(maintenance, table, clock, 1) == 1


def test_a_conversion_that_takes_longer_than_estimated(clock: Clock) -> None:
    maintenance, table = converting(clock), without_index(clock, 20.0)
    assert conversions(maintenance, table, clock, 8) == 1
    # 20 s are a fifth of 100 s, of which 28 have passed.
    assert conversions(maintenance, table, clock, 72) == 0
    assert conversions(maintenance, table, clock, 1) == 1


def test_the_default_share_of_conversions(clock: Clock) -> None:
    assert conversions(converting(clock, None), without_index(clock, 0.1), clock, 8) == 1
    assert conversions(converting(clock, 0.0), without_index(clock, 0.1), clock, 100) == 0


@pytest.mark.parametrize("error", [CatalogError("away"), OSError("away")])
def test_an_error_of_a_conversion_that_may_pass(clock: Clock, error: Exception) -> None:
    maintenance, table = converting(clock), without_index(clock, 0.1, error)
    assert conversions(maintenance, table, clock, 8) == 1
    assert table.maintenance.merge_small_files.call_count == 0
    assert conversions(maintenance, table, clock, 71) == 0
    assert conversions(maintenance, table, clock, 1) == 1


def test_deletes_that_cannot_be_converted(clock: Clock) -> None:
    maintenance, table = converting(clock), without_index(clock, 0.1, NotConvertible("avro"))
    assert conversions(maintenance, table, clock, 200) == 1


def test_another_run_has_taken_over_before_a_conversion(clock: Clock) -> None:
    maintenance, table = converting(clock), without_index(clock, 0.1, Fenced("gone"))
    with pytest.raises(Fenced):
        conversions(maintenance, table, clock, 8)
