"""Clones of tables, for `dbt clone`."""

from __future__ import annotations

from dbt.adapters.base import BaseRelation

from dbt.adapters.iceberg_stream.catalog.metadata import current_snapshot
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.relation import published_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.tables import clones

logger = Logger()


def clone_table(
    context: MaterializationContext,
    origin: BaseRelation,
    relation: BaseRelation,
    final: BaseRelation,
) -> IcebergStreamResponse | None:
    """Clone a table, if that is possible.

    Args:
        context: what the materialization works with.
        origin: the table to clone.
        relation: the clone, which must not exist.
        final: the relation that the clone will be renamed to.

    Returns:
        The response; None if the table cannot be cloned, after logging why.

    Raises:
        CatalogError: the table exists, or the catalog refuses or fails.
    """
    names = [published_name(each) for each in (origin, relation, final)]
    try:
        if context.catalogs.get(origin.database) is not context.catalog:
            raise clones.NotClonable(f"it is in the catalog `{origin.database}`")
        clone = clones.clone_table(context.catalog, *names)
    except clones.NotClonable as error:
        shown, source = (".".join(name) for name in (names[2], names[0]))
        logger.info(f"{shown} becomes a view of {source}, which cannot be cloned: {reason(error)}.")
        return None
    snapshot = current_snapshot(clone.metadata)
    rows = 0 if snapshot is None else int(snapshot.properties.get("total-records", 0))
    return IcebergStreamResponse(f"CLONE {rows:,} rows", code="CLONE", rows_after=rows)
