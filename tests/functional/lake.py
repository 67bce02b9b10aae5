"""What tests ask of a lakehouse: rows through Spark, snapshots through PyIceberg."""

from __future__ import annotations

from typing import Any

from dbt.tests.util import get_connection
from pyiceberg.table import Table


def rows(project: Any, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a query; `{schema}` is the test's namespace."""
    with get_connection(project.adapter):
        _, table = project.adapter.execute(sql.format(schema=project.test_schema), fetch=True)
    return [tuple(row) for row in table.rows]


def run(project: Any, sql: str) -> None:
    """Run a statement; `{schema}` is the test's namespace."""
    with get_connection(project.adapter):
        project.adapter.execute(sql.format(schema=project.test_schema))


def table(project: Any, name: str, schema: str | None = None) -> Table:
    return project.adapter.catalog.table((schema or project.test_schema, name))


def snapshot_ids(project: Any, name: str) -> list[int]:
    return [s.snapshot_id for s in table(project, name).metadata.snapshots]


def summary(project: Any, name: str) -> dict[str, str]:
    """Summary of the current snapshot, with its operation."""
    snapshot = table(project, name).current_snapshot()
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}
