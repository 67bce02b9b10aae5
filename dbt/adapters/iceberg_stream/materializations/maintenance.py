"""Maintain a model's table after it was built, or any table by an operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbt.adapters.base import BaseRelation
from dbt_common.exceptions import CompilationError, DbtRuntimeError

from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.maintenance.maintain import Status, StepReport, maintain
from dbt.adapters.iceberg_stream.maintenance.settings import parse_maintenance
from dbt.adapters.iceberg_stream.maintenance.steps.step import MaintenanceContext
from dbt.adapters.iceberg_stream.relation import table_name

logger = Logger()


def maintain_model(
    context: MaintenanceContext, relation: BaseRelation, model: Mapping[str, Any]
) -> None:
    """Run the steps of the model's config `maintenance`; a failed step is only a warning.

    Args:
        context: what maintenance needs of the profile.
        relation: the model's table.
        model: the model's node in dbt's graph.
    """
    # Its errors were reported before the model was built.
    settings, _ = parse_maintenance(model["config"].get("maintenance"))
    if settings is None:
        return
    name = table_name(relation)
    for report in maintain(context, name, settings):
        if report.failed:
            logger.warning(
                f"{_line(report)}\nThe model was built. To maintain its table now, run "
                f"`iceberg-stream maintain {'.'.join(name)}`."
            )
        elif report.status is Status.DONE:
            logger.info(_line(report))
        else:
            logger.debug(_line(report))


def maintain_table(context: MaintenanceContext, table: BaseRelation | str, config: Any) -> None:
    """Run steps of maintenance on a table, for hooks and operations.

    Args:
        context: what maintenance needs of the profile.
        table: a relation, or the text `schema.name`.
        config: as the config `maintenance`.

    Raises:
        CompilationError: the arguments are wrong; nothing was changed.
        DbtRuntimeError: a step failed; the steps before it are committed.
    """
    settings, errors = parse_maintenance(config)
    parts = table.split(".") if isinstance(table, str) else table_name(table)
    if len(parts) != 2:
        errors.append(f"`table` must have the form schema.name, got {table!r}")
    if errors or settings is None:
        lines = "\n".join(f"  - {error}" for error in errors)
        raise CompilationError(f"The arguments of maintain_table have errors:\n{lines}")
    for report in maintain(context, (parts[0], parts[1]), settings):
        if report.failed:
            raise DbtRuntimeError(_line(report))
        logger.info(_line(report))


def _line(report: StepReport) -> str:
    table = ".".join(report.table)
    if report.before is None or report.after is None:
        return f"{table}: {report.step} {report.status.value}: {report.text}"
    before, after = report.before, report.after
    return (
        f"{table}: {report.step}: {report.text}. Data files {before.data_files} -> "
        f"{after.data_files}, delete files {before.delete_files} -> {after.delete_files}, "
        f"snapshots {before.snapshots} -> {after.snapshots} ({report.seconds:.1f} s)"
    )
