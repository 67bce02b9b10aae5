"""Gives skipped nodes the status that dbt has for them, and others the reason of their build.

dbt reports each node whose materialization returns as a success: it has no hook for adapters that
leave a relation as it is.
"""

from __future__ import annotations

from typing import Any

SKIPPED = "NO-OP"


def report_skipped_nodes() -> None:
    """Let dbt report nodes with the response `NO-OP` as such: `reused` where dbt has that.

    The responses of others get `built_because` from the adapter's `reasons_to_build`.
    """
    from dbt.artifacts.schemas.results import RunStatus
    from dbt.task.run import ModelRunner

    build_result = ModelRunner._build_run_model_result
    if getattr(build_result, "reports_skipped_nodes", False):
        return
    status = getattr(RunStatus, "Reused", RunStatus.NoOp)

    def build_and_report(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = build_result(self, *args, **kwargs)
        reasons = getattr(self.adapter, "reasons_to_build", {})
        if result.adapter_response.get("code") == SKIPPED:
            result.status = status
        elif reason := reasons.pop(str(result.node.unique_id), None):
            result.adapter_response["built_because"] = reason
        return result

    build_and_report.reports_skipped_nodes = True  # type: ignore[attr-defined]
    ModelRunner._build_run_model_result = build_and_report  # type: ignore[method-assign]
