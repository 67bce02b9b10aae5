"""Whether a command of dbt stages what it builds, and in which build."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock

from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.names import check_build_name

IMMEDIATELY, ATOMIC = "immediately", "atomic"
PUBLISH_CHOICES = (IMMEDIATELY, ATOMIC)
# Variables of `--vars`; the environment has them in upper case.
PUBLISH, BUILD = "iceberg_stream_publish", "iceberg_stream_build"
# Statuses of nodes that `dbt retry` runs again.
RETRIED = {"error", "fail", "skipped", "runtime error", "partial success"}
BATCH_OUTCOMES = ("successful", "failed")
STATE_FILE, RESULTS_FILE = "iceberg_stream_build.json", "run_results.json"
# Of how many commands the builds are noted.
KEPT_COMMANDS = 20


@dataclass(frozen=True)
class BuildSettings:
    """The build of one command.

    Attributes:
        name: name of the build.
        publishes: whether the command publishes the build when it ends without failures.
        continues: whether earlier commands may have staged relations of the build.
        keep: how long builds that are not published are kept.
        has_staged: whether it retries a command after which the build had relations.
    """

    name: str
    publishes: bool
    continues: bool
    keep: timedelta
    has_staged: bool = False


def build_settings(
    profile: Mapping[str, Any], variables: Mapping[str, Any], invocation_id: str
) -> BuildSettings | None:
    """Return the build of a command; None if models are published immediately.

    `--vars` come before the environment, and the environment before the profile.

    Args:
        profile: `publish`, `build` and `keep_builds_days` of the profile.
        variables: the command's `--vars`.
        invocation_id: dbt's id of the command.

    Raises:
        BuildError: the name of the build or the value of `publish` is invalid.
    """
    keep = timedelta(days=float(profile["keep_builds_days"]))
    name = _setting(BUILD, variables) or profile.get("build")
    if name:
        return BuildSettings(check_build_name(str(name)), False, True, keep)
    publish = _setting(PUBLISH, variables) or profile.get("publish") or IMMEDIATELY
    if publish not in PUBLISH_CHOICES:
        raise BuildError(
            f"`{PUBLISH}` must be one of {', '.join(PUBLISH_CHOICES)}, not `{publish}`. Correct "
            f"--vars or the environment variable {PUBLISH.upper()}."
        )
    if publish == IMMEDIATELY:
        return None
    today = datetime.now(timezone.utc)
    return BuildSettings(f"{today:%Y%m%d}-{invocation_id[:8]}", True, False, keep)


def _setting(name: str, variables: Mapping[str, Any]) -> Any:
    return variables.get(name) or os.environ.get(name.upper())


def write_state(
    target: Path,
    settings: BuildSettings,
    invocation_id: str,
    interrupted: bool,
    has_staged: bool = False,
) -> None:
    """Note the build of a command, for `dbt retry`.

    Args:
        target: dbt's target folder.
        settings: the build.
        invocation_id: dbt's id of the command.
        interrupted: whether the command was interrupted.
        has_staged: whether it has ended, and the build has relations.
    """
    target.mkdir(parents=True, exist_ok=True)
    state = {
        "build": settings.name,
        "publishes": settings.publishes,
        "interrupted": interrupted,
        "has_staged": has_staged,
    }
    # Commands may end at the same time, and be killed.
    with FileLock(target / f"{STATE_FILE}.lock"):
        commands = _read_state(target)
        # The order is that of their ends: the results that dbt has are of one of the last commands.
        commands.pop(invocation_id, None)
        commands[invocation_id] = state
        kept = dict(list(commands.items())[-KEPT_COMMANDS:])
        written = target / f"{STATE_FILE}.{invocation_id}"
        written.write_text(json.dumps({"commands": kept}))
        written.replace(target / STATE_FILE)


def retried_settings(folder: Path, keep: timedelta) -> BuildSettings | None:
    """Return the build of the command that `dbt retry` continues; None if it had none.

    Args:
        folder: where dbt reads the command's results.
        keep: how long builds are kept.

    Raises:
        BuildError: that command was interrupted.
    """
    try:
        results = json.loads((folder / RESULTS_FILE).read_text())
    except FileNotFoundError:
        return None
    if (state := _read_state(folder).get(results["metadata"]["invocation_id"])) is None:
        return None
    if state.get("interrupted"):
        raise BuildError(
            f"`dbt retry` cannot continue the build `{state['build']}`: its run was interrupted, "
            "and dbt retries only nodes that the run had begun. Run the same command again with "
            f"ICEBERG_STREAM_BUILD={state['build']}, then `iceberg-stream publish "
            f"{state['build']}`; or give it up with `iceberg-stream discard {state['build']}`."
        )
    has_staged = bool(state.get("has_staged"))
    return BuildSettings(state["build"], bool(state["publishes"]), True, keep, has_staged)


def _read_state(folder: Path) -> dict[str, Any]:
    """Return the builds of the last commands, by dbt's ids of the commands."""
    try:
        commands: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())["commands"]
    except (FileNotFoundError, KeyError, ValueError):
        # Of an older version, or cut by a kill.
        return {}
    return commands


def retried_nodes(folder: Path) -> list[str]:
    """Return the unique ids of the nodes that `dbt retry` runs: those that have failed.

    Args:
        folder: where dbt reads the results of the command that is retried.
    """
    return [result["unique_id"] for result in _results(folder) if result["status"] in RETRIED]


def continued_models(folder: Path) -> set[str]:
    """Return the unique ids of the models that `dbt retry` continues: it runs their failed batches.

    Args:
        folder: where dbt reads the results of the command that is retried.
    """
    return {
        result["unique_id"]
        for result in _results(folder)
        if (batches := result.get("batch_results")) and all(map(batches.get, BATCH_OUTCOMES))
    }


def _results(folder: Path) -> list[dict[str, Any]]:
    try:
        results: list[dict[str, Any]] = json.loads((folder / RESULTS_FILE).read_text())["results"]
    except FileNotFoundError:
        return []
    return results
