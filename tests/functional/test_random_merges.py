"""Merges and delete+insert with random options and layouts: ours and Spark's leave the same rows.

Between two runs, another writer deletes rows by their keys, and adds a column with a default.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from dbt.tests.util import run_dbt
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import IntegerType, NestedField

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.materializations.strategies import MERGE_OPTIONS
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema, partition_spec
from dbt.adapters.iceberg_stream.tables.files.deletes import write_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.functional.lake import rows, run
from tests.functional.random_projects import model
from tests.lost_files import assert_nothing_lost
from tests.unit.local_tables import commit, evolve

MODELS, STEPS = 6, 2
# The first two are equal.
MAPS = [
    "map('a', n, 'b', 1)",
    "map('b', 1, 'a', n)",
    "map('a', 1)",
    "cast(null as map<string, int>)",
]
# Spark then sorts and shuffles both sides of its joins, as it does for large ones.
SHUFFLED = {"spark.sql.autoBroadcastJoinThreshold": "-1"}
DEST, NEW = "DBT_INTERNAL_DEST", "DBT_INTERNAL_SOURCE"
OPTIONS: dict[str, list[Any]] = {
    "unique_key": ["id", "ID", ["id", "s"]],
    "incremental_predicates": [
        None,
        [f"{DEST}.n > 2 or {NEW}.n is null"],
        [f"{DEST}.s <> 'it''s'", f"{DEST}.n < 8 -- it's"],
        [f"{DEST}.n between 1 and cast('6' as int) or {DEST}.s is null", f"40 > {DEST}.ID"],
        [f"not {DEST}.s in ('a', 'b')"],
    ],
    "matched_condition": [None, f"{NEW}.n > {DEST}.n", f"{DEST}.s is null -- none"],
    "not_matched_condition": [None, f"{NEW}.n <> 3"],
    "not_matched_by_source_action": [None, None, "delete", "update set n = -1"],
    "not_matched_by_source_condition": [None, f"{DEST}.n % 2 = 0"],
    "merge_update_columns": [None, ["n"]],
    "skip_matched_step": [None, None, True],
    "skip_not_matched_step": [None, None, True],
    "merge_mode": [None, "merge-on-read"],
    "partition_by": [None, ["s"], ["bucket(2, id)", "truncate(n, 4)"]],
    "format_version": [2, 3],
}
# The order of a map's entries means nothing.
ALL = "select * except (m), array_sort(map_entries(m)) from {{schema}}.{table}"
LEFT_TO_SPARK = (
    "a condition may need columns that have changed since the last snapshot",
    "not_matched_by_source_action updates rows",
)
# Names without an alias are the table's.
OF_DELETES = [None, ["n > 2 or s is null"], [f"{DEST}.n < 8 -- it's"]]
# Spark takes both zeros as equal, and each NaN.
DOUBLE = (
    "case when id = 0 then if(n > 4, double('-0.0'), 0D) when id = 1 then double('NaN') "
    "else cast(id as double) end"
)
COLUMNS = "n, s, m{{ ', d' if var('step') > 0 }}"
ROWS = "select KEY as id, " + COLUMNS + " from {{ target.schema }}.increment"
# Keys are not unique.
TWICE = f"{ROWS} union all select id, n + 1, {COLUMNS[3:]} from ({ROWS}) where n > 4"


def options(rng: Random) -> dict[str, Any]:
    chosen = {name: rng.choice(values) for name, values in OPTIONS.items()}
    # Options that contradict each other are refused.
    without = {
        "skip_matched_step": ["matched_condition", "merge_update_columns", "skip_not_matched_step"],
        "skip_not_matched_step": ["not_matched_condition"],
    }
    for name, others in without.items():
        if chosen[name]:
            chosen |= dict.fromkeys(others)
    if chosen["not_matched_by_source_action"] is None:
        chosen["not_matched_by_source_condition"] = None
    chosen["key"] = rng.choice(["id", DOUBLE])
    if chosen["key"] == DOUBLE and len(chosen["partition_by"] or ()) > 1:
        chosen["partition_by"] = ["truncate(n, 4)"]
    config = {"materialized": "incremental", "incremental_strategy": "merge"}
    if rng.random() < 0.3:
        config["incremental_strategy"] = "delete+insert"
        chosen |= dict.fromkeys(MERGE_OPTIONS) | {"incremental_predicates": rng.choice(OF_DELETES)}
    return config | {name: value for name, value in chosen.items() if value is not None}


class TestRandomMerges:
    seed = 39

    @pytest.fixture(scope="class")
    def configs(self) -> list[dict[str, Any]]:
        rng = Random(self.seed)
        return [options(rng) for _ in range(MODELS)]

    @pytest.fixture(scope="class")
    def models(self, configs: list[dict[str, Any]]) -> dict[str, str]:
        return {
            f"{engine}_{number}.sql": model(
                {k: v for k, v in config.items() if k != "key"} | {"merge_engine": engine},
                (ROWS if config["incremental_strategy"] == "merge" else TWICE).replace(
                    "KEY", config["key"]
                ),
            )
            for number, config in enumerate(configs)
            for engine in ("auto", "spark")
        }

    def increment(self, project: Any, rng: Random) -> None:
        """Stage rows with unique keys, null among them."""
        keys = rng.sample([None, *range(50)], rng.randint(1, 40))
        values = [
            (key, rng.choice([None, *range(9)]), rng.choice([None, "a", "it's"])) for key in keys
        ]
        sql = " union all ".join(
            f"select cast({literal(key)} as bigint) as id, cast({literal(n)} as int) as n, "
            f"cast({literal(s)} as string) as s, {rng.choice(MAPS)} as m, {rng.randint(6, 8)} as d"
            for key, n, s in values
        )
        run(project, f"create or replace table {{schema}}.increment as {sql}")

    def change_tables(self, project: Any, rng: Random) -> None:
        """Let another writer change each pair of tables."""
        catalog = project.adapter.catalog
        for number in range(MODELS):
            keys = rng.sample([None, *range(2, 50)], 10)
            for engine in ("auto", "spark"):
                name = (project.test_schema, f"{engine}_{number}")
                base = catalog.load(name)
                fields = current_schema(base.metadata).fields
                default = 7 if base.metadata["format-version"] > 2 else None
                added = NestedField(99, "d", IntegerType(), required=False, initial_default=default)
                evolve(catalog, schema=Schema(*fields, added, schema_id=1), name=name)
                base = catalog.load(name)
                if partition_spec(
                    base.metadata, base.metadata["default-spec-id"]
                ).is_unpartitioned():
                    delete_equal(catalog, name, keys)
            run(project, f"refresh table {{schema}}.auto_{number}")
            run(project, f"refresh table {{schema}}.spark_{number}")

    def test_rows(
        self, project: Any, configs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rng = Random(self.seed + 1)
        reasons: set[str | None] = set()
        if self.seed % 2:
            settings = IcebergStreamConnectionManager.session_settings
            monkeypatch.setattr(
                IcebergStreamConnectionManager,
                "session_settings",
                lambda manager, tokens: settings(manager, tokens) | SHUFFLED,
            )
        for step in range(STEPS):
            if step == 1:
                self.change_tables(project, rng)
            self.increment(project, rng)
            for result in run_dbt(["run", "--vars", f"step: {step}"]).results:
                if step and result.node.name.startswith("auto"):
                    reasons.add(result.adapter_response.get("merge_engine_reason"))
            for number, config in enumerate(configs):
                actual, expected = (
                    sorted(map(repr, rows(project, ALL.format(table=f"{engine}_{number}"))))
                    for engine in ("auto", "spark")
                )
                assert (step, config, actual) == (step, config, expected)
        assert None in reasons
        assert reasons <= {None, *LEFT_TO_SPARK}
        for name, kind in project.adapter.catalog.relations(project.test_schema):
            loaded = project.adapter.catalog.load((project.test_schema, name))
            findings = [f for f in check_table(loaded, data=True).findings if f.severity != "note"]
            assert (kind, name, findings) == ("table", name, [])
        assert_nothing_lost(project.adapter.catalog, [project.test_schema])


def delete_equal(catalog: IcebergCatalog, name: tuple[str, str], keys: Sequence[Any]) -> None:
    """Delete rows by equality deletes."""
    base = catalog.load(name)
    assert base is not None
    target = WriteTarget.of(base.metadata, base.io)
    file = write_equality_deletes(
        target, f"equal-{uuid.uuid4().hex}", pa.table({"id": keys}), partition=None
    )
    commit(catalog, Change(Operation.DELETE, (AddedFiles((), (file,)),)), name=name)


def literal(value: object) -> str:
    """A value in SQL."""
    if isinstance(value, str):
        return '"' + value + '"'
    return "null" if value is None else str(value)


def more(seed: int) -> type[TestRandomMerges]:
    return type(
        f"TestSeed{seed}", (TestRandomMerges,), {"seed": seed, "pytestmark": pytest.mark.slow}
    )


for number in range(100, 110):
    globals()[f"TestSeed{number}"] = more(number)
