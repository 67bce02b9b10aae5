"""The clones of a catalog that need a table's tags."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.clone_tags import clone_tags
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata

# A clone is listed a moment after it has its tag.
YOUNGEST = timedelta(days=1)


def unused_tags(catalog: IcebergCatalog, metadata: Metadata) -> list[str]:
    """Return the tags of a table whose clones do not exist any more.

    Args:
        catalog: the catalog.
        metadata: of the table.

    Raises:
        CatalogError: a table of the catalog cannot be read, so it may be a clone.
    """
    before = datetime.now(timezone.utc) - YOUNGEST
    tags = [tag for tag in clone_tags(metadata) if tag.created < before]
    if not tags:
        return []
    tables = _table_uuids(catalog)
    return [str(tag) for tag in tags if tag.table_uuid not in tables]


def without_tags(metadata: Metadata, tags: Iterable[str]) -> dict[str, Any]:
    """Return metadata of a table without some of its tags.

    Args:
        metadata: of the table.
        tags: the names of the tags.
    """
    refs = {name: ref for name, ref in (metadata.get("refs") or {}).items() if name not in tags}
    return {**metadata, "refs": refs}


def _table_uuids(catalog: IcebergCatalog) -> set[str]:
    uuids = set()
    for namespace in catalog.namespaces():
        for identifier, kind in catalog.relations(namespace):
            if kind != "table":
                continue
            try:
                other = catalog.metadata((namespace, identifier))
            except (CatalogError, OSError, ValueError, KeyError) as error:
                raise CatalogError(
                    f"{namespace}.{identifier} cannot be read, and may be a clone that needs old "
                    f"snapshots: {error}"
                ) from error
            if other is not None:
                uuids.add(other["table-uuid"])
    return uuids
