"""`dbt debug` against servers that lack something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine, stop
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
from tests.servers.tcp_proxy import tcp_proxy


def debug(folder: Path, target: dict[str, object]) -> subprocess.CompletedProcess[str]:
    (folder / "dbt_project.yml").write_text("name: shop\nversion: '1.0'\nprofile: shop\n")
    profile = {"shop": {"target": "dev", "outputs": {"dev": target}}}
    (folder / "profiles.yml").write_text(yaml.safe_dump(profile))
    command = [sys.executable, "-m", "dbt.cli.main", "debug", "--profiles-dir", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
def test_a_server_without_iceberg(tmp_path: Path) -> None:
    home = tmp_path / "spark"
    engine = EmbeddedEngine(EngineSettings(home, packages=(), keep_alive=60))
    server = engine.endpoint()
    assert server.socket is not None
    try:
        with tcp_proxy(server.socket) as proxy:
            done = debug(
                tmp_path,
                {
                    "type": "iceberg_stream",
                    "schema": "s",
                    "method": "connect",
                    "host": "localhost",
                    "port": proxy.port,
                    "catalog_properties": {"uri": "http://localhost:1"},
                },
            )
    finally:
        stop(home)
    assert done.returncode != 0
    assert "The Spark server has no Iceberg" in done.stdout


def test_the_embedded_engine(tmp_path: Path) -> None:
    done = debug(tmp_path, {"type": "iceberg_stream", "schema": "s", "keep_alive": 0})
    stop(tmp_path / ".iceberg_stream")
    assert done.returncode == 0
    assert "Server: Iceberg 1.12" in done.stdout
