"""Rows that lie in this process become a table, written by our own writer.

Only where the table becomes the one that Spark would make of them; the others go through a view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from dbt.adapters.base import BaseRelation
from dbt.adapters.events.logging import AdapterLogger
from dbt_common.exceptions import DbtDatabaseError

from dbt.adapters.iceberg_stream.catalog.catalog import Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.storage import StorageError
from dbt.adapters.iceberg_stream.catalog.table_config import TableConfig
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema, partition_spec
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import (
    new_write_id,
    snapshot_properties,
)
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

logger = AdapterLogger("Iceberg_Stream")

# Settings that decide what a time without a zone is.
TIME_ZONE, TIMESTAMP_TYPE = "spark.sql.session.timeZone", "spark.sql.timestampType"


def build_from_rows(
    context: MaterializationContext,
    relation: BaseRelation,
    rows: pa.Table,
    layout: TableConfig,
    config: Mapping[str, Any],
    origin: str,
) -> IcebergStreamResponse | None:
    """Make or replace a table in one commit; None if that is left to Spark.

    `origin` begins the names of the files.

    Raises:
        DbtDatabaseError: the catalog or the storage refuses; nothing was written.
    """
    name = table_name(relation)
    if (reason := _why_spark(context, name, rows, layout, config)) is not None:
        logger.debug(f"The rows of {relation} go through Spark: {reason}")
        return None
    properties = snapshot_properties(new_write_id(), context.principal)
    try:
        done = ingest(
            context.catalog,
            name,
            rows.to_reader(),
            Mode.REPLACE,
            origin=origin,
            snapshot_properties=properties,
        )
    except ColumnError as error:
        logger.debug(f"The rows of {relation} go through Spark: {error}")
        return None
    except (CatalogError, StorageError) as error:
        raise DbtDatabaseError(str(error)) from error
    context.after_commit(name, done.outcome.snapshot_id)
    return IcebergStreamResponse.of(done.outcome, "CREATE", ".".join(name))


def _why_spark(
    context: MaterializationContext,
    name: Name,
    rows: pa.Table,
    layout: TableConfig,
    config: Mapping[str, Any],
) -> str | None:
    if context.is_remote:
        return "the cluster is nearer to the storage"
    if not layout.is_default or config.get("contract", {}).get("enforced"):
        return "it has a layout or a contract"
    names = [column.lower() for column in rows.column_names]
    if len(set(names)) < len(names) or any("." in column for column in names):
        return "Spark refuses a column's name"
    metadata = context.catalog.metadata(name)
    return None if metadata is None else _what_it_would_keep(metadata)


def _what_it_would_keep(metadata: Metadata) -> str | None:
    """What of a table our way of replacing it keeps, and Spark's does not."""
    if "versions" in metadata:
        return "a view stands in its place"
    spec = partition_spec(metadata, metadata["default-spec-id"])
    # The order without fields has this number (spec, "Sorting").
    if spec.fields or metadata["default-sort-order-id"] or metadata["format-version"] != 2:
        return "the table that it replaces has a layout"
    if any(field.doc for field in current_schema(metadata).fields):
        return "the columns that it replaces have comments"
    return None
