"""`publish: atomic`: a run's models are published in one commit, or not at all."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture, write_file

from dbt.adapters.iceberg_stream.tables.drop import drop_table
from tests.functional.builds import (
    FEW_ORDERS,
    ORDERS,
    TOTALS,
    AtomicProject,
    Shop,
    build_names,
    command,
    published,
    relations,
    variables,
)
from tests.functional.lake import rows, snapshot_ids, summary, table
from tests.integration.mart_readers import MARTS, publish_marts


class TestPublish(Shop):
    def test_new_and_changed_relations(self, project: Any) -> None:
        run_dbt(["build"])
        assert published(project, "orders") == [(0, 1), (1, 1), (2, 1)]
        assert published(project, "totals") == [(3,)]
        assert published(project, "large") == [(1, 1), (2, 1)]
        history = snapshot_ids(project, "orders")
        run_dbt(["build", *variables(version=2, rows=4, least=1)])
        assert published(project, "orders") == [(0, 2), (1, 2), (2, 2), (3, 2)]
        assert published(project, "totals") == [(4,)]
        assert published(project, "large") == [(2, 2), (3, 2)]
        # The history goes on, and nothing of the staging is left.
        assert snapshot_ids(project, "orders")[: len(history)] == history
        assert not [k for k in table(project, "orders").properties if k.startswith("gc.")]
        assert not [k for k in table(project, "orders").properties if "iceberg-stream" in k]
        assert table(project, "totals").location().endswith("/totals")

    def test_one_time_reads_all_tables(self, project: Any) -> None:
        run_dbt(["build", *variables(version=3)])
        times = {table(project, name).history()[-1].timestamp_ms for name in ("orders", "totals")}
        assert len(times) == 1
        at = f"timestamp as of {times.pop() / 1000}"
        before = published(project, "orders"), published(project, "totals")
        run_dbt(["build", *variables(version=4, rows=5)])
        read = [
            rows(project, f"select * from {{schema}}.{n} {at} order by all")
            for n in ("orders", "totals")
        ]
        assert tuple(read) == before

    def test_nothing_changes_without_changes(self, project: Any) -> None:
        run_dbt(["build", "--select", "orders"])
        before = snapshot_ids(project, "orders")
        run_dbt(["build", "--select", "orders"])
        assert snapshot_ids(project, "orders") == before

    def test_full_refresh(self, project: Any) -> None:
        run_dbt(["build", "--full-refresh", *variables(version=7, rows=3)])
        assert published(project, "orders") == [(0, 7), (1, 7), (2, 7)]

    def test_sixteen_threads(self, project: Any) -> None:
        run_dbt(["build", "--threads", "16", *variables(version=8)])
        assert published(project, "totals") == [(len(published(project, "orders")),)]


class TestReaders(Shop):
    def test_a_join_of_three_tables(self, project: Any, dbt_profile_target: Any) -> None:
        """A query at the time of a build never mixes builds, whenever the tables are loaded."""
        catalog, schema = project.adapter.catalog, project.test_schema
        times = [publish_marts(catalog, 0, schema).timestamp_ms]
        ended, now = threading.Event(), list[tuple[int, ...]]()

        def publish_builds() -> None:
            while len(times) < 20 or not ended.is_set():
                times.append(publish_marts(catalog, len(times), schema).timestamp_ms)

        with ThreadPoolExecutor(1) as pool:
            publisher = pool.submit(publish_builds)
            try:
                for _ in range(15):
                    now += join(project)
                    number = len(times) - 1
                    at = f" timestamp as of {times[number] / 1000}"
                    assert join(project, at) == [(number,) * 3]
            finally:
                ended.set()
            publisher.result()
        # Spark loads the tables from left to right. A server may commit them one after the other.
        if "catalog_properties" not in dbt_profile_target:
            assert [tuple(sorted(versions)) for versions in now] == now
        assert join(project) == [(len(times) - 1,) * 3]
        for name in MARTS:
            drop_table(catalog, (schema, name))


def join(project: Any, at: str = "") -> list[tuple[int, ...]]:
    """The builds that a join of three tables reads."""
    c, o, r = (f"(select id from {{schema}}.{name}{at})" for name in MARTS)
    return rows(project, f"select c.id, o.id, r.id from {c} c, {o} o, {r} r")


class TestFailure(Shop):
    def test_a_failed_test_publishes_nothing_until_a_retry(self, project: Any) -> None:
        run_dbt(["build"])
        before = relations(project)
        results = run_dbt(["build", *variables(version=2, rows=4, most=3)], expect_pass=False)
        assert "fail" in {r.status for r in results}
        assert published(project, "orders") == [(0, 1), (1, 1), (2, 1)]
        assert published(project, "totals") == [(3,)]
        assert published(project, "large") == [(1, 1), (2, 1)]
        # A retry of the test alone belongs to the build, too, also with a copy of the artifacts.
        copy = Path(project.project_root, "target").rename(Path(project.project_root, "artifacts"))
        for state in (["--state", copy.name], []):
            results = run_dbt(["retry", *state], expect_pass=False)
            assert [r.node.name for r in results] == ["few_orders"]
        # The test is corrected; the models need not run again.
        write_file("select 1 where false", project.project_root, "tests", "few_orders.sql")
        results = run_dbt(["retry"])
        assert "model.test.orders" not in {r.node.unique_id for r in results}
        assert published(project, "totals") == [(4,)]
        assert relations(project) == before

    def test_a_failed_build_is_discarded(self, project: Any) -> None:
        rows_before = published(project, "orders")
        files = set(Path(table(project, "orders").location().removeprefix("file:")).rglob("*"))
        write_file(FEW_ORDERS, project.project_root, "tests", "few_orders.sql")
        run_dbt(["build", *variables(version=3, rows=9, most=3)], expect_pass=False)
        (build,) = build_names(project)
        refused = command(project, "publish", build)
        assert refused.exit_code == 1
        assert "failed or were skipped" in refused.output
        assert build in command(project, "builds").output
        assert command(project, "discard", build).exit_code == 0
        assert published(project, "orders") == rows_before
        # Checks of rights may leave metadata files, but no rows are left.
        left = set(Path(table(project, "orders").location().removeprefix("file:")).rglob("*"))
        assert {f.name for f in left - files if f.suffix == ".parquet"} == set()
        assert command(project, "discard", build).exit_code == 1


BROKEN = "{{ config(materialized='table', alias=var('name', 'b')) }} select {{ var('column', 'id') }} from {{ ref('a') }}"


class TestErrors(AtomicProject):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"a.sql": "{{ config(materialized='table') }} select 1 as id", "b.sql": BROKEN}

    def test_a_failed_new_model_is_not_there_for_the_retry(self, project: Any) -> None:
        run_dbt(["run", *variables(column="nothing")], expect_pass=False)
        assert [name for name in relations(project) if "__dbt_" not in name] == []
        write_file(
            "{{ config(materialized='incremental') }} select id from {{ ref('a') }}"
            "{% if is_incremental() %} where id > (select max(id) from {{ this }}){% endif %}",
            project.project_root,
            "models",
            "b.sql",
        )
        run_dbt(["retry"])
        assert published(project, "a") == published(project, "b") == [(1,)]

    def test_a_view_that_fails_first(self, project: Any) -> None:
        write_file("select no_column", project.project_root, "models", "c.sql")
        _, log = run_dbt_and_capture(["run", "--select", "c"], expect_pass=False)
        assert "The build has no staged relation" in " ".join(log.split())
        write_file("select 1 as id", project.project_root, "models", "c.sql")
        run_dbt(["retry"])
        assert published(project, "c") == [(1,)]
        Path("models/c.sql").unlink()

    def test_a_model_that_failed_under_another_name(self, project: Any) -> None:
        write_file(BROKEN, project.project_root, "models", "b.sql")
        run_dbt(["run", *variables(column="nothing", name="first")], expect_pass=False)
        run_dbt(["retry", *variables(name="second")])
        assert published(project, "second") == [(1,)]
        assert [name for name in relations(project) if "first" in name] == []

    def test_hooks_and_operations(self, project: Any) -> None:
        """A statement that names the published table is refused; `this` is the staged one."""
        write_file(
            "{{ config(materialized='table', post_hook='insert into {{ this }} values (2)') }}"
            "select 1 as id",
            project.project_root,
            "models",
            "a.sql",
        )
        run_dbt(["run"])
        assert published(project, "a") == [(1,), (2,)]
        write_file(
            "{{ config(materialized='table', post_hook="
            "'insert into ' ~ target.schema ~ '.a values (3)') }} select 1 as id",
            project.project_root,
            "models",
            "a.sql",
        )
        results = run_dbt(["run"], expect_pass=False)
        assert "which this run stages in the build" in str(results[0].message)
        assert published(project, "a") == [(1,), (2,)]
        assert command(project, "discard", *build_names(project)).exit_code == 0


QUALIFIED = """
{{ config(materialized=%s, pre_hook='select count(orders.id) from {{ ref("orders") }}') }}
select orders.id, {{ ref('orders') }}.version, totals.*
from {{ ref('orders') }} join {{ ref('totals') }} on totals.orders > orders.id
"""


# As macros write it that unite relations.
TEXTS = """
{{ config(materialized=%s) }}
select cast('{{ ref('orders') }}' as string) as source, count(*) as c, '{{ this.identifier }}' as own
from {{ ref('orders') }}
"""


class TestQualifiedColumns(Shop):
    """Columns have the name of the published relation before them, as most people write them."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        kinds = {"a": "'table'", "b": "'view'", "c": "'incremental', unique_key='id'"}
        joins = {f"join_{name}.sql": QUALIFIED % kind for name, kind in kinds.items()}
        texts = {f"text_{name}.sql": TEXTS % kinds[name] for name in ("a", "b")}
        return {"orders.sql": ORDERS, "totals.sql": TOTALS, **joins, **texts}

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        return {"none.sql": "select join_b.id from {{ ref('join_b') }} where join_b.id > 9"}

    @pytest.mark.parametrize("version", [1, 2])
    def test_relations_are_those_of_the_build(self, project: Any, version: int) -> None:
        run_dbt(["build", *variables(version=version)])
        expected = [(number, version, 3) for number in range(3)]
        for name in ("join_a", "join_b", "join_c"):
            assert published(project, name) == expected
        for name in ("text_a", "text_b"):
            [(source, count, own)] = published(project, name)
            assert (source.split("`")[-2], count, own) == ("orders", 3, name)
        assert "__dbt_build" not in str(
            project.adapter.catalog.metadata((project.test_schema, "join_b"))
        )


class TestViewsOfReaders(Shop):
    """Views that are published at once do not show, or name, what a build has staged."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        at_once = "{{ config(materialized='view', publish='immediately') }} select * from {{ ref('orders') }}"
        return {"orders.sql": ORDERS, "totals.sql": TOTALS, "at_once.sql": at_once}

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        config = "{{ config(store_failures_as='view', schema=none) }}"
        return {"few_orders.sql": f"{config} {FEW_ORDERS}"}

    def test_what_they_read(self, project: Any) -> None:
        results = run_dbt(["run"], expect_pass=False)
        message = next(r.message for r in results if r.node.name == "at_once")
        assert "has not published yet. Remove the config" in message
        assert command(project, "discard", *build_names(project)).exit_code == 0
        run_dbt(["run", "--exclude", "at_once"])
        run_dbt(["build", *variables(version=2, rows=4, most=3)], expect_pass=False)
        # Nothing is published: readers see the rows of the run before.
        assert published(project, "at_once") == [(0, 1), (1, 1), (2, 1)]
        assert command(project, "discard", *build_names(project)).exit_code == 0
        assert rows(project, "select * from {schema}.few_orders") == [(4,)]
        run_dbt(["build"])
        assert rows(project, "select * from {schema}.few_orders") == []


class TestWhatRunsAfterwards(Shop):
    """Procedures of hooks, the hook of each write, and `on-run-end`."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        call = "call {{ target.database }}.system.rewrite_data_files('{{ this.schema }}.{{ this.identifier }}', options => map('rewrite-all', 'true'))"
        return {
            "orders.sql": ORDERS.replace("unique_key='id'", f'unique_key="id", post_hook="{call}"')
        }

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        return {"fails.sql": "select * from {{ ref('orders') }} where {{ var('fails', false) }}"}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        hook = "{% macro iceberg_stream__on_write(relation, snapshot_id) %}{% if var('raises', false) %}{{ exceptions.raise_compiler_error('the hook raises') }}{% endif %}{% endmacro %}"
        return {"hook.sql": hook}

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        broken = "{% if var('broken', false) %}{{ nothing.at_all() }}{% endif %}"
        return {"on-run-end": [broken, "{% if var('ends', true) %}{% else %}select no{% endif %}"]}

    def test_a_procedure_waits_for_the_publication(
        self, project: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run_dbt(["build"])
        assert "They were not run" not in capsys.readouterr().out
        assert summary(project, "orders")["operation"] == "replace"
        count = len(snapshot_ids(project, "orders"))
        run_dbt(["build", *variables(version=2, fails=True)], expect_pass=False)
        assert len(snapshot_ids(project, "orders")) == count
        # `dbt retry` runs the test only.
        log = capsys.readouterr().out
        assert log.index("They were not run") < log.index(".system.rewrite_data_files(")
        assert command(project, "discard", *build_names(project)).exit_code == 0

    def test_a_hook_that_raises(self, project: Any) -> None:
        with pytest.raises(
            Exception, match="is published, but what runs after it failed(?s:.*)the hook raises"
        ):
            run_dbt(["run", *variables(version=3, raises=True)], expect_pass=False)
        assert published(project, "orders") == [(0, 3), (1, 3), (2, 3)]
        assert summary(project, "orders")["operation"] == "replace"

    def test_an_on_run_end_that_does_not_compile(
        self, project: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["run", *variables(version=4, broken=True)]
        with pytest.raises(Exception, match="nothing"):
            run_dbt(arguments, expect_pass=False)
        log = capsys.readouterr().out
        (build,) = build_names(project)
        assert f"The build `{build}` was not published, because the run ended with an error" in log
        assert published(project, "orders") == [(0, 3), (1, 3), (2, 3)]
        assert command(project, "publish", build).exit_code == 1
        assert command(project, "discard", build).exit_code == 0

    def test_an_on_run_end_that_fails(
        self, project: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_dbt(["run", *variables(version=5, ends=False)], expect_pass=False)
        (build,) = build_names(project)
        assert f"the same command after a correction with ICEBERG_STREAM_BUILD={build}" in " ".join(
            capsys.readouterr().out.split()
        )
        with monkeypatch.context() as patch:
            patch.setenv("ICEBERG_STREAM_BUILD", build)
            run_dbt(["run", *variables(version=5)])
        project.adapter.build = None
        assert command(project, "publish", build).exit_code == 0
        assert published(project, "orders") == [(0, 5), (1, 5), (2, 5)]


class TestOptOut(AtomicProject):
    """A model that is published immediately, beside one that is published with its build."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        log = (
            "{{ config(materialized='table', publish='immediately') }} select * from {{ ref('a') }}"
        )
        return {
            "a.sql": "{{ config(materialized='table') }} select {{ var('version', 1) }} as version",
            "log.sql": log,
        }

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        return {"fails.sql": "select * from {{ ref('a') }} where version = 2"}

    def test_only_the_others_wait(self, project: Any) -> None:
        run_dbt(["build"])
        write_file(
            "select * from {{ ref('log') }} where version = 2",
            project.project_root,
            "tests/fails.sql",
        )
        run_dbt(["build", *variables(version=2)], expect_pass=False)
        # It reads what the run has staged, and is published nevertheless.
        assert published(project, "log") == [(2,)]
        assert published(project, "a") == [(1,)]
        assert command(project, "discard", *build_names(project)).exit_code == 0

    def test_retry_of_a_discarded_build(self, project: Any) -> None:
        as_table = "{{ config(materialized='table') }} select * from {{ ref('a') }}"
        write_file(f"{as_table} where 1 / 0 = 1", "models", "log2.sql")
        arguments = ["run", "--select", "a", "log2"]
        run_dbt([*arguments, *variables(version=2)], expect_pass=False)
        assert command(project, "discard", *build_names(project)).exit_code == 0
        project.adapter.build = None
        write_file(as_table, "models", "log2.sql")
        (result,) = run_dbt(["retry"], expect_pass=False)
        assert "because it was published or discarded" in result.message
        assert "log2" not in relations(project)
        Path("models/log2.sql").unlink()

    def test_a_model_that_was_staged_before(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ICEBERG_STREAM_BUILD", "pr-43")
        run_dbt(["run", "--select", "a", *variables(version=3)])
        at_once = "{{ config(materialized='table', publish='immediately') }} select 4 as version"
        write_file(at_once, "models", "a.sql")
        (result,) = run_dbt(["run", "--select", "a"], expect_pass=False)
        assert "Publish or discard the build first" in result.message
        assert command(project, "discard", "pr-43").exit_code == 0
        run_dbt(["run", "--select", "a"])
        assert published(project, "a") == [(4,)]

    def test_bad_value(self, project: Any) -> None:
        model = "{{ config(materialized='table', publish='later') }} select 1 as version"
        write_file(model, project.project_root, "models", "a.sql")
        results = run_dbt(["run", "--select", "a"], expect_pass=False)
        assert "`publish` must be one of immediately, atomic" in str(results[0].message)


@pytest.mark.manifest
class TestDefer(Shop):
    def test_deferred_models_are_read_where_they_are_published(
        self, project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_dbt(["build"])
        shutil.copy(Path(project.project_root) / "target/manifest.json", tmp_path)
        monkeypatch.setenv("ICEBERG_STREAM_BUILD", "pr-1")
        state = ["--defer", "--state", str(tmp_path), "--favor-state"]
        run_dbt(["build", "--select", "large", *state, *variables(least=1)])
        assert published(project, "large") == [(1, 1), (2, 1)]
        assert command(project, "publish", "pr-1").exit_code == 0
        assert published(project, "large") == [(2, 1)]
        assert (
            "__dbt_build_"
            not in project.adapter.catalog.metadata((project.test_schema, "large"))["versions"][-1][
                "representations"
            ][0]["sql"]
        )
