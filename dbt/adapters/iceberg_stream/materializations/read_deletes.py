"""Lets a model read tables whose equality deletes would be read again for each data file."""

from __future__ import annotations

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.maintenance.health import table_health
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.sql.versions import at_snapshots, tables_without_version
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import (
    new_write_id,
    snapshot_properties,
)
from dbt.adapters.iceberg_stream.tables.deletes.conversion import stage_conversion

logger = Logger()

# Seconds of a row of a data file, or of a key of a delete file, that is read once: 5,000,000 rows
# and 3,000,000 keys took 2.7 s on two cores.
SECONDS_PER_KEY = 4e-7


def read_deletes_once(context: MaterializationContext, sql: str, choice: str) -> str:
    """Return a query that reads tables with equality deletes at staged conversions.

    Article on high-scale streaming, "Improving query performance": each delete file is opened once,
    and its deletes are applied to all data files.

    Args:
        context: of the model.
        sql: the model's query.
        choice: `once` for all tables with equality deletes; `auto` for those where it is estimated
            to take less time than Spark's own reader; `spark` for none.
    """
    if choice == "spark":
        return sql
    snapshots: dict[int, int | str] = {}
    for parts, offsets in tables_without_version(sql).items():
        relation = context.catalogs.find(parts)
        snapshot_id = None if relation is None else staged_snapshot(context, *relation, choice)
        if snapshot_id is not None:
            snapshots |= dict.fromkeys(offsets, snapshot_id)
    return at_snapshots(sql, snapshots)


def staged_snapshot(
    context: MaterializationContext, catalog: IcebergCatalog, name: Name, choice: str
) -> int | None:
    """Return a staged snapshot with the rows of a table, and without equality deletes.

    Args:
        context: of the model.
        catalog: of the table.
        name: of the table.
        choice: as for `read_deletes_once`.

    Returns:
        The id of the snapshot; None if Spark's own reader reads the table.
    """
    if choice == "spark" or not _pays(catalog, name, choice):
        return None
    properties = snapshot_properties(new_write_id(), context.principal)
    try:
        return stage_conversion(catalog, name, properties)
    except (CatalogError, OSError) as error:
        logger.warning(
            f"Spark's own reader reads {'.'.join(name)}, and opens each equality delete file again "
            f"for each data file. They cannot be read once: {reason(error)}"
        )
        return None


def _pays(catalog: IcebergCatalog, name: Name, choice: str) -> bool:
    """Return whether a table has equality deletes that should be read once."""
    table = catalog.load(name)
    # A view has no metadata of this kind, and is read by Spark with the tables behind it.
    if table is None or "snapshots" not in table.metadata:
        return False
    health = table_health(table)
    if not health.equality_files or choice == "once":
        return bool(health.equality_files)
    keys = health.rows + health.equality_keys
    return health.cost.equality.seconds > keys * SECONDS_PER_KEY
