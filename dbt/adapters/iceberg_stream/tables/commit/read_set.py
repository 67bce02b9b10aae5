"""What a statement read, so that it is run again only if it would read the same.

Article on the write contract, "Conflict Resolution": a retry that runs the query anew may give
other rows when its sources have changed in the meantime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, current_snapshot
from dbt.adapters.iceberg_stream.sql.queries import NameParts, Reads, reads

Views = Mapping[str, Reads | None]


# What tells a table or view from what it was, or was made anew to be.
Version = tuple[Any, ...]


@dataclass(frozen=True)
class Pins:
    """What a statement reads: versions of tables and views, and the texts of the views."""

    versions: Mapping[Name, Version]
    definitions: tuple[str, ...] = ()

    def changed(self, catalog: IcebergCatalog) -> Name | None:
        """A table that is not what it was; None if all are."""
        for name, version in self.versions.items():
            metadata = catalog.metadata(name)
            # What has changed but snapshot and schema makes no other rows.
            if metadata is None or _version(metadata)[:3] != version[:3]:
                return name
        return None


def pin(catalog: IcebergCatalog, read: Reads | None, views: Views) -> Pins | None:
    """The tables behind what is read, views looked through, as they are now.

    None if that cannot be told: a relation is of another catalog, a file, or not understood.
    """
    if read is None:
        return None
    found: dict[Name, Version] = {}
    definitions: list[str] = []
    waiting: list[NameParts] = list(read.relations)
    seen: set[NameParts] = set()
    while waiting:
        if (parts := waiting.pop()) in seen:
            continue
        seen.add(parts)
        if len(parts) == 1:
            behind = views.get(parts[0].lower())
        else:
            behind = _note(catalog, parts, found, definitions)
        if behind is None:
            return None
        waiting += behind.relations
    return Pins(found, tuple(sorted(definitions)))


def _note(
    catalog: IcebergCatalog, parts: NameParts, found: dict[Name, Version], definitions: list[str]
) -> Reads | None:
    """Note a relation's version, and give what it reads in its turn; None if it is not known."""
    name = _name(catalog, parts)
    try:
        metadata = None if name is None else catalog.metadata(name)
    except CatalogError:
        return None
    if name is None or metadata is None:
        return None
    found[name] = _version(metadata)
    if "versions" not in metadata:
        return Reads(frozenset())
    definition = _definition(catalog, metadata)
    if definition is None or (read := reads(definition)) is None:
        return None
    definitions.append(definition)
    namespace = _namespace(metadata, name)
    return Reads(frozenset(p if len(p) > 1 else (namespace, *p) for p in read.relations))


def _name(catalog: IcebergCatalog, parts: NameParts) -> Name | None:
    if len(parts) == 3 and parts[0].lower() == catalog.name.lower():
        return parts[1], parts[2]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _namespace(view: Metadata, name: Name) -> str:
    """Where a view looks for relations that it names without a namespace."""
    given = _view_version(view).get("default-namespace")
    return ".".join(given) if given else name[0]


def _view_version(view: Metadata) -> Metadata:
    versions: list[Metadata] = view["versions"]
    return next(v for v in versions if v["version-id"] == view["current-version-id"])


def _version(metadata: Metadata) -> Version:
    """A table by its snapshot, schema and last change, a view by its current version."""
    if "versions" in metadata:
        return metadata["view-uuid"], metadata["current-version-id"]
    snapshot = current_snapshot(metadata)
    return (
        metadata["table-uuid"],
        snapshot and snapshot.snapshot_id,
        metadata["current-schema-id"],
        # A table that was rolled back has the snapshot that it had before.
        metadata["last-updated-ms"],
    )


def _definition(catalog: IcebergCatalog, view: Metadata) -> str | None:
    """The text of a view's current version (view spec, "Representations").

    None if its names are those of another catalog.
    """
    version = _view_version(view)
    if (version.get("default-catalog") or catalog.name).lower() != catalog.name.lower():
        return None
    representations = version["representations"]
    return next((r["sql"] for r in representations if r.get("dialect") == "spark"), None)
