"""A Spark Connect server that is lost while it works, and what the table says of it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine, status, stop
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
from dbt.adapters.iceberg_stream.sessions.invalidation import AfterCommit
from tests.functional.lake import rows, snapshot_ids
from tests.servers.ports import free_port
from tests.servers.rest_catalog import RestCatalog
from tests.servers.spark_cluster import TOKEN, connect_server
from tests.servers.tcp_proxy import TcpProxy, tcp_proxy

# Appends a row, after some seconds.
APPENDED = """
{{ config(materialized='incremental', incremental_strategy='append') }}
select '{{ invocation_id }}' as run
from range(1) where java_method('java.lang.Thread', 'sleep', {{ var('pause', 0) }}000 + id) is null
"""

QUICK = "{{ config(materialized='table') }} select '{{ invocation_id }}' as run"


# Its file is too large for dbt's process.
MERGED = """
{{ config(materialized='incremental', unique_key='id', merge_engine=var('engine', 'auto')) }}
select /*+ coalesce(1) */ id, {{ 2 if is_incremental() else 1 }} as runs,
  concat_ws('', transform(sequence(1, 200), n -> md5(concat(id, '-', n)))) as text
from range({{ 2000 if is_incremental() else 3000 }})
"""


class TestServerFaults:
    @pytest.fixture(scope="class")
    def home(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """The folder of a Spark Connect server, which is not dbt's own here."""
        folder = tmp_path_factory.mktemp("spark")
        yield folder
        stop(folder)

    @pytest.fixture(scope="class")
    def proxy(self, home: Path) -> Iterator[TcpProxy]:
        EmbeddedEngine(EngineSettings(home, keep_alive=600)).endpoint()
        server = status(home)
        assert server is not None
        with tcp_proxy(server.socket) as running:
            yield running

    @pytest.fixture(scope="class")
    def dbt_profile_data(
        self, unique_schema: str, home: Path, proxy: TcpProxy, catalog: RestCatalog
    ) -> dict[str, Any]:
        target = {
            "type": "iceberg_stream",
            "schema": unique_schema,
            "method": "connect",
            "host": "localhost",
            "port": proxy.port,
            "catalog_properties": {"uri": catalog.uri},
            "token": catalog.token("wanda"),
        }
        return {"test": {"outputs": {"default": target}, "target": "default"}}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"appended.sql": APPENDED}

    @pytest.fixture(scope="class", autouse=True)
    def built(self, project: Any) -> None:
        run_dbt(["run"])

    @pytest.mark.slow
    def test_a_network_that_is_cut_for_seconds(self, project: Any, proxy: TcpProxy) -> None:
        before = snapshot_ids(project, "appended")
        threading.Timer(4, proxy.cut).start()
        threading.Timer(6, proxy.mend).start()
        run_dbt(["run", "--vars", "{pause: 8}"])
        assert len(snapshot_ids(project, "appended")) == len(before) + 1

    @pytest.mark.slow
    def test_a_network_that_stays_cut(self, project: Any, proxy: TcpProxy) -> None:
        before = snapshot_ids(project, "appended")
        threading.Timer(4, proxy.cut).start()
        begun = time.monotonic()
        _, output = run_dbt_and_capture(["run", "--vars", "{pause: 50}"], expect_pass=False)
        assert "no snapshot of this write so far" in " ".join(output.split())
        assert time.monotonic() - begun < 48
        proxy.mend()
        run_dbt(["run"])
        time.sleep(max(0.0, 62 - (time.monotonic() - begun)))
        # Only the second run's: what the first left running was canceled.
        assert len(snapshot_ids(project, "appended")) == len(before) + 1

    @pytest.mark.slow
    def test_a_network_that_swallows_packets(self, project: Any, proxy: TcpProxy) -> None:
        before = snapshot_ids(project, "appended")
        threading.Timer(4, proxy.swallow).start()
        begun = time.monotonic()
        # Servers allow one question in five minutes whether they are still there.
        _, output = run_dbt_and_capture(["run", "--vars", "{pause: 10}"], expect_pass=False)
        assert time.monotonic() - begun < 400
        assert "The statement was committed as snapshot" in " ".join(output.split())
        proxy.mend()
        assert len(snapshot_ids(project, "appended")) == len(before) + 1

    def test_a_server_that_is_killed(self, project: Any, home: Path) -> None:
        before = snapshot_ids(project, "appended")
        server = status(home)
        assert server is not None
        threading.Timer(4, server.jvm.signal, [signal.SIGKILL]).start()
        _, output = run_dbt_and_capture(["run", "--vars", "{pause: 60}"], expect_pass=False)
        assert "no snapshot of this write so far" in " ".join(output.split())
        assert snapshot_ids(project, "appended") == before


class Restartable:
    """A server that is killed and started again where it was; its tasks' Python is bare."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        venv.create(folder / "python", symlinks=True)
        self._running = contextlib.ExitStack()

    def start(self) -> None:
        python = str(self._folder / "python" / "bin" / "python")
        self._running.enter_context(connect_server(self._folder, self.port, python))

    def kill(self) -> None:
        self._running.close()

    def restart(self) -> None:
        self.kill()
        self.start()


class TestServerRestarts:
    @pytest.fixture(scope="class")
    def server(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
        server = Restartable(tmp_path_factory.mktemp("spark"))
        server.start()
        yield server
        server.kill()

    @pytest.fixture(scope="class")
    def dbt_profile_data(
        self, unique_schema: str, server: Restartable, catalog: RestCatalog
    ) -> dict[str, Any]:
        target = {
            "type": "iceberg_stream",
            "schema": unique_schema,
            "method": "connect",
            "host": "localhost",
            "port": server.port,
            "server_token": TOKEN,
            "catalog_properties": {"uri": catalog.uri},
            "token": catalog.token("wanda"),
            "threads": 1,
        }
        return {"test": {"outputs": {"default": target}, "target": "default"}}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "appended.sql": APPENDED,
            "before.sql": QUICK,
            "later.sql": QUICK,
            "merged.sql": MERGED,
        }

    @pytest.fixture(scope="class", autouse=True)
    def built(self, project: Any) -> None:
        run_dbt(["run"])

    @pytest.mark.slow
    def test_tasks_without_pyarrow(self, project: Any) -> None:
        """Spark merges, and no file of the failed tasks is left."""
        (result,) = run_dbt(["run", "--select", "merged"]).results
        assert result.adapter_response["merge_engine"] == "spark"
        assert "Spark's tasks failed" in result.adapter_response["merge_engine_reason"]
        found = rows(project, "select id, runs from {schema}.merged order by id")
        assert found == [(n, 2 if n < 2000 else 1) for n in range(3000)]
        arguments = ["run", "--select", "merged", "--vars", "{engine: rewrite}"]
        _, output = run_dbt_and_capture(arguments, expect_pass=False)
        assert "merge_engine is rewrite, but Spark's tasks failed" in " ".join(output.split())

    @pytest.mark.slow
    def test_in_a_statement(
        self, project: Any, server: Restartable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = snapshot_ids(project, "appended")
        restarts = iter([threading.Timer(2, server.restart)])
        run_statement = Session.run

        def run_while_it_restarts(session: Session, sql: str) -> Any:
            if "insert into" in sql.lower():
                for restart in restarts:
                    restart.start()
            return run_statement(session, sql)

        monkeypatch.setattr(Session, "run", run_while_it_restarts)
        arguments = ["run", "--exclude", "merged", "--vars", "{pause: 60}"]
        results, output = run_dbt_and_capture(arguments, expect_pass=False)
        assert [(r.node.name, r.status) for r in results.results] == [
            ("appended", "error"),
            ("before", "success"),
            ("later", "success"),
        ]
        assert "no snapshot of this write so far" in " ".join(output.split())
        run_dbt(["retry", "--vars", "{pause: 0}"])
        assert len(snapshot_ids(project, "appended")) == len(before) + 1

    def test_between_two_statements(
        self, project: Any, server: Restartable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        restarts = iter([server.restart])

        def restarted_after(_: AfterCommit, name: tuple[str, str], snapshot_id: int) -> None:
            if name[1] == "before":
                next(restarts)()

        monkeypatch.setattr(AfterCommit, "on_spark_commit", restarted_after)
        run_dbt(["run", "--exclude", "merged"])
        assert next(restarts, None) is None
