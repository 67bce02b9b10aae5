from __future__ import annotations

from dataclasses import dataclass

import pytest

from dbt.adapters.iceberg_stream.engines.progress import Progress, describe


@dataclass
class Stage:
    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int = 0


def test_one_line() -> None:
    line = describe("orders", [Stage(10, 10, 5_000_000), Stage(10, 2)], 3, 61.0)
    assert line == "orders ██████████████·········· 12/20 tasks, 3 running, 5 MB read, 61 s"


def test_a_statement_without_tasks_yet() -> None:
    assert "0/0 tasks" in describe("orders", [], 0, 0.0)


def test_short_statements_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.start("orders")
    progress(stages=[Stage(2, 1)], inflight_tasks=1, operation_id="x", done=False)
    progress.finish()
    assert capsys.readouterr().err == ""
