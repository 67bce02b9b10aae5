"""Keys whose type is widened, and the equality deletes that have them in the old one."""

from __future__ import annotations

from collections.abc import Sequence

from dbt.adapters.events.logging import AdapterLogger
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.update import AddSchemaUpdate, TableUpdate

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.commit.schema_updates import current_schema
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import live_deletes

logger = AdapterLogger("IcebergStream")


def warn_of_key_types(base: LoadedTable, updates: Sequence[TableUpdate]) -> None:
    """Warn if updates widen a column that live equality deletes have.

    An engine that has read such a file keeps its values by the file's name, in the type of then
    (Iceberg 1.12, `BaseDeleteLoader`), so that rows that were deleted come back; DuckDB 1.5 fails.
    """
    schemas = [update.schema_ for update in updates if isinstance(update, AddSchemaUpdate)]
    if not schemas:
        return
    now, then = current_schema(base.metadata), schemas[-1]
    wider = {
        field.field_id
        for field in now.fields
        if field.field_id in then.field_ids and then.find_type(field.field_id) != field.field_type
    }
    if not wider:
        return
    deletes = (
        file
        for file in live_deletes(base.io, base.metadata)
        if file.content == DataFileContent.EQUALITY_DELETES
    )
    for field_id in (number for file in deletes for number in file.equality_ids or ()):
        if field_id in wider:
            table = ".".join(base.name)
            logger.warning(
                f"The key column `{now.find_column_name(field_id)}` of {table} becomes "
                f"{then.find_type(field_id)}, and equality deletes of the table have it as "
                f"{now.find_type(field_id)}. Spark shows deleted rows where it has read those "
                "before: restart such engines (of this project: iceberg-stream stop) before they "
                "read, merge or compact the table."
            )
            return
