"""Projects whose profile skips what has not changed, and which of their nodes a run builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt

SEED = "id,v\n1,10\n2,20\n3,30\n"


class Skipping:
    """A project with a seed."""

    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, Any]) -> dict[str, Any]:
        return {**dbt_profile_target, "skip_unchanged": True}

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"base.csv": SEED}


def built(*arguments: str) -> set[str]:
    """Build the project; return the nodes that were not left as they were."""
    results = run_dbt(["build", *arguments])
    assert {str(r.status) for r in results} <= {"success", "no-op", "reused", "pass"}
    return {result.node.name for result in results if result.status == "success"}


def edit(project: Any, path: str, before: str, after: str) -> None:
    file = Path(project.project_root) / path
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
