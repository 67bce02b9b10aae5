"""Streams with all versions of their keys, which Spark reads through the key index; DuckDB reads."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.dataframe import DataFrame

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.batches import located_rows
from dbt.adapters.iceberg_stream.stream.batches.runners import Runner, in_process, in_tasks
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import Delta
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import DeltaPlan
from tests.integration.stream_bed import Bed
from tests.integration.tables import duckdb_rows
from tests.integration.version_model import Change, Delete, Version, changed_versions, deletes_of

OPTIONS = {"deletes": "op = 'd'", "sequence_by": ("at",), "scd_type": 2}
EXTRA = ", __START_AT bigint, __END_AT bigint"
MERGE_ON_READ = "'write.delete.mode' = 'merge-on-read'"


class Plans:
    """Spark's plans of the batches that a runner writes."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.plans: list[str] = []

    def __call__(
        self, session: Session, plan: DeltaPlan, sql: str, views: dict[str, DataFrame]
    ) -> list[Delta]:
        self.plans.append(session.frame(sql, **views)._explain_string())
        return self.runner(session, plan, sql, views)

    @property
    def scans(self) -> list[bool]:
        """Whether each batch scans an Iceberg table."""
        return ["BatchScan" in plan for plan in self.plans]


def land(bed: Bed, changes: list[Change]) -> None:
    bed.land(
        [
            {"id": key, "a": value, "at": at, "op": "d" if value is None else "u"}
            for key, value, at in changes
        ]
    )


def versions(lake: IcebergCatalog, bed: Bed) -> list[Version]:
    return duckdb_rows(lake, bed.name, 'id, a, "__START_AT", "__END_AT"')


def other_writer(bed: Bed, chosen: random.Random, truth: list[Version]) -> list[Version]:
    """Let Spark change the table; return its versions then."""
    match chosen.randrange(4):
        case 0:
            bed.spark.run(
                f"call lake.system.rewrite_data_files(table => 's.{bed.name}', "
                "options => map('rewrite-all', 'true'))"
            )
        case 1:
            key = chosen.randrange(5)
            bed.spark.run(f"delete from s.{bed.name} where id = {key} and __END_AT is not null")
            return [v for v in truth if v[0] != key or v[3] is None]
        case 2:
            start = chosen.randrange(1000, 10**9)
            bed.spark.run(
                f"insert into s.{bed.name} (id, a, __START_AT, __END_AT) "
                f"values (2, 'other', {start}, {start + 5})"
            )
            return [*truth, (2, "other", start, start + 5)]
    return truth


@pytest.mark.parametrize(
    ("version", "runner", "seed"), [(2, in_process, 1), (3, in_process, 2), (3, in_tasks, 3)]
)
@pytest.mark.variants(1)
def test_random_histories(
    lake: IcebergCatalog, spark: Session, tmp_path: Path, version: int, runner: Any, seed: int
) -> None:
    layout = f"tblproperties ('format-version' = '{version}', {MERGE_ON_READ})"
    plans, chosen = Plans(runner), random.Random(seed)
    bed = Bed(lake, spark, tmp_path / "landing", plans, OPTIONS, EXTRA, layout)
    truth: list[Version] = []
    deletes: set[Delete] = set()
    for _ in range(3):
        for _ in range(chosen.randrange(1, 3)):
            # Each time once in a file, because several files may be one batch.
            times = chosen.sample(range(60), chosen.randrange(1, 25))
            changes = [
                (chosen.choice([None, 0, 1, 2, 3, 4]), chosen.choice(["x", "y", None]), at)
                for at in times
            ]
            land(bed, changes)
            bed.drain()
            truth = changed_versions(truth, changes, deletes)
            deletes |= deletes_of(changes)
            assert Counter(versions(lake, bed)) == Counter(truth)
        truth = other_writer(bed, chosen, truth)
    assert plans.scans and not any(plans.scans)


@pytest.mark.parametrize(
    ("limits", "scans"),
    [
        ({}, False),
        ({"MOST_KEYS": 1}, True),
        ({"MOST_ROWS": 1}, True),
        ({"MOST_BYTES": 1}, True),
    ],
)
@pytest.mark.variants(2)
def test_both_ways_are_the_same(
    lake: IcebergCatalog,
    spark: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, int],
    scans: bool,
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(located_rows, name, limit)
    plans = Plans(in_process)
    bed = Bed(lake, spark, tmp_path / "landing", plans, OPTIONS, EXTRA)
    land(bed, [(1, "a", 10), (1, "b", 20), (2, "c", 10), (None, "n", 5)])
    bed.drain()
    # It overlaps another one, which ends later.
    spark.run(f"insert into s.{bed.name} (id, a, __START_AT, __END_AT) values (1, 'other', 12, 13)")
    land(bed, [(1, "late", 15), (2, None, 30), (None, "m", 6), (3, "new", 1)])
    bed.drain()
    assert Counter(versions(lake, bed)) == Counter(
        [
            (1, "a", 10, 15),
            (1, "other", 12, 13),
            (1, "late", 15, 20),
            (1, "b", 20, None),
            (2, "c", 10, 30),
            (None, "n", 5, 6),
            (None, "m", 6, None),
            (3, "new", 1, None),
        ]
    )
    assert plans.scans[-1] is scans


def test_without_an_index(lake: IcebergCatalog, spark: Session, tmp_path: Path) -> None:
    """Spark scans the table, whose equality deletes the index would not see."""
    plans = Plans(in_process)
    options = {**OPTIONS, "delete_encoding": "equality"}
    bed = Bed(lake, spark, tmp_path / "landing", plans, options, EXTRA)
    land(bed, [(1, "a", 10)])
    bed.drain()
    land(bed, [(1, "b", 20)])
    bed.drain()
    indexed = Bed(lake, spark, tmp_path / "more", plans, OPTIONS, EXTRA)
    spark.run(f"drop table s.{indexed.name}")
    indexed.name = bed.name
    land(indexed, [(1, "late", 15)])
    indexed.drain()
    assert plans.scans == [True, True, True]
    assert bed.rows("a, __START_AT, __END_AT", "__START_AT") == [
        ("a", 10, 15),
        ("late", 15, 20),
        ("b", 20, None),
    ]
