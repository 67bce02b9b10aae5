"""What a killed run leaves when it replaces a table by a view, or a view by a table.

No catalog can do that in one step: the new relation is built beside the old one, which is dropped
before the new one gets its name. A run that is killed leaves the new one, and maybe no old one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from dbt.adapters.iceberg_stream.builds.names import is_replacement, replaced_name
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.errors import CommitConflict
from dbt.adapters.iceberg_stream.catalog.views import last_change_ms
from dbt.adapters.iceberg_stream.tables.drop import drop_table

# A younger one may belong to a run that still builds it.
MIN_AGE = timedelta(hours=1)


@dataclass(frozen=True)
class Leftover:
    """A relation that a killed run has left.

    Attributes:
        name: its name.
        kind: `table` or `view`.
        replaced: name of the relation that it was to replace.
        is_missing: whether it replaces a relation that does not exist any more, so that it is the
            only version.
        last_change: when it was last changed (UTC).
    """

    name: Name
    kind: str
    replaced: Name
    is_missing: bool
    last_change: datetime


def list_leftovers(catalog: IcebergCatalog, namespaces: Iterable[str]) -> list[Leftover]:
    """List what killed runs have left, by name.

    Args:
        catalog: the catalog.
        namespaces: where to look.

    Raises:
        CatalogError: the catalog refuses.
    """
    leftovers = []
    for namespace in namespaces:
        relations = dict(catalog.relations(namespace))
        for identifier, kind in sorted(relations.items()):
            if (replaced := replaced_name(identifier)) is None:
                continue
            name = namespace, identifier
            if (metadata := catalog.metadata(name)) is None:
                continue
            change = datetime.fromtimestamp(last_change_ms(metadata) / 1000, tz=timezone.utc)
            if datetime.now(timezone.utc) - change > MIN_AGE:
                missing = is_replacement(identifier) and replaced not in relations
                leftovers.append(Leftover(name, kind, (namespace, replaced), missing, change))
    return leftovers


def clear_leftovers(
    catalog: IcebergCatalog, name: Name, catalogs: Catalogs | None = None
) -> list[Leftover]:
    """Finish what killed runs began: give a leftover its name if that is free, or drop it.

    Args:
        catalog: the catalog.
        name: of the relation that was to be replaced.
        catalogs: those of the profile, whose other tables may reference the files; only `catalog`
            by default.

    Returns:
        The leftovers that there were.

    Raises:
        CatalogError: the catalog refuses.
    """
    leftovers = [found for found in list_leftovers(catalog, [name[0]]) if found.replaced == name]
    by_age = sorted(leftovers, key=lambda found: found.last_change, reverse=True)
    for place, leftover in enumerate(by_age):
        if place or not leftover.is_missing or not _rename(catalog, leftover):
            drop_table(catalog, leftover.name, catalogs)
    return by_age


def drop_unfinished(catalog: IcebergCatalog, name: Name, catalogs: Catalogs | None = None) -> bool:
    """Drop the new version of a relation after a failure, unless it is the only version.

    Args:
        catalog: the catalog.
        name: of the new version.
        catalogs: as for `clear_leftovers`.

    Returns:
        Whether it was dropped.

    Raises:
        CatalogError: the catalog refuses.
    """
    replaced = replaced_name(name[1]) or name[1]
    # The old version may have been dropped without an answer.
    if is_replacement(name[1]) and catalog.metadata((name[0], replaced)) is None:
        return False
    drop_table(catalog, name, catalogs)
    return True


def _rename(catalog: IcebergCatalog, leftover: Leftover) -> bool:
    """Give a leftover its name; return False if another relation has it now."""
    table = catalog.load(leftover.name)
    try:
        if table is not None:
            catalog.register(leftover.replaced, table.location)
        elif (view := catalog.metadata(leftover.name)) is not None:
            if catalog.metadata(leftover.replaced) is not None:
                return False
            catalog.put_view(leftover.replaced, view)
    except CommitConflict:
        return False
    catalog.unregister(leftover.name)
    return True
