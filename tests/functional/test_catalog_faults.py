"""A catalog that fails: what is reported is what happened in the table, and the re-run converges."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture
from dbt_common.exceptions import DbtRuntimeError

from tests.servers.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.servers.rest_catalog import RestCatalog

# Every run appends one row.
APPENDED = """
{{ config(materialized='incremental', incremental_strategy='append',
    table_properties={'commit.retry.num-retries': '2'}) }}
select '{{ invocation_id }}' as run
"""
SLOW = """
{{ config(materialized='table') }}
select '{{ invocation_id }}' as run,
    java_method('java.lang.Thread', 'sleep', {{ var('pause', 0) }}000 + id) as slept
from range(1)
"""
REBUILT = "{{ config(materialized='table') }} select '{{ invocation_id }}' as run"


@pytest.fixture(scope="module")
def proxy(catalog: RestCatalog) -> Iterator[FaultProxy]:
    with fault_proxy(catalog.port) as running:
        yield running


def commits(name: str) -> Any:
    """Matches the commits to a table."""
    return lambda method, path: method == "POST" and path.endswith(f"/tables/{name}")


def drops(method: str, path: str, name: str) -> bool:
    return method == "DELETE" and path.split("?")[0].endswith(f"/{name}")


def reads(method: str, path: str) -> bool:
    return method == "GET"


def anything(method: str, path: str) -> bool:
    return True


class TestCatalogFaults:
    @pytest.fixture(scope="class")
    def dbt_profile_data(
        self,
        unique_schema: str,
        dbt_profile_target: dict[str, Any],
        catalog: RestCatalog,
        proxy: FaultProxy,
    ) -> dict[str, Any]:
        target = {k: v for k, v in dbt_profile_target.items() if k != "warehouse"}
        target |= {
            "schema": unique_schema,
            "catalog_properties": {"uri": proxy.uri},
            "token": catalog.token("wanda"),
        }
        return {"test": {"outputs": {"default": target}, "target": "default"}}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        viewed = "{{ config(materialized='view') }} select 1 as id"
        return {
            "appended.sql": APPENDED,
            "rebuilt.sql": REBUILT,
            "slow.sql": SLOW,
            "viewed.sql": viewed,
            "changing.sql": "{{ config(materialized=var('kind', 'view')) }} select 1 as id",
        }

    @pytest.fixture(scope="class", autouse=True)
    def built(self, project: Any) -> None:
        run_dbt(["run"])

    @pytest.fixture(autouse=True)
    def healed(self, proxy: FaultProxy) -> Iterator[None]:
        yield
        proxy.faults.clear()

    def rows(self, project: Any, name: str) -> set[str]:
        sql = f"select run from {project.test_schema}.{name}"
        actual = [row[0] for row in project.run_sql(sql, fetch="all")]
        assert len(actual) == len(set(actual))
        return set(actual)

    def test_a_small_table_takes_few_requests(self, project: Any, proxy: FaultProxy) -> None:
        """The right to write, the size, the version to replace, the commit, and Spark's refresh."""
        run_dbt(["run", "--select", "rebuilt"])
        requests = []

        def note(method: str, path: str) -> bool:
            if path.split("?")[0].endswith("/tables/rebuilt"):
                requests.append(method)
            return False

        proxy.faults = [Fault(note)]
        run_dbt(["run", "--select", "rebuilt"])
        assert sorted(requests) == ["GET"] * 3 + ["POST"] * 2

    @pytest.mark.parametrize("kind", ["table", "view"])
    def test_a_switch_that_is_refused_leaves_nothing(
        self, project: Any, proxy: FaultProxy, kind: str
    ) -> None:
        lake, schema = project.adapter.catalog, project.test_schema
        # Polaris refuses to drop the view, too: it purges it.
        other = {"table": "view", "view": "table"}[kind]
        run_dbt(["run", "--select", "changing", "--vars", f"kind: {other}"])
        before = sorted(lake.relations(schema))
        refusal = b'{"error": {"message": "DROP_WITH_PURGE_ENABLED", "type": "F", "code": 403}}'
        proxy.faults = [Fault(lambda method, path: drops(method, path, "changing"), 403, refusal)]
        _, output = run_dbt_and_capture(
            ["run", "--select", "changing", "--vars", f"kind: {kind}"], expect_pass=False
        )
        assert "DROP_WITH_PURGE_ENABLED (in Apache Polaris)" in " ".join(output.split())
        assert "privilege" not in output
        proxy.faults.clear()
        assert sorted(lake.relations(schema)) == before

    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    @pytest.mark.variants(2)
    def test_a_commit_that_never_arrives(
        self, project: Any, proxy: FaultProxy, status: int
    ) -> None:
        before = self.rows(project, "appended")
        # The first commit is the probe of the user's rights.
        proxy.faults = [Fault(commits("appended"), status)]
        _, output = run_dbt_and_capture(["run", "--select", "appended"], expect_pass=False)
        assert "nothing of it is visible" in " ".join(output.split())
        proxy.faults.clear()
        assert self.rows(project, "appended") == before
        run_dbt(["run", "--select", "appended"])
        assert len(self.rows(project, "appended") - before) == 1

    @pytest.mark.parametrize("status", [500, 502, 504])
    @pytest.mark.parametrize("name", ["appended", "rebuilt"])
    @pytest.mark.variants(3)
    def test_an_answer_that_is_lost(
        self, project: Any, proxy: FaultProxy, status: int, name: str
    ) -> None:
        before = self.rows(project, name)
        proxy.faults = [Fault(commits(name), status, forwards=True)]
        results = run_dbt(["run", "--select", name])
        assert results.results[0].adapter_response["rows_affected"] == 1
        assert len(self.rows(project, name) - before) == 1

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_catalog_that_asks_to_wait(
        self, project: Any, proxy: FaultProxy, status: int
    ) -> None:
        before = self.rows(project, "appended")
        proxy.faults = [Fault(reads, status, times=2)]
        if status == 429:  # that a commit was not looked at, only this one says
            proxy.faults.append(Fault(commits("appended"), status, times=3))
        run_dbt(["run", "--select", "appended"])
        assert not any(fault.times for fault in proxy.faults)
        assert len(self.rows(project, "appended") - before) == 1

    def test_a_slow_catalog(self, project: Any, proxy: FaultProxy) -> None:
        before = self.rows(project, "rebuilt")
        proxy.faults = [Fault(anything, delay=0.5)]
        run_dbt(["run", "--select", "rebuilt"])
        assert len(self.rows(project, "rebuilt") - before) == 1

    def test_a_catalog_without_views(self, project: Any, proxy: FaultProxy) -> None:
        tables = ["GET /v1/{prefix}/namespaces", "GET /v1/{prefix}/namespaces/{namespace}/tables"]
        config = {"defaults": {}, "overrides": {}, "endpoints": tables}
        proxy.faults = [
            Fault(lambda method, path: "config" in path, 200, json.dumps(config).encode())
        ]
        _, output = run_dbt_and_capture(["run", "--select", "viewed"], expect_pass=False)
        assert "has no views. Materialize the model as a table" in " ".join(output.split())
        assert "view-endpoints-supported" in output

    def test_a_catalog_that_is_restarted(self, project: Any, catalog: RestCatalog) -> None:
        before = self.rows(project, "appended")
        catalog.kill()
        started = time.monotonic()
        with pytest.raises(DbtRuntimeError, match="does not answer"):
            run_dbt(["run", "--select", "appended"])
        assert time.monotonic() - started < 60
        catalog.start()
        assert self.rows(project, "appended") == before
        run_dbt(["run"])
        assert len(self.rows(project, "appended") - before) == 1

    @pytest.mark.slow
    def test_a_catalog_that_is_away_for_20_seconds(
        self, project: Any, catalog: RestCatalog
    ) -> None:
        tables = ["appended", "rebuilt", "slow"]
        before = {name: self.rows(project, name) for name in tables}
        threading.Timer(3, catalog.kill).start()
        restart = threading.Timer(23, catalog.start)
        restart.start()
        command = ["run", "--select", *tables, "--threads", "1", "--vars", "{pause: 6}"]
        results = run_dbt(command, expect_pass=None)
        restart.join()
        reported = {result.node.name: result.status == "success" for result in results}
        done = {name: bool(self.rows(project, name) - before[name]) for name in tables}
        assert done == reported
        if failed := [name for name in tables if not reported[name]]:
            run_dbt(["run", "--select", *failed])
        assert all(len(self.rows(project, name) - before[name]) == 1 for name in tables)
