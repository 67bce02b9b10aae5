"""Commands for a profile that takes all it says from the environment."""

from __future__ import annotations

import contextvars
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from dbt.adapters.iceberg_stream.api import open_catalog
from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.cli.streams import _listed
from dbt.adapters.iceberg_stream.engines import embedded
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.unit.local_tables import make_catalog

SAID = {
    "type": "iceberg_stream",
    "schema": "s",
    "database": "lake",
    "warehouse": "lake",
    "engine_home": "engine",
    "keep_alive": "0",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a table `s.t` and a profile of variables, one of them secret."""
    lake = make_catalog(tmp_path)
    ingest(lake, ("s", "t"), pa.table({"id": [1]}).to_reader(), Mode.CREATE)
    lake.close()
    said = SAID | {
        "warehouse": str(tmp_path / "warehouse"),
        "engine_home": str(tmp_path / "engine"),
    }
    profile: dict[str, Any] = {}
    for key, value in said.items():
        name = f"DBT_ENV_SECRET_{key}" if key == "warehouse" else f"TEST_{key}"
        monkeypatch.setenv(name, value)
        number = " | as_number" if key == "keep_alive" else ""
        profile[key] = f"{{{{ env_var('{name}'){number} }}}}"
    monkeypatch.setenv("TEST_PROFILE", "p")
    monkeypatch.setenv("TEST_TARGET", "dev")
    text = {"name": "p", "profile": "{{ env_var('TEST_PROFILE') }}", "config-version": 2}
    (tmp_path / "dbt_project.yml").write_text(json.dumps(text))
    profiles = {"p": {"target": "{{ env_var('TEST_TARGET') }}", "outputs": {"dev": profile}}}
    (tmp_path / "profiles.yml").write_text(json.dumps(profiles))
    return tmp_path


def call(project: Path, *arguments: str) -> Result:
    """Run a command as a fresh process would: dbt has left nothing in its context."""
    command = [*arguments, "--project-dir", str(project), "--profiles-dir", str(project)]
    result: Result = contextvars.Context().run(CliRunner().invoke, main, command)
    return result


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("orphans", "s.t"), "0 orphans"),
        (("streams", "s.t"), "No stream writes to s.t."),
        (("streams", "s.t", "forget"), "Name the stream: streams s.t forget STREAM"),
        (("streams", "s.t", "forget", "model.p.m"), "s.t has no progress of the stream model.p.m"),
        (("streams", "s.t", "add", "model.p.m"), "model.p.m may write to s.t. Its next run reads"),
        (("resume", "s.t"), "No stream of s.t needs to be resumed"),
        (("check", "s.t"), "0 errors"),
        (("orphans", "s.t", "--older-than", "-1"), "-1.0 is not in the range 0<=x<=876000"),
        (("orphans", "s.t", "--keep-removed", "inf"), "inf is not in the range"),
        (("maintain", "s.t", "--orphans-older-than", "nan"), "nan is not a number of hours."),
        (("run",), "No stream model is selected"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_commands(project: Path, arguments: tuple[str, ...], output: str) -> None:
    result = call(project, *arguments)
    assert output in result.output, result.output


def test_the_list_of_streams_is_not_printed(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "models").mkdir()
    (project / "models/a.sql").write_text("{{ config(materialized='stream') }} select 1 as id")
    place = ["--project-dir", str(project), "--profiles-dir", str(project)]
    assert contextvars.Context().run(_listed, place) == {"model.p.a": []}
    assert capfd.readouterr().out == ""


def test_the_engine_of_the_profile(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes: list[Path] = []
    monkeypatch.setattr(embedded, "status", lambda home: homes.append(home))
    monkeypatch.setattr(embedded, "stop", lambda home: homes.append(home))
    for command in ("status", "stop"):
        result = call(project, command, "--target", "dev")
        assert "No engine is running here." in result.output, result.output
        assert (
            "does not have a target named 'other'" in call(project, command, "-t", "other").output
        )
        call(project, command, "--engine-home", "mine")
    assert homes == [project / "engine", project / "mine"] * 2


def test_a_variable_that_is_missing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_schema")
    result = call(project, "orphans", "s.t")
    assert result.exit_code == 1
    assert "Env var required but not provided: 'TEST_schema'" in result.output


def test_programs(project: Path) -> None:
    lake = contextvars.Context().run(open_catalog, project)
    assert lake.namespaces() == ["s"]
    lake.close()


def test_serve(project: Path) -> None:
    command = [sys.executable, "-m", "dbt.adapters.iceberg_stream", "serve"]
    process = subprocess.Popen(
        [*command, "--project-dir", str(project)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        assert "Serving lake at grpc://127.0.0.1:" in process.stdout.readline()
    finally:
        process.kill()
        process.communicate()
