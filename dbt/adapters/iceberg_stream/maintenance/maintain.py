"""Maintains a table: runs the steps that pay, each a commit of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from dbt_common.exceptions import DbtRuntimeError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from dbt.adapters.iceberg_stream.catalog.catalog import Name
from dbt.adapters.iceberg_stream.catalog.errors import CommitConflict
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.errors.spark import REFUSAL, StatementError
from dbt.adapters.iceberg_stream.maintenance.health import TableHealth
from dbt.adapters.iceberg_stream.maintenance.settings import (
    COMPACT,
    COMPUTE_STATISTICS,
    CONVERT_DELETES,
    EXPIRE_SNAPSHOTS,
    REMOVE_ORPHANS,
    REWRITE_MANIFESTS,
    TRIM_METADATA,
    MaintenanceSettings,
)
from dbt.adapters.iceberg_stream.maintenance.steps.compact import plan_compaction
from dbt.adapters.iceberg_stream.maintenance.steps.convert import plan_conversion
from dbt.adapters.iceberg_stream.maintenance.steps.expire import plan_expiry
from dbt.adapters.iceberg_stream.maintenance.steps.manifests import plan_manifests
from dbt.adapters.iceberg_stream.maintenance.steps.metadata_log import plan_metadata_log
from dbt.adapters.iceberg_stream.maintenance.steps.orphan_files import plan_orphans
from dbt.adapters.iceberg_stream.maintenance.steps.statistics import plan_statistics
from dbt.adapters.iceberg_stream.maintenance.steps.step import (
    MaintenanceContext,
    Skip,
    Step,
    TableState,
)

# In the order of STEP_NAMES.
STEPS = (
    Step(CONVERT_DELETES, plan_conversion),
    Step(COMPACT, plan_compaction),
    Step(REWRITE_MANIFESTS, plan_manifests),
    Step(EXPIRE_SNAPSHOTS, plan_expiry),
    Step(REMOVE_ORPHANS, plan_orphans),
    Step(COMPUTE_STATISTICS, plan_statistics),
    Step(TRIM_METADATA, plan_metadata_log),
)
# A step that conflicts with other writers is planned again on the table's new version.
ATTEMPTS = 4
# Errors of Spark, of the catalog and of the storage.
ERRORS = (StatementError, DbtRuntimeError, OSError)


class Status(Enum):
    """What became of a step."""

    DONE = "done"
    PLANNED = "planned"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class StepReport:
    """What became of a step on one table.

    Attributes:
        table: namespace and identifier.
        step: its name; empty if the table could not be read at all.
        status: of the step.
        text: what was done, what would be done, why not, or the error.
        before: the table before it; None if it could not be read.
        after: the table after it; None if nothing was done.
        seconds: how long it took.
        ends: whether the later steps would fail for the same reason.
    """

    table: Name
    step: str
    status: Status
    text: str
    before: TableHealth | None = None
    after: TableHealth | None = None
    seconds: float = 0.0
    ends: bool = False

    @property
    def failed(self) -> bool:
        """Return whether the step failed."""
        return self.status is Status.FAILED


def maintain(
    context: MaintenanceContext,
    name: Name,
    settings: MaintenanceSettings,
    dry_run: bool = False,
) -> Iterator[StepReport]:
    """Run the steps of maintenance on a table.

    If a step fails, the later ones run nevertheless, unless the catalog refused the user or the
    connection to Spark is lost.

    Args:
        context: what maintenance needs of the profile.
        name: the table.
        settings: which steps, and how.
        dry_run: change nothing, and report what would be done.
    """
    steps = [step for step in STEPS if step.name in settings.steps]
    try:
        state = TableState.load(context.catalog, name)
    except ERRORS as error:
        yield StepReport(name, "", Status.FAILED, _explain(error))
        return
    for step in steps:
        report, state = _Attempts(context, step, settings, dry_run, state).run()
        yield report
        if report.ends:
            return


class _Attempts:
    """The attempts of a step on a table."""

    def __init__(
        self,
        context: MaintenanceContext,
        step: Step,
        settings: MaintenanceSettings,
        dry_run: bool,
        state: TableState,
    ) -> None:
        self._context = context
        self._step = step
        self._settings = settings
        self._dry_run = dry_run
        self._state = state
        self._began = time.monotonic()

    def run(self) -> tuple[StepReport, TableState]:
        """Run the step; return its report, and the table afterwards."""
        retrying = Retrying(
            retry=retry_if_exception(is_conflict),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.5, max=10),
            reraise=True,
        )
        try:
            for attempt in retrying:
                with attempt:
                    if attempt.retry_state.attempt_number > 1:
                        self._state = TableState.load(self._context.catalog, self._state.name)
                    return self._run_once()
        except ERRORS as error:
            report = self._report(Status.FAILED, _explain(error))
            return replace(report, ends=_ends(error)), self._state
        raise AssertionError("tenacity ends with a result or an error")

    def _run_once(self) -> tuple[StepReport, TableState]:
        context, before = self._context, self._state
        plan = self._step.plan(context, before, self._settings)
        if isinstance(plan, Skip):
            return self._report(Status.SKIPPED, plan.reason), before
        if self._dry_run:
            return self._report(Status.PLANNED, plan.description), before
        context.catalog.check_write(before.name)
        text = plan.run()
        context.after_commit(before.name)
        after = TableState.load(context.catalog, before.name)
        return self._report(Status.DONE, text, after.health), after

    def _report(self, status: Status, text: str, after: TableHealth | None = None) -> StepReport:
        seconds = time.monotonic() - self._began
        table, before = self._state.name, self._state.health
        return StepReport(table, self._step.name, status, text, before, after, seconds)


def is_conflict(error: BaseException) -> bool:
    """Return whether a step failed because another writer committed first, and changed nothing.

    Args:
        error: of the step.
    """
    if isinstance(error, StatementError):
        return error.is_conflict and not error.commit_state_unknown and not error.canceled
    return isinstance(error, CommitConflict)


def _ends(error: Exception) -> bool:
    lost = isinstance(error, StatementError) and (error.engine_gone or error.canceled)
    return lost or re.search(REFUSAL, str(error)) is not None


def _explain(error: Exception) -> str:
    text = reason(error)
    if is_conflict(error):
        return (
            f"Other writers committed to the table during each of {ATTEMPTS} attempts, and changed "
            "files that the step rewrites. Their commits stay, and the step changed nothing. Run "
            f"it again when fewer writers are active. The last conflict: {text}"
        )
    return text
