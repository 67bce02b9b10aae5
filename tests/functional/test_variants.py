"""Tables with a column of type variant, which PyIceberg does not have: each run after the first."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.builds import command
from tests.functional.lake import rows, run
from tests.functional.random_projects import model

SQL = "select id, v from {{ source('up', 'landed') }}"
V3 = {"tblproperties": {"format-version": "3"}}
STRATEGIES = ["merge", "append", "insert_overwrite", "delete+insert"]
SOURCES = """
sources:
  - name: up
    schema: "{{ target.schema }}"
    tables: [{name: landed}]
"""
SNAPSHOT = """
snapshots:
  - name: snap
    relation: source('up', 'landed')
    config:
      strategy: check
      unique_key: id
      check_cols: [id]
      tblproperties: {format-version: "3"}
"""
READS = "select id from {{ stream(source('up', 'landed')) }}"


class TestVariants:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        config = {"materialized": "incremental", "unique_key": "id", **V3}
        models = {
            f"by_{strategy.split('+')[0]}.sql": model(
                {**config, "incremental_strategy": strategy}, SQL
            )
            for strategy in STRATEGIES
        }
        models["by_append.sql"] = models["by_append.sql"].replace("unique_key=", "tags=")
        # Its first read takes several batches.
        stream = model({"materialized": "stream", "batch_rows": 2}, READS)
        return {**models, "stream.sql": stream, "sources.yml": SOURCES}

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"snap.yml": SNAPSHOT}

    def test_each_run(self, project: Any) -> None:
        run(project, "create table {schema}.landed (id bigint, v variant) " + VERSION_3)
        for number in range(2):
            run(
                project,
                "insert into {schema}.landed select /*+ coalesce(1) */ "
                f"id, parse_json(concat('[', id, ']')) from range({number * 5}, {number * 5 + 5})",
            )
            run_dbt(["build"])
        counts = {
            name: rows(project, f"select count(*), count(distinct id) from {{schema}}.{name}")[0]
            for name in (
                "by_merge",
                "by_append",
                "by_insert_overwrite",
                "by_delete",
                "snap",
                "stream",
            )
        }
        assert counts.pop("by_append") == (15, 10)
        assert set(counts.values()) == {(10, 10)}
        values = rows(project, "select to_json(v) from {schema}.by_merge where id = 7")
        assert values == [("[7]",)]
        result = command(project, "check", project.test_schema, "--data")
        assert result.exit_code == 0, result.output


VERSION_3 = "tblproperties ('format-version' = '3')"
