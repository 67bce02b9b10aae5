"""Appends a few rows to a table: Spark runs the query, and this process writes the rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.sessions.node_queries import read_check
from dbt.adapters.iceberg_stream.sessions.self_reading import reads_published
from dbt.adapters.iceberg_stream.sessions.session_handle import SessionHandle
from dbt.adapters.iceberg_stream.sessions.small_tables import LeftToSpark, SmallTables
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome
from dbt.adapters.iceberg_stream.tables.commit.read_check import ReadCheck
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import (
    READS_TARGET,
    new_write_id,
    snapshot_properties,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = Logger()


def append_few_rows(
    handle: SessionHandle, name: QualifiedName, query: str, branch: str | None
) -> Outcome | None:
    """Append the rows of a query to a table in one commit, if they are few.

    Args:
        handle: runs the query, once.
        name: the table.
        query: returns the new rows.
        branch: the branch that gets them; None for main.

    Returns:
        The commit's outcome; None if nothing was written, because Spark must append the rows.

    Raises:
        StatementError: Spark, the catalog or the storage refuses; nothing was written.
    """
    tables = handle.small_tables
    # Settings and functions of the session may change what Spark would write.
    if tables is None or not handle.reusable:
        return None
    handle.refuse_if_canceled()
    try:
        metadata = _appendable(tables, name, branch or MAIN)
        if metadata is None:
            return None
        check = read_check(handle, query, name)
        rows = handle.few_rows(query, tables.sizes.most_rows)
        if rows is None:
            return None
        return _append(handle, tables, metadata, rows, branch, check)
    except CatalogError as error:
        raise StatementError(str(error)) from error


def _appendable(tables: SmallTables, name: QualifiedName, branch: str) -> Metadata | None:
    """Return the metadata of a table to which this process should append; None if Spark should."""
    metadata = tables.catalogs.metadata(name, history=False)
    catalog = tables.catalogs.split(name)[0].name
    if metadata is None or not tables.sizes.had_few_changes(metadata, tables.sizes.most_rows):
        return None
    if branch != MAIN and branch not in (metadata.get("refs") or {}):
        return None
    if not tables.reach.includes(catalog, metadata) or not tables.is_worth_importing():
        return None
    return None if _is_left_to_spark(name, metadata) else metadata


def _append(
    handle: SessionHandle,
    tables: SmallTables,
    metadata: Metadata,
    rows: pa.Table,
    branch: str | None,
    check: ReadCheck,
) -> Outcome | None:
    import pyarrow as pa

    from dbt.adapters.iceberg_stream.catalog.storage import StorageError
    from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema
    from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
    from dbt.adapters.iceberg_stream.tables.ingest.appending import arrange
    from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

    name = check.table
    catalog, table = tables.catalogs.split(name)
    properties = snapshot_properties(new_write_id(), handle.principal_of(catalog.name))
    if check.reads_target or reads_published(check):
        properties[READS_TARGET] = "true"

    def check_base(base: Metadata | None) -> None:
        if base is None or base["current-schema-id"] != metadata["current-schema-id"]:
            raise LeftToSpark
        if _is_left_to_spark(name, base):
            raise LeftToSpark

    try:
        batch = arrange(rows, current_schema(metadata))
        ingested = ingest(
            catalog,
            table,
            pa.RecordBatchReader.from_batches(batch.schema, [batch]),
            Mode.APPEND,
            origin="insert",
            snapshot_properties=properties,
            check_base=check_base,
            confirm=handle.refuse_if_canceled,
            check_attempt=check.check_attempt,
            branch=branch or MAIN,
        )
    except LeftToSpark:
        return None
    except (ColumnError, StorageError) as error:
        if isinstance(error, StorageError):
            # Spark may have what PyArrow lacks for this storage.
            tables.reach.exclude(catalog.name)
        logger.debug(f"Spark appends to {'.'.join(name)}: {error}")
        return None
    return replace(ingested.outcome, branch=branch)


def _is_left_to_spark(name: QualifiedName, metadata: Metadata) -> bool:
    """Return whether Spark must append to a table: this process would not write the same."""
    from dbt.adapters.iceberg_stream.tables.ingest.appending import why_spark_appends

    if (reason := why_spark_appends(metadata)) is None:
        return False
    logger.debug(f"Spark appends to {'.'.join(name)}: {reason}")
    return True
