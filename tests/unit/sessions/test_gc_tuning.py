"""Only a dbt command of its own has its collector changed."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.sessions.gc_tuning import THRESHOLDS, reduced_gc

ASK = (
    "import sys; sys.argv[0] = {program!r}\n"
    "import dbt.adapters.iceberg_stream, gc\n"
    "print(gc.get_threshold(), gc.get_freeze_count() > 0)"
)


@pytest.mark.parametrize(
    ("program", "changed"), [("/venv/bin/dbt", True), ("orchestrator.py", False)]
)
def test_a_process_that_calls_dbt_keeps_its_settings(
    program: str, changed: bool, tmp_path: Path
) -> None:
    said = subprocess.run(
        [sys.executable, "-c", ASK.format(program=program)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout.strip()
    assert said == f"{THRESHOLDS} True" if changed else "True" not in said


def test_a_command_reduces_it_for_a_while() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="x"), reduced_gc():
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > 0
        raise ValueError("x")
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
