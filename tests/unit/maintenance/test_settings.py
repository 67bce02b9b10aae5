"""The config `maintenance` and the arguments of operations."""

from __future__ import annotations

from typing import Any

import pytest

from dbt.adapters.iceberg_stream.maintenance.maintain import STEPS
from dbt.adapters.iceberg_stream.maintenance.settings import (
    DEFAULT_STEPS,
    STEP_NAMES,
    MaintenanceSettings,
    parse_maintenance,
)


@pytest.mark.parametrize("config", [None, False])
def test_nothing_to_do(config: Any) -> None:
    assert parse_maintenance(config) == (None, [])


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (True, DEFAULT_STEPS),
        ("expire_snapshots", ("expire_snapshots",)),
        (["expire_snapshots", "compact", "compact"], ("compact", "expire_snapshots")),
        ({"steps": None, "sort": None, "options": None}, DEFAULT_STEPS),
        ({"steps": ["compact"]}, ("compact",)),
    ],
    ids=str,
)
def test_steps_run_in_their_order(config: Any, steps: tuple[str, ...]) -> None:
    assert parse_maintenance(config) == (MaintenanceSettings(steps), [])


def test_sort_and_options() -> None:
    config = {"sort": "zorder(a, b)", "options": {"rewrite-all": True, "min-input-files": 3}}
    settings, errors = parse_maintenance(config)
    assert errors == []
    assert settings == MaintenanceSettings(
        sort="zorder(a, b)", options={"rewrite-all": "true", "min-input-files": "3"}
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (3, "`maintenance` must be true, false, steps, or a dictionary; got 3"),
        ("compat", "`steps` must be one of convert_deletes, compact,"),
        (["remove_orphans"], "remove_orphans never runs by itself"),
        ({"step": "compact"}, "unknown key `step`: the keys are steps, sort, options"),
        ({"steps": {"compact": True}}, "`steps` must be a list of steps"),
        ({"sort": ["a"]}, "`sort` must be a text"),
        ({"options": ["rewrite-all"]}, "`options` must be a dictionary"),
        ({"options": {"min-input-file": 2}}, "did you mean `min-input-files`?"),
    ],
    ids=str,
)
def test_errors(config: Any, message: str) -> None:
    _, errors = parse_maintenance(config)
    assert message in "\n".join(errors)


def test_each_name_has_its_step() -> None:
    assert tuple(step.name for step in STEPS) == STEP_NAMES
