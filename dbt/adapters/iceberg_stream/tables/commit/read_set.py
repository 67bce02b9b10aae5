"""The read set of a statement: it is retried only while its sources have not changed.

Article on the write contract, "Conflict Resolution": a retry that runs the query again may return
other rows if its sources have changed.
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


# Identifies a version of a table or view, also after it was dropped and created again.
Version = tuple[Any, ...]


@dataclass(frozen=True)
class ReadSet:
    """Versions of the tables and views that a statement reads.

    Attributes:
        versions: the versions by name.
        definitions: the SQL texts of the views.
    """

    versions: Mapping[Name, Version]
    definitions: tuple[str, ...] = ()

    def changed(self, catalog: IcebergCatalog) -> Name | None:
        """Return a table or view that has changed; None if none has.

        Args:
            catalog: the catalog of the tables.
        """
        for name, version in self.versions.items():
            metadata = catalog.metadata(name)
            # Only a new snapshot or schema changes the rows.
            if metadata is None or _version(metadata)[:3] != version[:3]:
                return name
        return None


def capture_read_set(catalog: IcebergCatalog, read: Reads | None, views: Views) -> ReadSet | None:
    """Capture the current versions of the tables and views that a statement reads.

    Args:
        catalog: the catalog of the tables.
        read: relations that the statement reads; None if unknown.
        views: relations that temporary views read, by the view's name in lower case.

    Returns:
        The read set, with the tables behind views; None if it is unknown: a relation belongs to
        another catalog, is a file, or is not understood.
    """
    if read is None:
        return None
    versions: dict[Name, Version] = {}
    definitions: list[str] = []
    pending: list[NameParts] = list(read.relations)
    visited: set[NameParts] = set()
    while pending:
        if (parts := pending.pop()) in visited:
            continue
        visited.add(parts)
        if len(parts) == 1:
            reads_of_relation = views.get(parts[0].lower())
        else:
            reads_of_relation = _add_relation(catalog, parts, versions, definitions)
        if reads_of_relation is None:
            return None
        pending += reads_of_relation.relations
    return ReadSet(versions, tuple(sorted(definitions)))


def _add_relation(
    catalog: IcebergCatalog, parts: NameParts, versions: dict[Name, Version], definitions: list[str]
) -> Reads | None:
    """Add a relation's version, and return what the relation itself reads; None if unknown."""
    name = _name(catalog, parts)
    try:
        metadata = None if name is None else catalog.metadata(name)
    except CatalogError:
        return None
    if name is None or metadata is None:
        return None
    versions[name] = _version(metadata)
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
    """Return the namespace of relations that a view references without one."""
    default = _view_version(view).get("default-namespace")
    return ".".join(default) if default else name[0]


def _view_version(view: Metadata) -> Metadata:
    versions: list[Metadata] = view["versions"]
    return next(v for v in versions if v["version-id"] == view["current-version-id"])


def _version(metadata: Metadata) -> Version:
    """Return a table's snapshot, schema and time of the last change, or a view's version."""
    if "versions" in metadata:
        return metadata["view-uuid"], metadata["current-version-id"]
    snapshot = current_snapshot(metadata)
    return (
        metadata["table-uuid"],
        snapshot and snapshot.snapshot_id,
        metadata["current-schema-id"],
        # A rollback makes an earlier snapshot current again.
        metadata["last-updated-ms"],
    )


def _definition(catalog: IcebergCatalog, view: Metadata) -> str | None:
    """Return the SQL text of a view's current version (view spec, "Representations").

    None if the view's default catalog is another one.
    """
    version = _view_version(view)
    if (version.get("default-catalog") or catalog.name).lower() != catalog.name.lower():
        return None
    representations = version["representations"]
    return next((r["sql"] for r in representations if r.get("dialect") == "spark"), None)
