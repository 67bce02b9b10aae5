"""Streams whose rows to delete a key index locates, read by Spark and by DuckDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.metadata import CONVERSION, snapshots
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.stream.batches import batch_writer, runners
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.table_maintenance import COMMITS
from dbt.adapters.iceberg_stream.tables.deletes.equality import equality_delete_files
from tests.integration.stream_bed import Bed, last_of_each, random_changes
from tests.integration.tables import LATER, duckdb_rows

POSITIONS, EQUALITY = 1, 2
MakeBed = Callable[..., Bed]


@pytest.fixture
def bed(lake: IcebergCatalog, spark: Session, tmp_path: Path) -> MakeBed:
    def make(version: int, by: str = "", tasks: bool = False, **options: Any) -> Bed:
        layout = f"tblproperties ('format-version' = '{version}')"
        partition = f"named_struct('f0', `{by}`)" if by else ""
        return Bed(
            lake,
            spark,
            tmp_path / "landing",
            runners.in_tasks if tasks else runners.in_process,
            {"deletes": "op = 'd'", "truncates": "op = 't'", **options},
            layout=f"partitioned by ({by}) {layout}" if by else layout,
            partition=partition,
            parquet=not tasks,
        )

    return make


def contents(made: Bed) -> set[int]:
    """The contents of all delete files that the table has or had."""
    sql = f"select distinct content from s.{made.name}.all_delete_files"
    return {row[0] for row in as_rows(made.spark.query(sql))}


@pytest.mark.parametrize("tasks", [False, True])
@pytest.mark.parametrize("by", ["", "a"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.variants(3)
def test_the_table_is_the_truth(bed: MakeBed, version: int, by: str, tasks: bool) -> None:
    made = bed(version, by, tasks)
    changes = random_changes(7, 60)
    for begin in range(0, 60, 15):
        made.land(changes[begin : begin + 15])
        made.drain()
        truth = last_of_each(changes[: begin + 15])
        assert made.rows() == truth
    assert duckdb_rows(made.lake, made.name) == truth
    assert contents(made) == {POSITIONS}
    base = made.lake.load(("s", made.name))
    assert base is not None
    assert unreferenced_files(base, LATER) == []


@pytest.mark.parametrize(
    ("encoding", "expected"), [("auto", EQUALITY), ("position", POSITIONS), ("equality", EQUALITY)]
)
def test_a_table_that_is_too_large_for_an_index(bed: MakeBed, encoding: str, expected: int) -> None:
    made = bed(2, delete_encoding=encoding, max_indexed_rows=1)
    changes = random_changes(3, 45)
    for begin in range(0, 45, 15):
        made.land(changes[begin : begin + 15])
        made.drain()
        assert made.rows() == last_of_each(changes[: begin + 15])
    assert expected in contents(made)


@pytest.mark.parametrize("options", [{}, {"sequence_by": ("at",)}], ids=["arrival", "sequence"])
@pytest.mark.parametrize("version", [2, 3])
def test_the_partitions_of_a_table_that_is_too_large(
    bed: MakeBed, version: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where keys have the partition, those that changes reach are indexed."""
    logger = Mock()
    monkeypatch.setattr(batch_writer, "logger", logger)
    made = bed(version, by="id", max_indexed_rows=12, batch_rows=1, commit_interval=0.0, **options)
    before = [{"id": n, "a": "x", "b": n, "at": -1, "op": "u"} for n in range(20)]
    values = ", ".join(f"({n}, 'x', {n}, -1)" for n in range(20))
    made.spark.run(f"insert into s.{made.name} values {values}")
    changes = random_changes(11, 40, keys=20)
    for begin in range(0, 40, 10):
        # Batches of two changes each: of up to two partitions.
        for number in range(begin, begin + 10, 2):
            made.land(changes[number : number + 2])
        made.drain()
        assert made.rows() == last_of_each([*before, *changes[: begin + 10]])
    assert not logger.warning.called, logger.warning.call_args
    assert contents(made) <= {POSITIONS}
    made.land([*changes, *({**row, "at": 50} for row in before)])
    made.drain()
    assert made.rows() == last_of_each([*changes, *({**row, "at": 50} for row in before)])
    assert EQUALITY in contents(made)
    ((message,), _) = logger.warning.call_args
    assert "the partitions of its changes have over 12 rows (`max_indexed_rows`)" in message
    base = made.lake.load(("s", made.name))
    assert base is not None
    assert unreferenced_files(base, LATER) == []


@pytest.mark.parametrize("version", [2, 3])
def test_a_table_that_is_too_large_for_an_index_converts_its_deletes(
    bed: MakeBed, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = Mock()
    monkeypatch.setattr(batch_writer, "logger", logger)
    made = bed(version, max_indexed_rows=1, batch_rows=1, commit_interval=0.0)
    changes = random_changes(5, 128)
    # Runs of many commits, the first of which fills the table.
    for begin, end in ((0, 8), (8, 68), (68, 128)):
        for number in range(begin, end, 4):
            made.land(changes[number : number + 4])
        made.drain()
        assert made.rows() == last_of_each(changes[:end])
    base = made.lake.load(("s", made.name))
    assert base is not None
    converted = sum(CONVERSION in one.properties for one in snapshots(base.metadata))
    assert converted == 2 * (15 // COMMITS)
    assert len(equality_delete_files(base)) <= 2 * COMMITS
    # DuckDB loses rows whose key is null beside equality deletes.
    assert [row for row in duckdb_rows(made.lake, made.name) if row[0] is not None] == [
        row for row in last_of_each(changes) if row[0] is not None
    ]
    assert unreferenced_files(base, LATER) == []
    messages = [call.args[0] for call in logger.warning.call_args_list]
    assert [m for m in messages if "converts them to deletes by position" in m] == messages != []


def test_an_order_that_deletes_by_position_would_forget(bed: MakeBed) -> None:
    """Without an index nothing keeps when a key was deleted, except equality deletes."""
    options = {"delete_encoding": "position", "sequence_by": ("at",), "max_indexed_rows": 1}
    made = bed(3, **options)
    made.land(random_changes(3, 15))
    made.drain()
    before = made.rows()
    assert len(before) > 1
    made.land(random_changes(4, 15))
    with pytest.raises(StreamError, match="needs this index to delete rows by position"):
        made.drain()
    assert made.rows() == before
