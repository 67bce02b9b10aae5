"""A project and a warehouse in folders whose names mean something in URIs, URLs and globs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows, run, table

STRANGE = "a b#c?d%2Fé'"
SEED = "id,name\n" + "".join(f"{n},n{n}\n" for n in range(1, 4))
INCREMENTAL = """
{{ config(materialized='incremental', unique_key='id', partition_by='name') }}
select id, name from {{ ref('numbers') }}
"""
SNAPSHOT = """
{% snapshot history %}
{{ config(unique_key='id', strategy='check', check_cols='all') }}
select id, name from {{ ref('merged') }}
{% endsnapshot %}
"""
STREAM = """
{{ config(materialized='stream') }}
select id from {{ stream(source('landing', 'arrivals')) }}
"""
SOURCES = """
sources:
  - name: landing
    tables:
      - name: arrivals
        config: {meta: {stream: {type: files, path: arrivals, columns: id bigint}}}
"""


class TestFolders:
    @pytest.fixture(scope="class")
    def project_root(self, tmpdir_factory: pytest.TempdirFactory) -> Any:
        return tmpdir_factory.mktemp("project").mkdir(STRANGE)

    @pytest.fixture(scope="class")
    def home(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A folder with a file of each name that a cut path would have."""
        home = tmp_path_factory.mktemp("home")
        for place in ("a b", "a b#c"):
            (home / place).write_text("mine")
        return home

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, Any], home: Path) -> dict[str, Any]:
        return dbt_profile_target | {"warehouse": str(home / STRANGE)}

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"numbers.csv": SEED}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "full.sql": "{{ config(materialized='table') }} select * from {{ ref('numbers') }}",
            "by_spark.sql": "{{ config(materialized='table') }} select max(id) as id from "
            "{{ ref('numbers') }} group by name having count(*) > 0",
            "merged.sql": INCREMENTAL,
            "seen.sql": "{{ config(materialized='view') }} select * from {{ ref('merged') }}",
            "aliased.sql": "{{ config(materialized='table', alias='x#1?y') }} select 1 as id",
            "arrived.sql": STREAM,
            "sources.yml": SOURCES,
        }

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"history.sql": SNAPSHOT}

    def test_builds(self, project: Any, home: Path) -> None:
        arrivals = Path(project.project_root) / "arrivals"
        arrivals.mkdir()
        for count in (1, 2):
            (arrivals / f"{count}.json").write_text(f'{{"id": {count}}}\n')
            results = run_dbt(["build"])
            assert {str(result.status) for result in results} == {"success"}
            assert rows(project, "select count(*), max(name) from {schema}.seen") == [(3, "n3")]
            assert rows(project, "select count(*) from {schema}.history") == [(3,)]
            assert rows(project, "select id from {schema}.`x#1?y`") == [(1,)]
            assert rows(project, "select count(*) from {schema}.arrived") == [(count,)]
        assert {path.name for path in home.iterdir()} == {"a b", "a b#c", STRANGE}
        assert (home / "a b").read_text() == (home / "a b#c").read_text() == "mine"

    def test_spark_and_this_process_write_by_turns(self, project: Any) -> None:
        run(project, "create table {schema}.turns (id bigint) using iceberg")
        for number in range(3):
            run(project, f"insert into {{schema}}.turns select {number}")
            run(project, "insert into {schema}.turns select max(id) + 10 from {schema}.turns")
        run(project, "delete from {schema}.turns where id = 0")
        assert rows(project, "select count(*) from {schema}.turns") == [(5,)]
        assert len(table(project, "turns").scan().to_arrow()) == 5
        run(project, "drop table {schema}.turns")


class TestNewWarehouse:
    """The first command of a project may be one that only Spark serves."""

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        first = "{% macro first() %}{% do run_query('create schema other') %}{% endmacro %}"
        return {"first.sql": first}

    @pytest.fixture(scope="class")
    def profiles_config_update(self, dbt_profile_target: dict[str, Any], unique_schema: str) -> Any:
        own = {**dbt_profile_target, "schema": unique_schema}
        outputs = {"default": own, "new": {**own, "warehouse": "not/there/yet"}}
        return {"test": {"outputs": outputs, "target": "default"}}

    def test_an_operation(self, project: Any) -> None:
        run_dbt(["run-operation", "first", "--target", "new"])
        run_dbt(["run-operation", "first", "--target", "new"], expect_pass=False)
