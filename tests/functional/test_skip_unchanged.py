"""`skip_unchanged`: what has changed is built, what has not is left as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from dbt.tests.util import run_dbt, write_file
from pyiceberg.table.update import SetSnapshotRefUpdate

from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.engines.embedded import stop
from dbt.adapters.iceberg_stream.materializations.unchanged import UnchangedHooks
from tests.functional.lake import rows, run, snapshot_ids
from tests.functional.skipping import Skipping, built, edit

FACTOR = "{% macro factor() %}{{ return(3) }}{% endmacro %}"
UNUSED = "{% macro unused() %}{{ return(1) }}{% endmacro %}"
MODELS = {
    "a_view.sql": "-- All of it.\nselect * from {{ ref('base') }} /* as it is */",
    "b_table.sql": """
        {{ config(materialized='table') }}
        select id, v * {{ factor() }} + {{ var('plus') }} as v from {{ ref('a_view') }}
        where '{{ env_var('SKIP_REGION', 'eu') }}' = 'eu'""",
    "c_increment.sql": """
        {{ config(materialized='incremental', unique_key='id') }}
        select id, v from {{ ref('b_table') }}
        {% if is_incremental() %} where id >= (select max(id) from {{ this }}) {% endif %}""",
    "d_table.sql": "{{ config(materialized='table') }} select 1 as one",
    "e_table.sql": """
        {{ config(materialized='table') }}
        select count(*) as n, max(one) as one from {{ ref('c_increment') }}, {{ ref('d_table') }}""",
}
PYTHON = """
def model(dbt, session):
    dbt.config({config})
    return dbt.ref('base')
"""
SNAPSHOT = """
{% snapshot f_history %}
{{ config(unique_key='id', strategy='check', check_cols=['v']) }}
select id, v from {{ ref('b_table') }}
{% endsnapshot %}"""
BELOW_BASE = {"base", "b_table", "c_increment", "e_table", "f_history"}
BELOW_B = BELOW_BASE - {"base"}
ALL = BELOW_BASE | {"a_view", "d_table"}


class EveryKind(Skipping):
    """A project with all kinds of nodes."""

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        return {"vars": {"plus": 0, "other": 0}}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return MODELS

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"f_history.sql": SNAPSHOT}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"factor.sql": FACTOR, "unused.sql": UNUSED}


class TestChanges(EveryKind):
    """Each change is noticed by the nodes that depend on it, and by no others."""

    @pytest.fixture(scope="class", autouse=True)
    def first_build(self, project: Any) -> None:
        assert built() == ALL
        assert built() == {"c_increment"}
        assert built() == set()

    @pytest.fixture(autouse=True)
    def unchanged_after(self, project: Any, first_build: None) -> Iterator[None]:
        yield
        # An increment that reads its own table is built until it changes no row.
        assert built() <= {"c_increment"}
        assert built() == set()

    @pytest.mark.parametrize(
        "path, before, after, changed",
        [
            ("seeds/base.csv", "3,30", "3,31", BELOW_BASE),
            (
                "models/a_view.sql",
                "select *",
                "select id, v",
                {"a_view", "b_table", "c_increment", "f_history"},
            ),
            ("macros/factor.sql", "3", "4", {"b_table"}),
            ("models/c_increment.sql", "id >= (", "id > -1 + (", {"c_increment"}),
            ("models/c_increment.sql", "unique_key='id'", "unique_key=['id']", {"c_increment"}),
            ("models/d_table.sql", "'table'", "'table', sort_order=['one']", {"d_table"}),
            ("snapshots/f_history.sql", "['v']", "'all'", {"f_history"}),
        ],
    )
    @pytest.mark.variants(3)
    def test_project(
        self, project: Any, path: str, before: str, after: str, changed: set[str]
    ) -> None:
        edit(project, path, before, after)
        assert built() >= changed
        edit(project, path, after, before)
        assert built() >= changed

    def test_only_what_depends_on_it(self, project: Any) -> None:
        edit(project, "models/d_table.sql", "1 as one", "2 as one")
        assert built() == {"d_table", "e_table"}
        edit(project, "models/d_table.sql", "2 as one", "1 as one")
        assert built() == {"d_table", "e_table"}

    def test_a_table_that_is_built_again_has_other_rows(self, project: Any) -> None:
        edit(project, "macros/factor.sql", "3", "5")
        assert built() == BELOW_B
        edit(project, "macros/factor.sql", "5", "3")
        assert built() == BELOW_B

    def test_variable(self, project: Any) -> None:
        assert built("--vars", "{plus: 1}") == BELOW_B
        assert built("--vars", "{plus: 1, other: 1}") <= {"c_increment"}
        assert built() == BELOW_B

    def test_environment_variable(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SKIP_REGION", "eu")
        # The value is the default's; that it was not set before does not matter to the query.
        built()
        monkeypatch.setenv("SKIP_REGION", "us")
        assert "b_table" in built()
        monkeypatch.delenv("SKIP_REGION")
        assert "b_table" in built()

    @pytest.mark.parametrize(
        "statement, changed",
        [
            ("insert into {schema}.base values (9, 9)", BELOW_BASE - {"e_table"}),
            ("delete from {schema}.b_table where id = 1", BELOW_B - {"e_table"}),
            ("insert into {schema}.c_increment values (77, 1)", {"c_increment", "e_table"}),
            ("update {schema}.d_table set one = 7", {"d_table", "e_table"}),
            ("create or replace table {schema}.d_table as select 1 as one", {"d_table", "e_table"}),
            ("drop table {schema}.d_table", {"d_table", "e_table"}),
            ("alter table {schema}.d_table add column two int", {"d_table"}),
            ("create or replace view {schema}.a_view as select 5 as id, 5 as v", {"a_view"}),
        ],
    )
    @pytest.mark.variants(3)
    def test_other_writers(self, project: Any, statement: str, changed: set[str]) -> None:
        run(project, statement)
        assert built() >= changed
        # An incremental model keeps rows that another writer has added.
        run(project, "delete from {schema}.c_increment where id in (9, 77)")
        built()

    def test_rollback(self, project: Any) -> None:
        edit(project, "models/d_table.sql", "1 as one", "3 as one")
        built()
        loaded = project.adapter.catalog.load((project.test_schema, "d_table"))
        earlier = loaded.metadata["snapshot-log"][-2]["snapshot-id"]
        to_main = {"type": "branch", "ref-name": "main", "snapshot-id": earlier}
        update = SetSnapshotRefUpdate.model_validate(to_main)
        project.adapter.catalog.commit(loaded, (), (update,))
        assert built() >= {"d_table"}
        assert rows(project, "select one from {schema}.d_table") == [(3,)]
        edit(project, "models/d_table.sql", "3 as one", "1 as one")
        assert built() == {"d_table", "e_table"}

    @pytest.mark.parametrize(
        "target, value",
        [
            ("connections.IcebergStreamConnectionManager.owner_of", lambda *_: "rita"),
            ("materializations.unchanged.installed", lambda package: f"{package} 1.0"),
            ("materializations.unchanged.DEFAULT_PACKAGES", ("org.apache.iceberg:other:1.0",)),
        ],
    )
    def test_user_and_engine(
        self, project: Any, monkeypatch: pytest.MonkeyPatch, target: str, value: Any
    ) -> None:
        """Another user, another version of dbt and Spark, and other packages of the engine."""
        with monkeypatch.context() as patched:
            patched.setattr(f"dbt.adapters.iceberg_stream.{target}", value)
            assert built() == ALL
            assert built() <= {"c_increment"}
            assert built() == set()
        assert built() == ALL

    def test_rows_that_are_taken_back_during_a_build(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Once, the model kept the rows of a bad load."""
        write = UnchangedHooks.record_build

        def load_badly(self: Any, relation: Any, model: Any) -> None:
            if model["name"] == "b_table":
                run(project, "insert into {schema}.base values (9, 90)")
                before = snapshot_ids(project, "base")[-2]
                call = f"call lake.system.set_current_snapshot('{{schema}}.base', {before})"
                run(project, call)
            write(self, relation, model)

        edit(project, "macros/factor.sql", "3", "7")
        with monkeypatch.context() as patched:
            patched.setattr(UnchangedHooks, "record_build", load_badly)
            assert "b_table" in built()
        assert "b_table" in built()
        edit(project, "macros/factor.sql", "7", "3")
        built()

    def test_old_versions(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """With `cache-enabled` Spark may have read rows that were not the current ones."""
        with monkeypatch.context() as patched:
            hook = "dbt.adapters.iceberg_stream.materializations.unchanged.reads_old_versions"
            patched.setattr(hook, lambda _: True)
            assert built() == ALL - {"base"}
        built()

    def test_full_refresh(self, project: Any) -> None:
        assert built("--full-refresh") == ALL

    def test_empty(self, project: Any) -> None:
        """Tables without all rows are not what a later run should leave as they are."""
        for option in (["--empty"], ["--sample", "1 day"]):
            assert built(*option) >= {"b_table", "e_table"}
            assert built(*option) >= {"b_table", "e_table"}
            assert built() >= {"b_table", "e_table"}
        assert rows(project, "select count(*) from {schema}.b_table") == [(3,)]


class TestWhatChangesNothing(EveryKind):
    @pytest.fixture(scope="class", autouse=True)
    def first_build(self, project: Any) -> None:
        built()
        built()

    def test_unused_macro(self, project: Any) -> None:
        edit(project, "macros/unused.sql", "1", "2")
        assert built() == set()

    @pytest.mark.parametrize(
        "changed",
        [
            "description: A table.",
            "config: {tags: [new], meta: {owner: me}}",
            "config: {warn_row_drop: 0.5, group: null}",
            "data_tests: [{unique: {column_name: one}}]",
        ],
    )
    def test_properties(self, project: Any, changed: str) -> None:
        text = f"models: [{{name: d_table, {changed}}}]"
        write_file(text, str(project.project_root), "models", "docs.yml")
        assert built() == set()

    def test_unused_variables(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SKIP_OTHER", "1")
        assert built("--vars", "{other: 5}") == set()

    def test_compaction(self, project: Any) -> None:
        run(project, "insert into {schema}.base values (8, 8)")
        built()
        built()
        for name in ("base", "b_table", "c_increment"):
            call = f"call lake.system.rewrite_data_files(table => '{{schema}}.{name}', options => map('rewrite-all', 'true'))"
            before = snapshot_ids(project, name)
            run(project, call)
            assert snapshot_ids(project, name) != before
        assert built() == set()

    def test_expired_snapshots(self, project: Any) -> None:
        call = "call lake.system.expire_snapshots(table => '{schema}.base', older_than => timestamp '2100-01-01 00:00:00', retain_last => 1)"
        run(project, call)
        assert built() == set()

    def test_no_snapshot_is_added(self, project: Any) -> None:
        before = {name: snapshot_ids(project, name) for name in ("base", "b_table", "f_history")}
        assert built() == set()
        assert before == {name: snapshot_ids(project, name) for name in before}

    def test_rows_are_read_after_a_skip(self, project: Any) -> None:
        assert built() == set()
        assert rows(project, "select one from {schema}.d_table") == [(1,)]


@pytest.mark.manifest
class TestNeverSkipped(Skipping):
    """What is no function of its inputs is built by each run."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        config = "{{ config(materialized='table') }} "
        hook = "{{ config(materialized='table', post_hook='delete from {{ this }} where id = 2') }}"
        read = config + "select * from {{ ref('timed_view') }}"
        return {
            "timed.sql": config + "select current_timestamp() as at, * from {{ ref('base') }}",
            "random.sql": config + "select rand() as r",
            "started.sql": config + "select '{{ run_started_at }}' as at",
            "timed_view.sql": "select *, now() as at from {{ ref('base') }}",
            "reads_timed_view.sql": read,
            "hooked.sql": hook + "select * from {{ ref('base') }}",
            "python.py": PYTHON.format(config="materialized='table'"),
            "deterministic.py": PYTHON.format(config="materialized='table', deterministic=True"),
            "opted_out.sql": "{{ config(materialized='table', skip_unchanged=false) }} select 1 as id",
            "pure.sql": config + "select lower('X') as x, max(v) as v from {{ ref('base') }}",
        }

    @pytest.fixture(scope="class", autouse=True)
    def everything(self, project: Any) -> set[str]:
        return built()

    def test_each_run(self, project: Any, everything: set[str]) -> None:
        assert built() == everything - {"base", "pure", "deterministic"}
        folders = ["--project-dir", project.project_root, "--profiles-dir", project.profiles_dir]
        for model, reason in {
            "random": "its rows may change with `rand`",
            "hooked": "it has hooks that may write",
            "python": "it is a Python model without `deterministic: true`",
            "deterministic": "was not built",
            "reads_timed_view": "the rows of a view that it reads may change with `now`",
            "pure": "was not built",
            "opted_out": "the run did not use `skip_unchanged` for it",
        }.items():
            result = CliRunner().invoke(main, ["why", model, *folders])
            assert result.exit_code == 0, result.output
            assert reason in result.output
        result = CliRunner().invoke(main, ["why", "no_model", *folders])
        assert result.exit_code == 1
        assert "had no model, seed, snapshot or data test no_model" in result.output

    def test_python_model_reads_other_rows(self, project: Any) -> None:
        run(project, "insert into {schema}.base values (8, 8)")
        assert "deterministic" in built("--select", "deterministic")
        assert built("--select", "deterministic") == set()

    def test_the_command_decides(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        select = ("--select", "pure", "opted_out")
        built(*select)
        assert built(*select) == {"opted_out"}
        assert built(*select, "--vars", "{iceberg_stream_skip_unchanged: false}") == {
            "pure",
            "opted_out",
        }
        # What such a run has built is unchanged for the next one.
        assert built(*select) == {"opted_out"}
        monkeypatch.setenv("ICEBERG_STREAM_SKIP_UNCHANGED", "false")
        assert "pure" in built(*select)
        # As an empty variable of a CI system, which says nothing.
        monkeypatch.setenv("ICEBERG_STREAM_SKIP_UNCHANGED", "")
        assert built(*select) == {"opted_out"}
        # A variable may have the name of the project.
        assert built(*select, "--vars", f"{{{project.adapter.config.project_name}: 5}}") == {
            "opted_out"
        }

    def test_bad_values(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        select = ("--select", "pure")
        results = run_dbt(
            ["build", *select, "--vars", "{iceberg_stream_skip_unchanged: maybe}"],
            expect_pass=False,
        )
        assert "`iceberg_stream_skip_unchanged` must be true or false" in results[0].message
        edit(project, "models/pure.sql", "'table'", "'table', skip_unchanged='yes'")
        results = run_dbt(["build", *select], expect_pass=False)
        assert "`skip_unchanged` must be true or false; got 'yes'" in results[0].message
        edit(project, "models/pure.sql", "'table', skip_unchanged='yes'", "'table'")


class TestAtomic(EveryKind):
    """A run that publishes its models at its end stages only what has changed."""

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, Any]) -> dict[str, Any]:
        return {**dbt_profile_target, "skip_unchanged": True, "publish": "atomic"}

    def test_builds(self, project: Any) -> None:
        assert built() == ALL
        assert built() == {"c_increment"}
        assert built() == set()
        edit(project, "models/d_table.sql", "1 as one", "2 as one")
        assert built() == {"d_table", "e_table"}
        assert rows(project, "select n, one from {schema}.e_table") == [(3, 2)]
        assert built() == set()
        # A view that has not changed reads what the run has staged.
        edit(project, "seeds/base.csv", "3,30", "3,31")
        edit(project, "models/b_table.sql", "select id", "select  id")
        assert built() == {"base", "a_view", "b_table", "c_increment", "e_table", "f_history"}
        assert rows(project, "select max(v) from {schema}.b_table") == [(93,)]
        assert built() <= {"c_increment"}
        # A failed run publishes nothing, so nothing is unchanged.
        edit(project, "models/d_table.sql", "2 as one", "3 as one")
        edit(project, "models/e_table.sql", "max(one)", "max(no_column)")
        run_dbt(["build"], expect_pass=False)
        edit(project, "models/e_table.sql", "max(no_column)", "max(one)")
        assert built() == {"d_table", "e_table"}
        assert rows(project, "select n, one from {schema}.e_table") == [(3, 3)]


@pytest.mark.slow
class TestBranchOfTheSession:
    """Others write to a branch that the session reads, without a new version of the table."""

    @pytest.fixture(scope="class")
    def dbt_profile_target(
        self, dbt_profile_target: Any, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[dict[str, Any]]:
        # An engine of its own: all who use one have the same `spark_conf`.
        home = tmp_path_factory.mktemp("engine")
        conf = {**(dbt_profile_target.get("spark_conf") or {}), "spark.wap.branch": "dev"}
        own = {"skip_unchanged": True, "engine_home": str(home), "spark_conf": conf}
        yield {**dbt_profile_target, **own}
        stop(home)

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        source = "sources: [{name: raw, schema: '{{ target.schema }}', tables: [{name: events}]}]"
        return {
            "sources.yml": source,
            "read.sql": "{{ config(materialized='table') }} select * from {{ source('raw', 'events') }}",
        }

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        few = "select * from {{ source('raw', 'events') }} where id > 2"
        return {"few.sql": "{{ config(severity='warn') }} " + few}

    def test_rows(self, project: Any) -> None:
        enabled = "tblproperties ('write.wap.enabled' = 'true')"
        run(project, f"create table {{schema}}.events {enabled} as select 1 as id")
        for number, status in ((2, "pass"), (3, "warn")):
            run(project, f"insert into {{schema}}.events.branch_dev values ({number})")
            statuses = {result.node.name: result.status for result in run_dbt(["build"])}
            assert statuses["few"] == status
            query = "select max(id) from {schema}.read"
            assert rows(project, query) == [(number,)]
