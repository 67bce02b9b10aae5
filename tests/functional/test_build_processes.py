"""Builds whose process is interrupted or killed, or meets another writer."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from tests.functional.builds import (
    AtomicProject,
    build_names,
    command,
    published,
    run_as_another,
    variables,
)
from tests.functional.dbt_process import Start, dbt_processes
from tests.functional.lake import rows

MARTS = ("customers", "orders", "revenue")
VERSION = "{{ var('version', 0) }}"
# Each mart has the version of its build in all its rows.
CUSTOMERS = f"{{{{ config(materialized='table') }}}} select id, {VERSION} as version from range(9)"
ORDERS = """
{{ config(materialized='incremental', unique_key='id') }}
select id, version from {{ ref('customers') }}
"""
REVENUE = """
{{ config(materialized='table') }}
select id, version,
    java_method('java.lang.Thread', 'sleep', {{ var('sleep', 0) }}L) as slept
from {{ ref('orders') }} where id = 1
"""


class Marts(AtomicProject):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"customers.sql": CUSTOMERS, "orders.sql": ORDERS, "revenue.sql": REVENUE}

    @pytest.fixture
    def start(self, project: Any) -> Iterator[Start]:
        with dbt_processes(project) as start:
            yield start


def versions(project: Any) -> list[list[Any]]:
    """The versions that a reader of all marts sees."""
    select = "select distinct version from {{schema}}.{}"
    return [[version for (version,) in rows(project, select.format(name))] for name in MARTS]


def wait_for_staged(project: Any, process: subprocess.Popen[str], name: str) -> None:
    """Wait until the build of a process stages a relation."""
    deadline = time.monotonic() + 60
    catalog = project.adapter.catalog
    while not any(r.startswith(f"{name}__") for r, _ in catalog.relations(project.test_schema)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


class TestInterrupted(Marts):
    def test_ctrl_c_publishes_nothing(
        self, project: Any, start: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_dbt(["run"])
        process = start("run", "--threads", "1", *variables(version=1, sleep=60_000))
        wait_for_staged(project, process, "revenue")
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[0]
        assert process.returncode != 0
        assert versions(project) == [[0], [0], [0]]
        (build,) = build_names(project)
        assert f"ICEBERG_STREAM_BUILD={build}" in output
        refused = command(project, "publish", build)
        assert (refused.exit_code, "was interrupted" in refused.output) == (1, True)
        assert "has not ended" in command(project, "builds").output
        # dbt retries only what has failed.
        assert start("retry").wait(timeout=60) != 0
        assert build_names(project) == [build]
        monkeypatch.setenv("ICEBERG_STREAM_BUILD", build)
        run_dbt(["run", *variables(version=2)])
        assert versions(project) == [[0], [0], [0]]
        assert command(project, "publish", build).exit_code == 0
        assert versions(project) == [[2], [2], [2]]


@pytest.mark.slow
class TestInterruptedEarlier(Marts):
    """A named build of several commands: all that any of them was to run must have succeeded."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        view = f"{{{{ config(materialized='view') }}}} select {VERSION} as version"
        sleep = "select java_method('java.lang.Thread', 'sleep', {{ var('sleep', 0) }}L)"
        revenue = REVENUE.replace("ref('orders')", "ref('recent')")
        recent = "{{ config(materialized='ephemeral') }} select * from {{ ref('orders') }}"
        return {
            "customers.sql": CUSTOMERS,
            "orders.sql": ORDERS,
            "recent.sql": recent,
            "revenue.sql": revenue,
            "apart.sql": view,
            "beside.sql": f'{{{{ config(pre_hook="{sleep}") }}}} {view}',
        }

    def test_what_it_did_not_reach(
        self, project: Any, start: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_dbt(["run"])
        monkeypatch.setenv("ICEBERG_STREAM_BUILD", "earlier")
        slow = variables(version=1, sleep=60_000)
        process = start("run", "--threads", "1", "--exclude", "apart", "beside", *slow)
        wait_for_staged(project, process, "revenue")
        process.kill()
        process.wait()
        run_dbt(["run", "--select", "apart"])
        refused = command(project, "publish", "earlier")
        assert (refused.exit_code, "revenue" in refused.output) == (1, True)
        run_dbt(["run", *variables(version=1)])
        assert command(project, "publish", "earlier").exit_code == 0
        assert versions(project) == [[1], [1], [1]]

    @pytest.mark.slow
    def test_only_views(self, project: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ICEBERG_STREAM_BUILD", "views")
        process = start("run", "--select", "apart", "beside", *variables(sleep=60_000))
        wait_for_staged(project, process, "apart")
        process.kill()
        process.wait()
        refused = command(project, "publish", "views")
        assert (refused.exit_code, "was interrupted" in refused.output) == (1, True)
        run_dbt(["run", "--select", "apart"])
        refused = command(project, "publish", "views")
        assert (refused.exit_code, "beside" in refused.output) == (1, True)
        assert command(project, "discard", "views").exit_code == 0


class TestRebuild(Marts):
    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, object]) -> dict[str, object]:
        return {**dbt_profile_target, "publish": "atomic", "rebuild_on_conflict": True}

    def test_models_whose_tables_change_are_built_again(self, project: Any, start: Any) -> None:
        run_dbt(["run"])
        process = start("run", *variables(version=1, sleep=5_000))
        wait_for_staged(project, process, "revenue")
        run_as_another(project, "delete from {schema}.orders where id > 5")
        run_as_another(project, "insert into {schema}.orders values (99, 99)")
        output = process.communicate(timeout=120)[0]
        assert process.returncode == 0, output
        assert published(project, "orders") == [*((n, 1) for n in range(9)), (99, 99)]
        assert versions(project)[2] == [1]
        # What reads none of the changed tables is not built again.
        assert output.count("OK created sql table model") == 3


@pytest.mark.slow
class TestKilled(Marts):
    def test_at_random_moments(self, project: Any, start: Any) -> None:
        self.kill_runs(project, start, 2)

    @pytest.mark.slow
    def test_at_many_random_moments(self, project: Any, start: Any) -> None:
        stages = self.kill_runs(project, start, 60)
        assert len(stages) > 1, f"all were killed at the same stage: {stages}"

    def kill_runs(self, project: Any, start: Any, count: int) -> set[tuple[bool, int]]:
        """Kill runs; publish or discard what they leave. Returns the stages they had reached."""
        seed = random.randrange(2**32)
        choose = random.Random(seed)
        run_dbt(["run", *variables(version=0)])
        seconds, published = self.measure(start), 1
        stages = set()
        for version in range(2, count + 2):
            process = start("run", *variables(version=version))
            if version == 2:
                # However fast this machine is just now, one is killed between its models.
                wait_for_staged(project, process, "customers")
            else:
                # Half of the others are killed near the publication at their end.
                earliest = choose.choice([0.3, 0.85])
                time.sleep(seconds * choose.uniform(earliest, 1.1))
            process.kill()
            process.wait()
            actual = versions(project)
            assert actual in ([[published]] * 3, [[version]] * 3), f"seed {seed}: {actual}"
            published = actual[0][0]
            stages.add((published == version, len(build_names(project))))
            for build in build_names(project):
                if choose.random() < 0.5 and command(project, "publish", build).exit_code == 0:
                    published = versions(project)[0][0]
                    assert versions(project) == [[published]] * 3, f"seed {seed}"
                else:
                    command(project, "discard", build)
            assert build_names(project) == []
        assert (False, 1) in stages, f"seed {seed}: no build was left half done: {stages}"
        for name in MARTS:
            loaded = project.adapter.catalog.load((project.test_schema, name))
            assert check_table(loaded, data=True).findings == []
        return stages

    def measure(self, start: Any) -> float:
        """How many seconds a run takes."""
        begin = time.monotonic()
        assert start("run", *variables(version=1)).wait() == 0
        return time.monotonic() - begin
