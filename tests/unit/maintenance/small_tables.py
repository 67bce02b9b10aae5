"""Small tables that need maintenance, and Spark's procedures as stubs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.table.update import SetPropertiesUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.maintenance.steps.step import MaintenanceContext
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from tests.unit.local_tables import insert, live, load, make_table, rewrite, set_metadata

DAY_MS = 24 * 60 * 60 * 1000
UNMERGED = {"commit.manifest.min-count-to-merge": "1000"}
ONE_ROW = pa.table({"id": pa.array([1], pa.int64()), "x": ["a"]})
REWRITTEN = {"rewritten_data_files_count": 12, "added_data_files_count": 1}


@dataclass
class Procedures:
    """Stands for Spark: runs `then` at each call, after it has raised its errors.

    Attributes:
        catalog: the catalog.
        then: what the procedure does; returns its rows.
        errors: of the first calls.
        calls: the statements.
        committed: tables that maintenance reported as changed.
    """

    catalog: IcebergCatalog
    then: Callable[[], list[dict[str, Any]]] = field(default=list)
    errors: list[StatementError] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    committed: list[Name] = field(default_factory=list)

    @property
    def context(self) -> MaintenanceContext:
        return MaintenanceContext(self.catalog, self._call, self.committed.append)

    def _call(self, sql: str) -> list[dict[str, Any]]:
        self.calls.append(sql)
        if self.errors:
            raise self.errors.pop(0)
        return self.then()


def make_fragmented(catalog: IcebergCatalog, files: int = 12) -> None:
    """A table with one file and one manifest for each of its rows."""
    make_table(catalog, properties=UNMERGED)
    for _ in range(files):
        insert(catalog, ONE_ROW)


def compacts(catalog: IcebergCatalog) -> Callable[[], list[dict[str, Any]]]:
    """What `rewrite_data_files` does: all rows into one file."""

    def rewrite_data_files() -> list[dict[str, Any]]:
        files = live(catalog)
        rewrite(catalog, files, pa.concat_tables([ONE_ROW] * len(files)))
        return [REWRITTEN]

    return rewrite_data_files


def age(catalog: IcebergCatalog, now_ms: int, days: int = 30) -> list[int]:
    """Make the snapshots older: the last one by `days`, each earlier one by a day more.

    Returns:
        Their ids, oldest first.
    """
    snapshots = load(catalog).metadata["snapshots"]
    aged = [
        {**snapshot, "timestamp-ms": now_ms - (days + len(snapshots) - place) * DAY_MS}
        for place, snapshot in enumerate(snapshots)
    ]
    set_metadata(catalog, snapshots=aged)
    return [snapshot["snapshot-id"] for snapshot in aged]


def record_reader(catalog: IcebergCatalog, sink: Name, snapshot_id: int, uuid: str = "") -> None:
    """Record in a table that a stream has read the table `s.t` up to a snapshot."""
    frontier = {
        "snapshot-id": snapshot_id,
        "table-uuid": uuid or load(catalog).metadata["table-uuid"],
    }
    update = Progress("model.shop.copy", frontier=frontier, write_id="w").as_property()
    assert isinstance(update, SetPropertiesUpdate)
    catalog.commit(load(catalog, sink), (), (update,))
