"""`publish: atomic`: a run's models are published in one commit, or not at all."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, write_file

from dbt.adapters.iceberg_stream.tables.drop import drop_table
from tests.functional.builds import (
    FEW_ORDERS,
    AtomicProject,
    Shop,
    build_names,
    command,
    published,
    relations,
    variables,
)
from tests.functional.lake import rows, snapshot_ids, table
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


BROKEN = "{{ config(materialized='table') }} select {{ var('column', 'id') }} from {{ ref('a') }}"


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
