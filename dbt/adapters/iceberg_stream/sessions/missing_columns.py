"""Says what to do if inserted rows lack a column of their table."""

from __future__ import annotations

import re
from contextlib import suppress

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.errors.spark import StatementError

# Of a column without its table's name.
UNRESOLVED_COLUMN = re.compile(r"UNRESOLVED_COLUMN\S* [^`]*`([^`]*)` cannot")


def explain_missing_column(error: StatementError, catalog: IcebergCatalog, table: Name) -> None:
    """Add advice to an error if the inserted rows lack a column of the table.

    Args:
        error: the error.
        catalog: the table's catalog.
        table: the table that rows are inserted into.
    """
    missing = UNRESOLVED_COLUMN.search(str(error))
    if missing is None:
        return
    with suppress(CatalogError):
        if missing[1].lower() in {column.name.lower() for column in catalog.columns(table)}:
            error.add(
                f"The table {'.'.join(table)} has the column `{missing[1]}`, but the new rows do "
                "not have it. If an incremental model no longer returns it, set "
                "`on_schema_change` to append_new_columns, which keeps the column, or to "
                "sync_all_columns, which drops it."
            )
