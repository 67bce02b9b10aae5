"""Two users by turns and at once on one warm engine: neither is ever taken for the other."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dbt.adapters.factory import reset_adapters

from tests.functional import turns
from tests.servers.rest_catalog import RestCatalog

USERS = ["uma", "ugo"]
# Runs by turns and at once, of each user. Two processes make better use of two cores.
RUNS = [(2, 4), pytest.param((15, 35), marks=pytest.mark.slow)]
SECONDS = 120

PROJECT = "{name: turns, version: '1.0', profile: turns}"
MODEL = "{{ config(materialized='table') }} select '{{ target.name }}' as owner"


@pytest.fixture
def users_project(
    tmp_path: Path, dbt_profile_target: dict[str, Any], catalog: RestCatalog
) -> Iterator[Path]:
    """A project whose targets are users, each with a token and a schema of their own."""
    common = {key: value for key, value in dbt_profile_target.items() if key != "warehouse"}
    common["catalog_properties"] = {"uri": catalog.uri}
    outputs = {user: common | {"schema": user, "token": catalog.token(user)} for user in USERS}
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.sql").write_text(MODEL)
    (tmp_path / "dbt_project.yml").write_text(PROJECT)
    profiles = {"turns": {"outputs": outputs, "target": USERS[0]}}
    (tmp_path / "profiles.yml").write_text(yaml.safe_dump(profiles))
    yield tmp_path
    # The last turn's adapter would be found by the next test's project.
    reset_adapters()


@pytest.mark.parametrize("runs", RUNS)
def test_runs_of_two_users(
    users_project: Path, catalog: RestCatalog, runs: tuple[int, int]
) -> None:
    by_turns, at_once = runs
    assert turns.take_turns(users_project, by_turns, USERS) == []

    command = [sys.executable, turns.__file__, str(users_project), str(at_once)]
    processes = [
        subprocess.Popen([*command, user], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for user in USERS
    ]
    try:
        for process in processes:
            _, faults = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, faults.decode()
    finally:
        for process in processes:
            process.kill()

    requests = catalog.requests()
    assert {who for who, *_ in requests} == set(USERS)
    for user in USERS:
        seen = Counter(who for who, _, path, _ in requests if f"/namespaces/{user}" in path)
        assert set(seen) == {user}
        assert seen[user] > by_turns + at_once
