"""The clones of a catalog that need a table's tags."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.clone_tags import clone_tags
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.clones import used_tags

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
    tags = [str(tag) for tag in clone_tags(metadata) if tag.created < before]
    used = used_tags(tags, catalogs)
    return [tag for tag in tags if tag not in used]


def without_tags(metadata: Metadata, tags: Collection[str]) -> dict[str, Any]:
    """Return metadata of a table without some of its tags.

    Args:
        metadata: of the table.
        tags: the names of the tags.
    """
    refs = {name: ref for name, ref in (metadata.get("refs") or {}).items() if name not in tags}
    return {**metadata, "refs": refs}
