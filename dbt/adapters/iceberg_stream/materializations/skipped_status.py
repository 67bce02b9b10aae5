"""Gives skipped nodes the status that dbt has for them, and others the reason why they ran.

dbt reports each model whose materialization returns as a success, and each test whose failures are
none as a pass: it has no hook for adapters that leave a relation as it is, or reuse a result.
"""

from __future__ import annotations

from typing import Any

SKIPPED = "NO-OP"


def report_skipped_nodes() -> None:
    """Let dbt report nodes with the response `NO-OP` as such: `reused` where dbt has that.

    The responses of other models get `built_because`, and those of other tests `run_because`, from
    the adapter's `reasons_to_build`.
    """
    from dbt.task.run import ModelRunner
    from dbt.task.test import TestRunner

    _report(ModelRunner, "_build_run_model_result", "built_because")
    if _report(TestRunner, "build_test_run_result", "run_because"):
        TestRunner.print_result_line = _printing(TestRunner.print_result_line)  # type: ignore[method-assign]


def _report(runner: type, method: str, key: str) -> bool:
    """Let a runner's method that makes results report skipped nodes; return False if it does."""
    from dbt.artifacts.schemas.results import RunStatus

    build_result = getattr(runner, method)
    if getattr(build_result, "reports_skipped_nodes", False):
        return False
    status = getattr(RunStatus, "Reused", RunStatus.NoOp)

    def build_and_report(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = build_result(self, *args, **kwargs)
        reasons = getattr(self.adapter, "reasons_to_build", {})
        if result.adapter_response.get("code") == SKIPPED:
            result.status = status
            result.message = result.message or result.adapter_response["_message"]
        elif reason := reasons.pop(str(result.node.unique_id), None):
            result.adapter_response[key] = reason
        return result

    build_and_report.reports_skipped_nodes = True  # type: ignore[attr-defined]
    setattr(runner, method, build_and_report)
    return True


def _printing(print_result_line: Any) -> Any:
    """Return a method that prints a skipped test's line; dbt's own would say that it failed."""
    from dbt.events.types import LogNodeResult
    from dbt_common.events.base_types import EventLevel
    from dbt_common.events.format import format_fancy_output_line
    from dbt_common.events.functions import fire_event
    from dbt_common.ui import green

    def print_line(self: Any, result: Any) -> None:
        if result.adapter_response.get("code") != SKIPPED:
            print_result_line(self, result)
            return
        description, seconds = self.describe_node_name(), result.execution_time
        line = format_fancy_output_line(
            msg=f"OK {description}",
            status=green(result.message),
            index=self.node_index,
            total=self.num_nodes,
            execution_time=seconds,
        )
        event = LogNodeResult(
            description=description,
            status=str(result.status),
            index=self.node_index,
            total=self.num_nodes,
            execution_time=seconds,
            msg=line,
            node_info=result.node.node_info,
        )
        fire_event(event, level=EventLevel.INFO)

    return print_line
