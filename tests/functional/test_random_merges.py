"""Merges and delete+insert with random options and layouts: ours and Spark's leave the same rows."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.materializations.strategies import MERGE_OPTIONS
from tests.functional.lake import rows, run
from tests.functional.random_projects import model
from tests.lost_files import assert_nothing_lost

MODELS, STEPS = 6, 2
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
# Names without an alias are the table's.
OF_DELETES = [None, ["n > 2 or s is null"], [f"{DEST}.n < 8 -- it's"]]
SQL = "select * from {{ target.schema }}.increment"
# Keys are not unique.
TWICE = f"{SQL} union all select id, n + 1, s from {{{{ target.schema }}}}.increment where n > 4"


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
                {**config, "merge_engine": engine},
                SQL if config["incremental_strategy"] == "merge" else TWICE,
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
            f"cast({literal(s)} as string) as s"
            for key, n, s in values
        )
        run(project, f"create or replace table {{schema}}.increment as {sql}")

    def test_rows(
        self, project: Any, configs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rng = Random(self.seed + 1)
        engines = set()
        if self.seed % 2:
            settings = IcebergStreamConnectionManager.session_settings
            monkeypatch.setattr(
                IcebergStreamConnectionManager,
                "session_settings",
                lambda manager, tokens: settings(manager, tokens) | SHUFFLED,
            )
        for step in range(STEPS):
            self.increment(project, rng)
            for result in run_dbt(["run"]).results:
                if step and result.node.name.startswith("auto"):
                    engines.add(result.adapter_response.get("merge_engine"))
            for number, config in enumerate(configs):
                actual, expected = (
                    sorted(rows(project, f"select * from {{schema}}.{engine}_{number}"), key=repr)
                    for engine in ("auto", "spark")
                )
                assert (step, config, actual) == (step, config, expected)
        assert "rewrite" in engines
        for name, kind in project.adapter.catalog.relations(project.test_schema):
            loaded = project.adapter.catalog.load((project.test_schema, name))
            findings = [f for f in check_table(loaded, data=True).findings if f.severity != "note"]
            assert (kind, name, findings) == ("table", name, [])
        assert_nothing_lost(project.adapter.catalog, [project.test_schema])


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
