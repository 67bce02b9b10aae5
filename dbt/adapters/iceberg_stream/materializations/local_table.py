"""Write rows of this process into a table without Spark.

Only if the table is then the same as Spark's; otherwise Spark writes the rows, from a view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from dbt.adapters.base import BaseRelation
from dbt_common.exceptions import DbtDatabaseError

from dbt.adapters.iceberg_stream.catalog.catalog import Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.storage import StorageError
from dbt.adapters.iceberg_stream.catalog.table_config import TableConfig
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import (
    new_write_id,
    snapshot_properties,
)
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.tables.ingest.replacement import why_spark_replaces

logger = Logger()

# Spark's settings for times without a zone.
TIME_ZONE, TIMESTAMP_TYPE = "spark.sql.session.timeZone", "spark.sql.timestampType"


def build_from_rows(
    context: MaterializationContext,
    relation: BaseRelation,
    rows: pa.Table,
    layout: TableConfig,
    config: Mapping[str, Any],
    origin: str,
) -> IcebergStreamResponse | None:
    """Create or replace a table in one commit, unless Spark must write it.

    Args:
        context: what the materialization needs of the adapter.
        relation: the table.
        rows: its rows.
        layout: its layout.
        config: the model's config.
        origin: first word of the files' names.

    Returns:
        The commit; None if Spark must write the table.

    Raises:
        DbtDatabaseError: the catalog or the storage refuses; nothing was written.
    """
    name = table_name(relation)
    reason = _why_spark(context, name, rows, layout, config)
    if getattr(relation, "branch", None) is not None:
        reason = "it writes to a branch, whose columns must be those of the table"
    if reason is not None:
        logger.debug(f"Spark writes the rows of {relation}: {reason}")
        return None
    properties = snapshot_properties(new_write_id(), context.principal)
    try:
        ingested = ingest(
            context.catalog,
            name,
            rows.to_reader(),
            Mode.REPLACE,
            origin=origin,
            comments={},
            snapshot_properties=properties,
        )
    except ColumnError as error:
        logger.debug(f"Spark writes the rows of {relation}: {error}")
        return None
    except (CatalogError, StorageError) as error:
        raise DbtDatabaseError(str(error)) from error
    context.after_commit(name, ingested.outcome)
    return IcebergStreamResponse.of(ingested.outcome, "CREATE", ".".join(name))


def _why_spark(
    context: MaterializationContext,
    name: Name,
    rows: pa.Table,
    layout: TableConfig,
    config: Mapping[str, Any],
) -> str | None:
    if context.is_remote:
        return "Spark is a cluster, closer to the storage"
    if not layout.is_default or config.get("contract", {}).get("enforced"):
        return "it has a layout or a contract"
    return why_spark_replaces(rows.column_names, context.catalog.metadata(name, history=False))
