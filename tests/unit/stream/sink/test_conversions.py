"""A stream that writes equality deletes, and converts them between its commits."""

from __future__ import annotations

import random
import time

import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.metadata import CONVERSION, snapshots
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.stream.errors import Fenced, RolledBack
from dbt.adapters.iceberg_stream.stream.sink.rollback import accept_rollback
from dbt.adapters.iceberg_stream.stream.table_maintenance import COMMITS, Budget, TableMaintenance
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_files
from tests.integration.streams import NAME, SINK, Change, Truth, commit, make_table, open_sink
from tests.integration.tables import LATER, duckdb_rows
from tests.unit.local_tables import live_deletes

ALL_ROWS = 1 << 40
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"), spec_id=0)


def load(lake: IcebergCatalog) -> LoadedTable:
    base = lake.load(NAME)
    assert base is not None
    return base


def conversions(lake: IcebergCatalog) -> int:
    return sum(CONVERSION in one.properties for one in snapshots(load(lake).metadata))


def delete_files(lake: IcebergCatalog) -> tuple[int, int]:
    """How many equality delete files the table has, and how many others."""
    base = load(lake)
    deletes = live_deletes(base.io, base.metadata)
    of_keys = sum(file.content == DataFileContent.EQUALITY_DELETES for file in deletes)
    return of_keys, len(deletes) - of_keys


def changes(number: int) -> list[Change]:
    chosen = random.Random(number)
    return [
        Change(chosen.randrange(40), None if chosen.random() < 0.2 else f"{number}.{n}")
        for n in range(10)
    ]


def rich() -> Budget:
    """The budget of a stream that has run for long, and spent nothing."""
    return Budget(time.monotonic() - 1e6)


@pytest.mark.parametrize("spec", [UNPARTITIONED_PARTITION_SPEC, BY_PART])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.variants(2)
def test_debt_does_not_grow(lake: IcebergCatalog, version: int, spec: PartitionSpec) -> None:
    make_table(lake, version, spec)
    sink, truth = open_sink(lake), Truth()
    maintenance, budget = TableMaintenance(converts_deletes=True), rich()
    for number in range(1, 61):
        if number == 30:
            sink, maintenance = open_sink(lake), TableMaintenance(converts_deletes=True)
        commit(sink, changes(number), number, rows=5, partitioned=bool(spec.fields))
        truth.apply(changes(number))
        maintenance.after_commit(sink, budget)
        of_keys, of_positions = delete_files(lake)
        # Two sub-batches of each commit since the last conversion, which the restart delays.
        assert of_keys < 2 * 2 * COMMITS
        base = load(lake)
        data = live_files(base.io, base.metadata)
        assert of_positions <= len(data) < 4 * COMMITS
        if number % 5 == 0:
            assert duckdb_rows(lake, NAME[1]) == truth.sorted()
    assert conversions(lake) == 29 // COMMITS + 31 // COMMITS
    assert check_table(load(lake), data=True).findings == []
    assert unreferenced_files(load(lake), LATER) == []


def test_a_restart_after_a_conversion(lake: IcebergCatalog) -> None:
    make_table(lake)
    sink = open_sink(lake)
    commit(sink, [Change(1, "x"), Change(2, "x")], 1)
    commit(sink, [Change(1, "y")], 2)
    assert sink.maintenance.convert_equality_deletes(ALL_ROWS) == 0
    assert delete_files(lake) == (0, 1)
    progress = sink.progress
    again = open_sink(lake)
    assert again.progress.frontier == {"offset": 2}
    assert again.progress.write_id == progress.write_id
    commit(again, [Change(2, "y")], 3)
    assert duckdb_rows(lake, NAME[1]) == [(1, "a", "y"), (2, "a", "y")]


def test_the_same_run_goes_on_after_a_conversion(lake: IcebergCatalog) -> None:
    make_table(lake)
    sink = open_sink(lake)
    commit(sink, [Change(1, "x"), Change(2, "x")], 1)
    commit(sink, [Change(1, None)], 2)
    assert sink.maintenance.convert_equality_deletes(ALL_ROWS) == 0
    sink.record({"offset": 3})
    commit(sink, [Change(1, "z")], 4)
    assert duckdb_rows(lake, NAME[1]) == [(1, "a", "z"), (2, "a", "x")]
    assert open_sink(lake).progress.frontier == {"offset": 4}


def test_a_rollback_to_a_conversion(lake: IcebergCatalog) -> None:
    make_table(lake)
    sink = open_sink(lake)
    commit(sink, [Change(1, "x")], 1)
    commit(sink, [Change(1, "y")], 2)
    assert sink.maintenance.convert_equality_deletes(ALL_ROWS) == 0
    converted = load(lake).metadata["current-snapshot-id"]
    commit(sink, [Change(1, "z")], 3)
    reference = {"ref-name": "main", "type": "branch", "snapshot-id": converted}
    lake.commit(load(lake), (), (SetSnapshotRefUpdate.model_validate(reference),))
    with pytest.raises(RolledBack, match="iceberg-stream resume"):
        open_sink(lake)
    accept_rollback(lake, NAME, SINK)
    again = open_sink(lake)
    assert again.progress.frontier == {"offset": 2}
    commit(again, [Change(1, "z")], 3)
    assert duckdb_rows(lake, NAME[1]) == [(1, "a", "z")]


def test_a_fenced_run_does_not_convert(lake: IcebergCatalog) -> None:
    make_table(lake)
    older = open_sink(lake)
    commit(older, [Change(1, "x")], 1)
    commit(older, [Change(1, "y")], 2)
    open_sink(lake)
    with pytest.raises(Fenced, match="has taken over"):
        older.maintenance.convert_equality_deletes(ALL_ROWS)
    assert conversions(lake) == 0
    assert unreferenced_files(load(lake), LATER) == []


def test_only_as_much_as_may_be_read(lake: IcebergCatalog) -> None:
    make_table(lake)
    sink = open_sink(lake)
    commit(sink, [Change(1, "x"), Change(2, "x")], 1)
    assert sink.maintenance.convert_equality_deletes(ALL_ROWS) == 0
    commit(sink, [Change(1, "y")], 2)
    # The key, and the two rows that are older.
    assert sink.maintenance.convert_equality_deletes(2) == 3
    assert delete_files(lake)[0] == 1
    assert sink.maintenance.convert_equality_deletes(3) == 0
    assert delete_files(lake)[0] == 0
    before = load(lake).location
    assert sink.maintenance.convert_equality_deletes(0) == 0
    assert load(lake).location == before


def test_not_while_all_rows_are_replaced(lake: IcebergCatalog) -> None:
    make_table(lake)
    sink = open_sink(lake)
    commit(sink, [Change(1, "x")], 1)
    commit(sink, [Change(1, "y")], 2)
    sink.replace_rows()
    sink.maintenance.convert_equality_deletes(ALL_ROWS)
    assert conversions(lake) == 0
