"""Random merges into tables of each layout, against a model, Spark, DuckDB and `check --data`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.engine import MergeResult, merge
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan
from tests.integration.tables import LATER, duckdb_rows

Row = tuple[int | None, int | None, str | None]
LAYOUTS = ["", "partitioned by (part)", "partitioned by (bucket(3, part), truncate(1, text))"]
MODES = ["copy-on-write", "merge-on-read"]
KEYS = [None, *range(12)]
PARTS = [None, 1, 2, 3]
TEXTS = [None, "", "a", "b'", "ä"]


class Table:
    """A table and what it must hold: rows by key, and in format version 3 their row ids."""

    def __init__(
        self,
        lake: IcebergCatalog,
        spark: Session,
        rng: Random,
        layout: str,
        version: int,
        mode: str,
    ) -> None:
        self.lake, self.spark, self.rng, self.version = lake, spark, rng, version
        self.name = f"t{uuid.uuid4().hex[:8]}"
        properties = f"'format-version' = '{version}', 'write.merge.mode' = '{mode}'"
        properties += ", 'write.delete.mode' = 'merge-on-read'" if rng.random() < 0.7 else ""
        self.sql(
            f"create table s.{self.name} (id bigint, part bigint, text string) {layout} "
            f"tblproperties ({properties})"
        )
        self.rows: dict[int | None, Row] = {}

    def sql(self, statement: str) -> None:
        self.spark.fetch(self.spark.run(statement))

    @property
    def loaded(self) -> LoadedTable:
        loaded = self.lake.load(("s", self.name))
        assert loaded is not None
        return loaded

    def new_rows(self) -> list[Row]:
        keys = self.rng.sample(KEYS, self.rng.randint(1, 8))
        return [(key, self.rng.choice(PARTS), self.rng.choice(TEXTS)) for key in keys]

    def merge(self, rows: list[Row], plan: MergePlan) -> MergeResult:
        columns = [
            pa.array(column, kind)
            for column, kind in zip(zip(*rows, strict=True), KINDS, strict=True)
        ]
        source = pa.table(columns, ["id", "part", "text"])

        def stream() -> Iterator[Any]:
            yield source.schema
            yield from source.to_batches()

        result = merge(self.lake, ("s", self.name), plan, {}, stream, uuid.uuid4().hex, {})
        self.apply(rows, plan)
        return result

    def apply(self, rows: list[Row], plan: MergePlan) -> None:
        new = {row[0]: row for row in rows}
        if plan.deletes is Deletes.UNMATCHED:
            self.rows = {key: row for key, row in self.rows.items() if key in new}
        for key, row in new.items():
            if key not in self.rows:
                if plan.inserts:
                    self.rows[key] = row
            elif plan.deletes is Deletes.MATCHED:
                del self.rows[key]
            else:
                old = self.rows[key]
                values = dict(zip(NAMES, row, strict=True))
                updated = {
                    n: values[n] if n in plan.updates else o
                    for n, o in zip(NAMES, old, strict=True)
                }
                self.rows[key] = tuple(updated.values())  # type: ignore[assignment]

    def spark_writes(self) -> None:
        """Insert, update and delete, as a company's other jobs do."""
        key = self.rng.choice(KEYS)
        if key in self.rows:
            condition = f"id <=> {'null' if key is None else key}"
            if self.rng.random() < 0.5:
                self.sql(f"delete from s.{self.name} where {condition}")
                del self.rows[key]
            else:
                self.sql(f"update s.{self.name} set text = 'spark' where {condition}")
                self.rows[key] = (*self.rows[key][:2], "spark")
        else:
            value = "null" if key is None else str(key)
            self.sql(f"insert into s.{self.name} values ({value}, 2, 'new')")
            self.rows[key] = (key, 2, "new")

    def lineage(self) -> dict[int | None, tuple[Row, int, int]]:
        """Rows with their ids and sequence numbers, by key."""
        if self.version < 3:
            return {}
        query = f"select id, part, text, _row_id, _last_updated_sequence_number from s.{self.name}"
        return {row[0]: (row[:3], row[3], row[4]) for row in as_rows(self.spark.query(query))}

    def check(self, at: str, reads_duckdb: bool) -> None:
        expected = sorted(self.rows.values(), key=repr)
        self.spark.run(f"refresh table s.{self.name}")
        actual = sorted(
            as_rows(self.spark.query(f"select id, part, text from s.{self.name}")), key=repr
        )
        assert (at, actual) == (at, expected)
        if reads_duckdb:
            assert (at, sorted(duckdb_rows(self.lake, self.name), key=repr)) == (at, expected)
        severe = [f for f in check_table(self.loaded, data=True).findings if f.severity != "note"]
        assert (at, severe) == (at, [])
        assert (at, unreferenced_files(self.loaded, LATER)) == (at, [])


NAMES = ("id", "part", "text")
KINDS = (pa.int64(), pa.int64(), pa.string())
UPSERT = MergePlan(("id",), ("part", "text"), True)
PLANS = [
    UPSERT,
    UPSERT,
    MergePlan(("id",), ("text",), False),
    MergePlan(("id",), (), True),
    MergePlan(("id",), (), False, Deletes.MATCHED),
    MergePlan(("id",), ("part", "text"), True, Deletes.UNMATCHED),
]


def assert_lineage(
    at: str,
    before: dict[int | None, tuple[Row, int, int]],
    after: dict[int | None, tuple[Row, int, int]],
) -> None:
    """Rows keep their ids, and the number of the commit that has changed them last."""
    ids = [number for _, number, _ in after.values()]
    assert (at, len(set(ids))) == (at, len(ids))
    for key in before.keys() & after.keys():
        (old, old_id, old_number), (new, new_id, new_number) = before[key], after[key]
        assert (at, key, new_id) == (at, key, old_id)
        assert (at, key, new_number > old_number) == (at, key, old != new)


SEEDS = [39, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["flat", "identity", "buckets"])
@pytest.mark.variants(4)
def test_histories(
    lake: IcebergCatalog, spark: Session, layout: str, mode: str, version: int, seed: int
) -> None:
    rng = Random(seed)
    table = Table(lake, spark, rng, layout, version, mode)
    for step in range(8):
        at = f"seed {seed}, step {step}"
        if step and rng.random() < 0.4:
            table.spark_writes()
        before = table.lineage()
        result = table.merge(table.new_rows(), rng.choice(PLANS) if step else UPSERT)
        assert (at, result.spark_because) == (at, None)
        assert_lineage(at, before, table.lineage())
        table.check(at, reads_duckdb=step % 3 == 0)
