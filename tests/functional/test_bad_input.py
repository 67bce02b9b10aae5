"""Each fault of a project or profile has one message: what is wrong, where, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from dbt.exceptions import DbtProfileError
from dbt.tests.util import run_dbt

CASES = {
    "misspelled": ("partiton_by=['id']", "unknown config `partiton_by`: did you mean `partition_by`"),
    "transform": ("partition_by=['weekly(at)']", "`partition_by: weekly(at)` is neither a column nor a partition"),
    "sort": ("sort_order=['a b c']", "`sort_order` must be `column [asc|desc] [nulls first|last]`; got 'a b c'"),
    "version": ("format_version=4", "`format_version` must be one of 1, 2, 3; got 4"),
    "size": ("target_file_size='big'", "`target_file_size` must be bytes or a size such as 128mb; got 'big'"),
    "format": ("file_format='delta'", "`file_format: delta` is not supported"),
    "grants": ("grants={'select': ['me']}", "privileges on Iceberg tables are kept by the catalog"),
    "no_key": (
        "materialized='incremental', incremental_strategy='delete+insert'",
        "`incremental_strategy: delete+insert` needs a `unique_key`",
    ),
    "both": (
        "materialized='incremental', unique_key='id', merge_update_columns=['a'],"
        " merge_exclude_columns=['b']",
        "`merge_update_columns` and `merge_exclude_columns` contradict each other",
    ),
    "not_merge": (
        "materialized='incremental', incremental_strategy='append', matched_condition='true'",
        "`matched_condition` can only be used with `incremental_strategy: merge`",
    ),
    "no_column": (
        "materialized='incremental', unique_key='nowhere'",
        "names `nowhere`, which the model does not return. It returns: id",
    ),
    "no_update": (
        "materialized='incremental', unique_key='id', merge_update_columns='nmae'",
        "`merge_update_columns` of model.test.no_update names `nmae`, which the model does not",
    ),
    "no_exclude": (
        "materialized='incremental', unique_key='ID', merge_exclude_columns=['ID', 'nmae']",
        "`merge_exclude_columns` of model.test.no_exclude names `nmae`, which the model does not",
    ),
    "change": (
        "materialized='incremental', on_schema_change='sync'",
        "`on_schema_change` must be one of ignore, fail",
    ),
}  # fmt: skip


class TestModelConfig:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        def sql(config: str) -> str:
            kind = "" if "materialized" in config else "materialized='table', "
            return "{{ config(" + kind + config + ") }} select 1 as id"

        return {f"{name}.sql": sql(config) for name, (config, _) in CASES.items()}

    @pytest.fixture(scope="class")
    def messages(self, project: Any) -> dict[str, str]:
        return {r.node.name: r.message for r in run_dbt(["run"], expect_pass=False)}

    @pytest.mark.parametrize("name", CASES)
    def test_the_message(self, messages: dict[str, str], name: str) -> None:
        assert CASES[name][1] in messages[name]
        assert f"model.test.{name}" in messages[name]


LAZY = """
def model(dbt, spark):
    return spark.range(3).where("nmae > 1")
"""
EAGER = """
def model(dbt, spark):
    rows = spark.range(3)
    rows.where("nmae > 1").count()
    return rows
"""
EXITS = """
import sys

def model(dbt, spark):
    sys.exit("no rows")
    return spark.range(1)
"""
CANCELED = """
import asyncio

def model(dbt, spark):
    raise asyncio.CancelledError
    return spark.range(1)
"""
# What the message of each model says.
REFUSED = {
    "exits.py": (
        "The Python model model.test.exits raised SystemExit('no rows'), which is no `Exception`.",
    ),
    "canceled.py": (
        "The Python model model.test.canceled raised CancelledError(), which is no `Exception`.",
    ),
    "no_table.sql": ("`nowhere`.`at_all` cannot be found",),
    "lazy.py": ("with name `nmae` cannot be resolved",),
    "eager.py": (
        "with name `nmae` cannot be resolved",
        'Line 3 of the compiled model: rows.where("nmae > 1").count()',
    ),
}


class TestRefusedBySpark:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        no_table = "{{ config(materialized='table') }} select * from nowhere.at_all"
        python = {"lazy.py": LAZY, "eager.py": EAGER, "exits.py": EXITS, "canceled.py": CANCELED}
        return {"no_table.sql": no_table, **python}

    @pytest.fixture(scope="class")
    def messages(self, project: Any) -> dict[str, str]:
        return {r.node.path: r.message for r in run_dbt(["run"], expect_pass=False)}

    @pytest.mark.parametrize("model", REFUSED)
    def test_messages_have_no_stack_trace(self, messages: dict[str, str], model: str) -> None:
        for text in REFUSED[model]:
            assert text in messages[model]
        assert "org.apache" not in messages[model]
        assert "JVM stacktrace" not in messages[model]


class TestProfile:
    def test_all_faults_at_once(self, project: Any, profiles_root: Any) -> None:
        bad = {
            "type": "iceberg_stream",
            "method": "magic",
            "driver_memory": "lots",
            "warehose": "here",
        }
        profile = {"test": {"outputs": {"default": bad}, "target": "default"}}
        with open(profiles_root / "profiles.yml", "w") as file:
            yaml.safe_dump(profile, file)
        with pytest.raises(DbtProfileError) as raised:
            run_dbt(["run"])
        text = str(raised.value)
        assert "`schema` is missing" in text
        assert "`method` must be one of embedded, connect" in text
        assert "`driver_memory` must be a size" in text
        assert "unknown key `warehose`: did you mean `warehouse`?" in text
