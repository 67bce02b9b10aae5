"""`iceberg-stream run`: streams as a service of their own process."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.engines.embedded import status, stop
from dbt.adapters.iceberg_stream.stream.sink.progress import read_property
from tests.functional.lake import rows, snapshot_ids
from tests.functional.orders_stream import ALL, ORDERS, SOURCES, land
from tests.functional.stream_service import DEADLINE, Running, service, wait_for
from tests.unit.report.pages import Page

SINK = "model.test.orders"


def is_healthy(running: Running) -> bool:
    try:
        return bool(json.loads(running.ask("health"))["healthy"])
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return False


def committed(project: Any) -> int:
    return len(snapshot_ids(project, "orders"))


class TestService:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        quick = ORDERS.replace("unique_key='id'", "unique_key='id', commit_interval=0.5")
        return {"orders.sql": quick, "sources.yml": SOURCES, "other.sql": "select 1 as id"}

    def test_it_goes_on_until_it_is_told_to_stop(self, project: Any) -> None:
        land(project, "1", (1, "new", 1.0, "c"))
        run_dbt(["run", "-s", "orders"])
        before = committed(project)
        with service(project, "first") as running:
            land(project, "2", (2, "new", 2.0, "c"))
            wait_for(lambda: committed(project) == before + 1)
            health = json.loads(running.ask("health"))
            assert health["healthy"] and health["streams"].keys() == {SINK}
            assert 'iceberg_stream_changes_total{model="orders"} 1.0' in running.ask("metrics")
            page = Page(running.ask("")).words
            assert "Running in this service" in page
            assert f"{project.test_schema}.orders stream 2 " in page
            land(project, "3", (1, None, None, "d"))
            wait_for(lambda: committed(project) == before + 2)
            time.sleep(2)
            assert running.stop() == 0
        # Idle seconds have left no snapshot.
        assert committed(project) == before + 2
        assert rows(project, ALL) == [(2, "new", 2.0)]

    def test_a_later_run_takes_over(self, project: Any) -> None:
        with service(project, "older") as older:
            wait_for(lambda: '"idle"' in older.ask("health"))
            with service(project, "newer") as newer:
                wait_for(lambda: '"idle"' in newer.ask("health"))
                land(project, "4", (4, "new", 4.0, "c"))
                assert older.process.wait(DEADLINE) == 3
                assert "has taken over" in older.said()
                wait_for(lambda: len(rows(project, ALL)) == 2)
                assert newer.stop() == 0
        assert rows(project, ALL) == [(2, "new", 2.0), (4, "new", 4.0)]

    def test_killed_and_started_again(self, project: Any) -> None:
        with service(project, "killed", "--no-page") as running:
            wait_for(lambda: '"idle"' in running.ask("health"))
            with pytest.raises(urllib.error.HTTPError, match="404"):
                running.ask("")
            land(project, "5", *((n, "new", 1.0, "c") for n in range(10, 20)))
            time.sleep(0.3)
            running.process.kill()
        run_dbt(["run", "-s", "orders"])
        assert len(rows(project, ALL)) == 12
        table = project.adapter.catalog.load((project.test_schema, "orders"))
        assert read_property(table.metadata, SINK) is not None


@pytest.mark.slow
class TestLostEngine:
    """An engine of its own, which is killed under the service."""

    @pytest.fixture(scope="class")
    def dbt_profile_target(
        self, dbt_profile_target: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[dict[str, Any]]:
        home = tmp_path_factory.mktemp("engine")
        yield {**dbt_profile_target, "engine_home": str(home)}
        stop(home)

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        quick = ORDERS.replace("unique_key='id'", "unique_key='id', commit_interval=0.5")
        return {"orders.sql": quick, "sources.yml": SOURCES}

    def test_the_service_goes_on_with_a_new_one(
        self, project: Any, dbt_profile_target: dict[str, Any]
    ) -> None:
        home = Path(dbt_profile_target["engine_home"])
        land(project, "1", (1, "new", 1.0, "c"))
        with service(project, "lost") as running:
            wait_for(lambda: '"idle"' in running.ask("health"))
            engine = status(home)
            assert engine is not None
            os.kill(engine.jvm.pid, signal.SIGKILL)
            land(project, "2", (1, "paid", 2.0, "u"), (2, "new", 2.0, "c"))
            wait_for(lambda: not is_healthy(running))
            wait_for(lambda: committed(project) == 2)
            wait_for(lambda: is_healthy(running))
            assert status(home) != engine
            assert running.stop() == 0
            assert "Rendezvous" not in running.said()
        assert rows(project, ALL) == [(1, "paid", 2.0), (2, "new", 2.0)]
