"""What a statement read, so that it is run again only if it would read the same.

Article on the write contract, "Conflict Resolution": a retry that runs the query anew may give
other rows when its sources have changed in the meantime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.lake import Lake, Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, current_snapshot
from dbt.adapters.iceberg_stream.engines.queries import NameParts, Reads, reads

Views = Mapping[str, Reads | None]


@dataclass(frozen=True)
class Pins:
    """Snapshots of the tables that a statement reads; None for a table without any."""

    snapshots: Mapping[Name, int | None]

    def changed(self, lake: Lake) -> Name | None:
        """A table that is not what it was; None if all are."""
        for name, snapshot_id in self.snapshots.items():
            if _snapshot(lake.metadata(name)) != snapshot_id:
                return name
        return None


def pin(lake: Lake, read: Reads | None, views: Views) -> Pins | None:
    """The tables behind what is read, views looked through, as they are now.

    None if that cannot be told: a relation is of another catalog, a file, or not understood.
    """
    found: dict[Name, int | None] = {}
    waiting: list[tuple[NameParts, str | None]] = [(n, None) for n in _relations(read)]
    if read is None:
        return None
    seen: set[NameParts] = set()
    while waiting:
        parts, namespace = waiting.pop()
        if (parts := _qualified(parts, namespace)) in seen:
            continue
        seen.add(parts)
        behind = _behind(lake, parts, views, found)
        if behind is None:
            return None
        waiting += behind
    return Pins(found)


def _behind(
    lake: Lake, parts: NameParts, views: Views, found: dict[Name, int | None]
) -> list[tuple[NameParts, str | None]] | None:
    """What a relation reads in its turn; a table is noted instead. None if it is not known."""
    if len(parts) == 1:
        temporary = views.get(parts[0].lower())
        return None if temporary is None else [(n, None) for n in temporary.relations]
    name = _name(lake, parts)
    try:
        metadata = None if name is None else lake.metadata(name)
    except CatalogError:
        return None
    if name is None or metadata is None:
        return None
    if "versions" not in metadata:
        found[name] = _snapshot(metadata)
        return []
    found[name] = _snapshot(metadata)
    definition = _definition(metadata)
    read = reads(definition) if definition else None
    return None if read is None else [(n, _namespace(metadata, name)) for n in read.relations]


def _relations(read: Reads | None) -> frozenset[NameParts]:
    return frozenset() if read is None else read.relations


def _qualified(parts: NameParts, namespace: str | None) -> NameParts:
    return (namespace, *parts) if namespace and len(parts) == 1 else parts


def _name(lake: Lake, parts: NameParts) -> Name | None:
    if len(parts) == 3 and parts[0].lower() == lake.name.lower():
        return parts[1], parts[2]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _namespace(view: Metadata, name: Name) -> str:
    """Where a view looks for relations that it names without a namespace."""
    given = _version(view).get("default-namespace")
    return ".".join(given) if given else name[0]


def _version(view: Metadata) -> Metadata:
    versions: list[Metadata] = view["versions"]
    return next(v for v in versions if v["version-id"] == view["current-version-id"])


def _snapshot(metadata: Metadata | None) -> int | None:
    """A table's current snapshot, a view's current version."""
    if metadata is not None and "versions" in metadata:
        return int(metadata["current-version-id"])
    snapshot = None if metadata is None else current_snapshot(metadata)
    return None if snapshot is None else snapshot.snapshot_id


def _definition(view: Metadata) -> str | None:
    """The text of a view's current version (view spec, "Representations")."""
    representations = _version(view)["representations"]
    return next((r["sql"] for r in representations if r.get("type") == "sql"), None)
