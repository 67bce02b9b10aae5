"""A project that dbt parses without Spark."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dbt.adapters.factory import reset_adapters
from dbt_common.events.event_manager_client import cleanup_event_logger

from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
from dbt.adapters.iceberg_stream.shell.commands import Commands

PROFILE = {"type": "iceberg_stream", "schema": "s", "database": "lake"}
MODELS = {
    "orders.sql": "select 1 as id",
    "customers.sql": "select id from {{ ref('orders') }}",
    "models.yml": """
models:
  - name: orders
    config: {tags: [daily]}
    columns: [{name: id, data_tests: [unique]}]
sources:
  - name: raw
    tables: [{name: clicks}]
""",
}


def write_profile(folder: Path, **settings: object) -> None:
    """Write a profile with two targets."""
    target = {**PROFILE, **settings}
    outputs = {"dev": target, "prod": {**target, "schema": "prod"}}
    (folder / "profiles.yml").write_text(json.dumps({"p": {"target": "dev", "outputs": outputs}}))


@pytest.fixture(scope="session")
def parsed_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with what dbt keeps of its macros, which takes most of the time of a parse."""
    root = tmp_path_factory.mktemp("project")
    write_profile(root)
    project = {"name": "p", "profile": "p", "flags": {"send_anonymous_usage_stats": False}}
    (root / "dbt_project.yml").write_text(json.dumps(project))
    for folder in ("models", "macros"):
        (root / folder).mkdir()
    for name, text in MODELS.items():
        (root / "models" / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert Commands().run(["--quiet", "ls"]) == 0
    (root / "target" / "manifest.json").unlink()
    return root


@pytest.fixture
def folder(parsed_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a project, which is the working directory."""
    shutil.copytree(parsed_project, tmp_path, dirs_exist_ok=True)
    # The commands of these tests compile, which needs no statement.
    monkeypatch.setattr(EmbeddedEngine, "prestart", lambda self: None)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    reset_adapters()
    cleanup_event_logger()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets all files be old, as if nobody had changed one in the last seconds."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3_600_000_000_000)
