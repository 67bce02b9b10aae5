"""`skip_unchanged` of data tests: a test that has passed runs again if anything may have changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dbt.tests.util import run_dbt, write_file

from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.impl import IcebergStreamAdapter
from dbt.adapters.iceberg_stream.materializations.reused_tests import DataTestHooks
from tests.functional.lake import run, snapshot_ids
from tests.functional.skipping import SEED, Skipping, edit

HOOKS = "dbt.adapters.iceberg_stream.materializations.reused_tests"
LARGEST = "{% macro largest() %}{{ return(1000) }}{% endmacro %}"
MODELS = {
    "a_view.sql": "select * from {{ ref('base') }}",
    "b_view.sql": "select id, v from {{ ref('a_view') }}",
    "ephemeral.sql": "{{ config(materialized='ephemeral') }} select v + 0 as v from {{ ref('base') }}",
    "other.sql": "{{ config(materialized='table') }} select 1 as one",
}
SCHEMA = """
models:
  - name: b_view
    data_tests:
      - unique: {column_name: id, name: of_view}
  - name: other
    data_tests:
      - not_null: {column_name: one, name: of_other}
seeds:
  - name: base
    data_tests:
      - not_null: {column_name: v, name: of_seed, config: {where: "id > 0 -- all", limit: 50, severity: error, fail_calc: "count(*) -- rows", error_if: "!= 0 -- any"}}
functions:
  - name: small
    arguments: [{name: x, data_type: bigint}]
    returns: {data_type: boolean}
"""
TESTS = {
    "of_macro.sql": "select * from {{ ref('base') }} where v > {{ largest() }}",
    "of_variable.sql": "select * from {{ ref('base') }} where v > {{ var('most') }}",
    "of_environment.sql": "select * from {{ ref('base') }} where id < {{ env_var('KEPT_LEAST', '0') }}",
    "of_ephemeral.sql": "select * from {{ ref('ephemeral') }} where v < 0",
    "of_function.sql": "select * from {{ ref('other') }} where not {{ function('small') }}(one)",
}
OF_BASE = {"of_seed", "of_view", "of_macro", "of_variable", "of_environment", "of_ephemeral"}
ALL = OF_BASE | {"of_other", "of_function"}


def ran(*arguments: str, expect_pass: bool = True) -> set[str]:
    """Return the tests that `dbt test` did not reuse."""
    results = run_dbt(["test", *arguments], expect_pass=expect_pass)
    assert {str(r.status) for r in results} <= {"pass", "no-op", "reused", "fail", "warn"}
    return {r.node.name for r in results if str(r.status) not in ("no-op", "reused")}


class Tested(Skipping):
    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        return {"vars": {"most": 1000, "unused": 0}}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {**MODELS, "schema.yml": SCHEMA}

    @pytest.fixture(scope="class")
    def functions(self) -> dict[str, str]:
        return {"small.sql": "x < 1000"}

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        return TESTS

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"largest.sql": LARGEST, "unused.sql": "{% macro unused() %}1{% endmacro %}"}

    @pytest.fixture(scope="class", autouse=True)
    def first_run(self, project: Any) -> None:
        run_dbt(["build"])
        assert ran() == set()


class TestChanges(Tested):
    """Each change lets exactly the tests run again that it may make fail."""

    @pytest.fixture(autouse=True)
    def unchanged_after(self, project: Any, first_run: None) -> Iterator[None]:
        """Which the next test begins with."""
        yield
        ran()
        assert ran() == set()

    @pytest.mark.parametrize(
        "statement, changed",
        [
            ("insert into {schema}.base values (4, 40)", OF_BASE),
            ("delete from {schema}.base where id = 4", OF_BASE),
            (
                "create or replace table {schema}.other as select 1 as one",
                {"of_other", "of_function"},
            ),
            ("alter table {schema}.base add column w int", OF_BASE),
            (
                "create or replace view {schema}.b_view as select id, v + 1 as v from {schema}.a_view",
                {"of_view"},
            ),
        ],
    )
    @pytest.mark.variants(2)
    def test_other_writers(self, project: Any, statement: str, changed: set[str]) -> None:
        run(project, statement)
        assert ran() == changed

    def test_dropped_and_created_again(self, project: Any) -> None:
        run(project, "drop table {schema}.other")
        run(project, "create table {schema}.other as select 1 as one")
        assert ran() == {"of_other", "of_function"}

    def test_rollback(self, project: Any) -> None:
        earlier = snapshot_ids(project, "base")[-2]
        run(project, f"call lake.system.set_current_snapshot('{{schema}}.base', {earlier})")
        assert ran() == OF_BASE

    def test_seed(self, project: Any) -> None:
        run_dbt(["build"])
        edit(project, "seeds/base.csv", "3,30", "3,31")
        results = run_dbt(["build"])
        assert {r.node.name for r in results if r.status == "pass"} == OF_BASE

    @pytest.mark.parametrize(
        "path, before, after, changed",
        [
            ("macros/largest.sql", "1000", "2000", {"of_macro"}),
            ("models/ephemeral.sql", "v + 0", "v + 1", {"of_ephemeral"}),
            ("tests/of_macro.sql", "where v", "where 1 * v", {"of_macro"}),
            ("models/schema.yml", "id > 0", "id > 1", {"of_seed"}),
            ("models/schema.yml", "limit: 50", "limit: 51", {"of_seed"}),
            ("models/schema.yml", "severity: error", "severity: warn", {"of_seed"}),
            ("functions/small.sql", "1000", "2000", {"of_function"}),
        ],
    )
    @pytest.mark.variants(3)
    def test_project(
        self, project: Any, path: str, before: str, after: str, changed: set[str]
    ) -> None:
        edit(project, path, before, after)
        assert ran() == changed
        edit(project, path, after, before)

    def test_macro_of_the_project_makes_the_statement(self, project: Any) -> None:
        text = """{% macro default__get_test_sql(main_sql, fail_calc, warn_if, error_if, limit) %}
        select 0 as failures, false as should_warn, false as should_error {% endmacro %}"""
        write_file(text, str(project.project_root), "macros", "get_test_sql.sql")
        assert ran() == ALL
        (Path(project.project_root) / "macros" / "get_test_sql.sql").unlink()

    def test_variable(self, project: Any) -> None:
        assert ran("--vars", "{most: 999}") == {"of_variable"}

    def test_environment_variable(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KEPT_LEAST", "-1")
        assert ran() == {"of_environment"}

    def test_full_refresh(self, project: Any) -> None:
        results = run_dbt(["build", "--full-refresh"])
        assert {r.node.name for r in results if r.status == "pass"} == ALL

    def test_command_without_skipping(self, project: Any) -> None:
        assert ran("--vars", "{iceberg_stream_skip_unchanged: false}") == ALL

    @pytest.mark.parametrize(
        "target, value",
        [
            ("connections.IcebergStreamConnectionManager.owner_of", lambda *_: "rita"),
            ("materializations.reused_tests.catalog_keys", lambda *_: {"uri": "elsewhere"}),
        ],
    )
    def test_user_or_catalog(
        self, project: Any, monkeypatch: pytest.MonkeyPatch, target: str, value: Any
    ) -> None:
        """Each has records of its own, also when they take turns."""
        with monkeypatch.context() as patched:
            patched.setattr(f"dbt.adapters.iceberg_stream.{target}", value)
            assert ran() == ALL
            assert ran() == set()
        assert ran() == set()

    def test_unknown_user(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(f"{HOOKS}.catalog_keys", lambda *_: None)
            assert ran() == ALL
            assert ran() == ALL

    @pytest.mark.parametrize(
        "name, value", [("version", "0.0.1"), ("installed", lambda package: f"{package} 1.0")]
    )
    def test_versions(
        self, project: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
    ) -> None:
        """Of the adapter; of dbt and Spark."""
        monkeypatch.setattr(f"dbt.adapters.iceberg_stream.materializations.unchanged.{name}", value)
        assert ran() == ALL

    def test_change_during_a_run(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The test may have read the rows that are rolled back when it ends."""
        keep = DataTestHooks.keep_test

        def change_and_keep(self: Any, model: Any, result: Any) -> None:
            if model["name"] == "of_seed":
                before = snapshot_ids(project, "base")[-1]
                schema = project.test_schema
                self.execute(f"insert into {schema}.base values (5, 50)")
                call = f"call lake.system.set_current_snapshot('{schema}.base', {before})"
                self.execute(call)
            keep(self, model, result)

        select = ("--select", "of_seed")
        run(project, "insert into {schema}.base values (4, 40)")
        with monkeypatch.context() as patched:
            patched.setattr(DataTestHooks, "keep_test", change_and_keep)
            assert ran(*select) == {"of_seed"}
        assert ran(*select) == {"of_seed"}
        assert ran(*select) == set()

    def test_damaged_file(self, project: Any) -> None:
        path = Path(project.project_root) / "target" / "passed_tests.db"
        path.write_bytes(b"no database" * 1000)
        assert ran() == ALL
        path.unlink()


class TestWhatChangesNothing(Tested):
    @pytest.mark.parametrize(
        "change",
        [
            lambda project: edit(project, "macros/unused.sql", "1", "2"),
            lambda project: edit(project, "models/a_view.sql", "select *", "select  *"),
            lambda project: edit(
                project, "models/schema.yml", "name: of_other", "name: of_other, description: Text"
            ),
            lambda project: (
                edit(project, "tests/of_macro.sql", "select *", "select  *")
                or edit(project, "tests/of_macro.sql", "select  *", "select *")
            ),
            lambda project: run(
                project,
                "call lake.system.rewrite_data_files(table => '{schema}.base', "
                "options => map('rewrite-all', 'true'))",
            ),
            lambda project: run(
                project,
                "call lake.system.expire_snapshots(table => '{schema}.base', "
                "older_than => timestamp '2100-01-01 00:00:00', retain_last => 1)",
            ),
            lambda project: run(project, "alter table {schema}.base set tblproperties ('a' = 'b')"),
            lambda project: run(project, "create table {schema}.elsewhere as select 1 as x"),
            lambda project: run_dbt(["build"]),
        ],
    )
    def test_reused(self, project: Any, change: Callable[[Any], Any]) -> None:
        change(project)
        assert ran("--vars", "{unused: 5}") == set()


class TestOutcomes(Skipping):
    """Only passes are kept, and only of tests that depend on nothing but tables."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "timed_view.sql": "select *, now() as at from {{ ref('base') }}",
            "a_table.sql": "{{ config(materialized='table') }} select * from {{ ref('base') }}",
        }

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        base = "select * from {{ ref('base') }} where v < 0"
        return {
            "passes.sql": base,
            "fails.sql": "{{ config(tags='failing') }} select * from {{ ref('base') }}",
            "warns.sql": "{{ config(warn_if='> 0', error_if='> 100') }} select * from {{ ref('base') }}",
            "timed.sql": base + " and current_date() > date '2000-01-01'",
            "random.sql": base + " and rand() < 2",
            "of_timed_view.sql": "select * from {{ ref('timed_view') }} where v < 0",
            "stores.sql": "{{ config(store_failures=true) }} " + base,
            "opted_out.sql": "{{ config(skip_unchanged=false) }} " + base,
            "of_metadata.sql": "select * from {{ ref('base') }}.files where record_count < 0",
            "of_place.sql": "select * from {{ ref('base') }} where _file is null",
        }

    def test_what_runs(self, project: Any) -> None:
        run_dbt(["build", "--exclude", "tag:failing"])
        always = {
            *("fails", "warns", "timed", "random", "of_timed_view", "stores", "opted_out"),
            *("of_metadata", "of_place"),
        }
        for _ in range(2):
            assert ran(expect_pass=False) == always
        results = json.loads((Path(project.project_root) / "target/run_results.json").read_text())
        by_name = {r["unique_id"].split(".")[2]: r for r in results["results"]}
        passed = by_name["passes"]
        assert passed["status"] in ("no-op", "reused") and passed["failures"] == 0
        assert passed["message"].startswith("passed at 20")
        assert passed["message"].endswith(" UTC, unchanged since")
        assert by_name["stores"]["adapter_response"]["run_because"] == "it stores its failures"
        folders = ["--project-dir", project.project_root, "--profiles-dir", project.profiles_dir]
        for test, line in {
            "passes": "test.test.passes was not run at",
            "random": "its rows may change with `rand`",
            "fails": "it has not passed with `skip_unchanged` before",
        }.items():
            result = CliRunner().invoke(main, ["why", test, *folders])
            assert result.exit_code == 0 and line in result.output, result.output
        # A later failure is one, and so is the next run's, although an earlier one has passed.
        run(project, "insert into {schema}.base values (9, -1)")
        select = ("--select", "passes", "--indirect-selection", "cautious")
        assert ran(*select, expect_pass=False) == {"passes"}
        assert ran(*select, expect_pass=False) == {"passes"}

    def test_a_failure_of_the_same_rows(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also what is no change, such as a setting of a server, may let a test fail."""
        select = ("--select", "flaky")
        write_file("select 1 as one limit 0", str(project.project_root), "tests", "flaky.sql")
        assert ran(*select) == {"flaky"}
        assert ran(*select) == set()
        off = ("--vars", "{iceberg_stream_skip_unchanged: false}")
        with monkeypatch.context() as patched:
            execute = IcebergStreamAdapter.execute

            def failing(self: Any, sql: str, *arguments: Any, **options: Any) -> Any:
                return execute(self, sql.replace("limit 0", "limit 1"), *arguments, **options)

            patched.setattr(IcebergStreamAdapter, "execute", failing)
            assert ran(*select, *off, expect_pass=False) == {"flaky"}
        assert ran(*select) == {"flaky"}

    def test_partial_rows(self, project: Any) -> None:
        """A pass of tables without rows says nothing, and a partial run reuses nothing."""
        write_file(SEED, str(project.project_root), "seeds", "base.csv")
        select = ("--select", "base", "passes", "--indirect-selection", "empty")
        run_dbt(["build", *select, "--full-refresh"])
        for option in (["--sample", "1 day"], ["--empty"], ["--empty"]):
            results = run_dbt(["build", *select, *option])
            assert results.results[-1].status == "pass"
        results = run_dbt(["build", *select, "--full-refresh"])
        assert results.results[-1].status == "pass"

    def test_bad_value(self, project: Any) -> None:
        edit(project, "tests/opted_out.sql", "=false", "='no'")
        results = run_dbt(["test", "--select", "opted_out"], expect_pass=False)
        assert "`skip_unchanged` must be true or false, got 'no'" in results[0].message.replace(
            ";", ","
        )
        assert "test.test.opted_out" in results[0].message
