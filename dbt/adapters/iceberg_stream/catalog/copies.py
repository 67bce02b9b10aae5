"""Second tables of the same files: staged tables and clones are registered copies of metadata."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import NO_SNAPSHOT, LoadedTable


def copy_metadata(origin: Metadata, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return metadata of a second table with the files of another one.

    Args:
        origin: metadata of the other table.
        properties: all properties of the second table.
    """
    return {
        # Nessie requires it of tables without snapshots.
        "current-snapshot-id": NO_SNAPSHOT,
        **origin,
        "table-uuid": str(uuid.uuid4()),
        "properties": dict(properties),
        # The other table's older metadata files are its own to delete.
        "metadata-log": [],
        "last-updated-ms": max(int(time.time() * 1000), origin["last-updated-ms"]),
    }


def stage_empty(catalog: IcebergCatalog, name: Name, properties: Mapping[str, str]) -> LoadedTable:
    """Stage a table without rows, for the folder and the credentials that the catalog gives it.

    Args:
        catalog: the catalog.
        name: namespace and identifier.
        properties: table properties.

    Raises:
        CommitConflict: the table exists.
        CatalogError: the catalog refuses.
    """
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.schema import Schema
    from pyiceberg.types import BooleanType, NestedField

    # Servers refuse to create a table without columns.
    schema = Schema(NestedField(1, "staged", BooleanType(), required=False))
    return catalog.stage(name, schema, UNPARTITIONED_PARTITION_SPEC, properties)
