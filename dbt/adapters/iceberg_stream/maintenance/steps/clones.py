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


def unused_tags(catalogs: Iterable[IcebergCatalog], metadata: Metadata) -> list[str]:
    """Return the tags of a table whose clones do not exist any more.

    Args:
        catalogs: where the clones may be.
        metadata: of the table.

    Raises:
        CatalogError: a table cannot be read, so it may be a clone.
    """
    before = datetime.now(timezone.utc) - YOUNGEST
    tags = [tag for tag in clone_tags(metadata) if tag.created < before]
    if not tags:
        return []
    tables = {uuid for catalog in catalogs for uuid in _table_uuids(catalog)}
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
    for name, kind in catalog.all_relations():
        if kind != "table":
            continue
        try:
            other = catalog.metadata(name)
        except (CatalogError, OSError, ValueError, KeyError) as error:
            raise CatalogError(
                f"{'.'.join(name)} cannot be read, and may be a clone that needs old snapshots: "
                f"{error}"
            ) from error
        if other is not None:
            uuids.add(other["table-uuid"])
    return uuids
