"""Whether a command stages its models: `--vars`, the environment, the profile, in this order."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.settings import (
    KEPT_COMMANDS,
    BuildSettings,
    build_settings,
    retried_settings,
    write_state,
)

INVOCATION = "ae3c0bcb-1111-2222-3333-444455556666"
KEEP = timedelta(days=2)


def settings(profile: dict[str, Any], **variables: str) -> BuildSettings | None:
    defaults = {"publish": "immediately", "build": None, "keep_builds_days": 2}
    return build_settings({**defaults, **profile}, variables, INVOCATION)


def test_default() -> None:
    assert settings({}) is None


def test_atomic() -> None:
    build = settings({"publish": "atomic"})
    assert build is not None
    assert build.name.endswith("-ae3c0bcb")
    assert (build.publishes, build.continues, build.keep) == (True, False, KEEP)


def test_named() -> None:
    assert settings({"build": "pr-1"}) == BuildSettings("pr-1", False, True, KEEP)
    assert settings({"build": "pr-1", "publish": "atomic"}) == settings({"build": "pr-1"})


def test_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEBERG_STREAM_PUBLISH", "atomic")
    assert settings({}) is not None
    assert settings({}, iceberg_stream_publish="immediately") is None
    monkeypatch.setenv("ICEBERG_STREAM_BUILD", "of-environment")
    named = settings({"build": "of-profile"})
    assert named is not None
    assert named.name == "of-environment"
    named = settings({}, iceberg_stream_build="of-vars")
    assert named is not None
    assert named.name == "of-vars"


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match="`PR 42` is not a valid name"):
        settings({}, iceberg_stream_build="PR 42")
    monkeypatch.setenv("ICEBERG_STREAM_PUBLISH", "later")
    with pytest.raises(BuildError, match=r"immediately, atomic, not `later`.*ICEBERG_STREAM_PUBL"):
        settings({})


def results(target: Path, invocation: str) -> None:
    text = json.dumps({"metadata": {"invocation_id": invocation}})
    (target / "run_results.json").write_text(text)


def test_retry_continues_the_build_of_the_last_results(tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert retried_settings(target, KEEP) is None
    build = BuildSettings("of-a-run", True, False, KEEP)
    write_state(target, build, INVOCATION, interrupted=False)
    assert retried_settings(target, KEEP) is None
    results(target, INVOCATION)
    assert retried_settings(target, KEEP) == BuildSettings("of-a-run", True, True, KEEP)
    write_state(target, build, INVOCATION, interrupted=True)
    with pytest.raises(BuildError, match="cannot continue the build `of-a-run`"):
        retried_settings(target, KEEP)
    # A later command published its models immediately.
    results(target, "another")
    assert retried_settings(target, KEEP) is None


def test_retry_after_a_killed_run_continues_the_build_before(tmp_path: Path) -> None:
    write_state(tmp_path, BuildSettings("first", True, False, KEEP), INVOCATION, interrupted=False)
    results(tmp_path, INVOCATION)
    for number in range(3):
        killed = BuildSettings(f"killed-{number}", True, False, KEEP)
        write_state(tmp_path, killed, f"of-{number}", interrupted=False)
    assert retried_settings(tmp_path, KEEP) == BuildSettings("first", True, True, KEEP)
    for number in range(100):
        write_state(tmp_path, killed, f"of-{number}", interrupted=False)
    assert len((tmp_path / "iceberg_stream_build.json").read_text()) < 3000
    (tmp_path / "iceberg_stream_build.json").write_text('{"comm')
    assert retried_settings(tmp_path, KEEP) is None


def test_commands_that_end_at_the_same_time_are_all_noted(tmp_path: Path) -> None:
    builds = {f"id-{n}": BuildSettings(f"b{n}", True, False, KEEP) for n in range(KEPT_COMMANDS)}
    with ThreadPoolExecutor(8) as pool:
        for noted in [
            pool.submit(write_state, tmp_path, build, invocation_id, interrupted=False)
            for invocation_id, build in builds.items()
        ]:
            noted.result()
    for invocation_id, build in builds.items():
        results(tmp_path, invocation_id)
        retried = retried_settings(tmp_path, KEEP)
        assert retried is not None
        assert retried.name == build.name
