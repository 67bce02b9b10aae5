"""Everything that the tables and views of catalogs reference: files that nobody may remove."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyiceberg.io import FileIO

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.locations import comparable, comparables, is_within
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DELETED,
    iter_manifests,
    read_manifest_list,
)

# Properties with folders for new files.
FOLDERS = (
    "write.data.path",
    "write.folder-storage.path",
    "write.metadata.path",
    "write.object-storage.path",
)
_LOCATION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/.*|/.*", re.DOTALL)
# What reading metadata raises: refusals, errors of the storage, damaged files.
_UNREADABLE = (
    *(CatalogError, OSError, ValueError, KeyError),
    *(IndexError, TypeError, EOFError, AssertionError),
)


def references(table: LoadedTable) -> Iterator[str]:
    """Iterate over the locations of all files that a table's metadata reference.

    Args:
        table: the table, with all snapshots.

    Raises:
        OSError: the storage cannot be read.
    """
    metadata = table.metadata
    yield table.location
    for entry in metadata.get("metadata-log") or []:
        yield entry["metadata-file"]
    for kind in ("statistics", "partition-statistics"):
        for statistics in metadata.get(kind) or []:
            yield statistics["statistics-path"]
    for value in (metadata.get("properties") or {}).values():
        yield from _locations(value)
    yield from _of_snapshots(table.io, metadata)


def _locations(value: str) -> Iterator[str]:
    """Yield the locations in a property: of a key index, of deleted keys, of a staged build."""
    if _LOCATION.fullmatch(value):
        yield value
    elif value.startswith(("[", "{")):
        try:
            yield from _in_json(json.loads(value))
        except ValueError:
            return


def _in_json(value: Any) -> Iterator[str]:
    if isinstance(value, str) and _LOCATION.fullmatch(value):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _in_json(item)


def _of_snapshots(io: FileIO, metadata: Metadata) -> Iterator[str]:
    visited: set[str] = set()
    for snapshot in metadata.get("snapshots") or []:
        yield snapshot["manifest-list"]
        manifests = [
            manifest
            for manifest in read_manifest_list(io, snapshot["manifest-list"])
            if manifest.manifest_path not in visited
        ]
        visited.update(manifest.manifest_path for manifest in manifests)
        for manifest, entries in iter_manifests(io, manifests):
            yield manifest.manifest_path
            # The file of a deleted entry counts only if another snapshot still has it.
            yield from (e.data_file.file_path for e in entries if e.status != DELETED)


def folders(metadata: Metadata) -> list[str]:
    """Return the folders to which a table or view writes its files.

    Args:
        metadata: of the table or view.
    """
    properties = metadata.get("properties") or {}
    own = metadata["location"]
    if "versions" in metadata:
        own = f"{own}/metadata"
    return [own, *(properties[name] for name in FOLDERS if name in properties)]


def without_referenced(
    files: Iterable[str],
    catalogs: Sequence[IcebergCatalog],
    owner: Name,
    home: str | None = None,
    dropped: bool = False,
) -> list[str]:
    """Return those of some files that no table and no view references.

    Args:
        files: locations.
        catalogs: where their tables and views are looked for; `owner` is in the first one.
        owner: namespace and identifier of the table that may have written them.
        home: its folder. Folders of others within it are theirs with all files, because a write
            that still runs is not referenced yet.
        dropped: whether the references of `owner` do not count.

    Raises:
        CatalogError: a namespace cannot be listed, or a relation cannot be read, so it may
            reference any file.
    """
    left = {comparable(file): file for file in files}
    read: dict[tuple[str, Name], str] = {}
    # A file may go from one table to another while they are read, as when a build is published.
    # So those that have changed meanwhile are read again.
    for _ in range(2):
        for number, catalog in enumerate(catalogs):
            for name, kind in _list(catalog) if left else []:
                is_owner = number == 0 and name == owner
                if not (is_owner and dropped):
                    _subtract(left, catalog, name, kind, read, None if is_owner else home)
    return list(left.values())


def _list(catalog: IcebergCatalog) -> list[tuple[Name, str]]:
    try:
        return catalog.all_relations()
    except (CatalogError, OSError) as error:
        raise CatalogError(
            f"The tables of the catalog `{catalog.name}` cannot be listed, and may have files "
            f"that would be removed. Nothing was removed. {reason(error)}"
        ) from error


def _subtract(
    left: dict[str, str],
    catalog: IcebergCatalog,
    name: Name,
    kind: str,
    read: dict[tuple[str, Name], str],
    home: str | None,
) -> None:
    """Remove what a relation references from a dictionary of locations."""
    key = catalog.name, name
    try:
        table = catalog.load(name) if kind == "table" else None
        metadata = catalog.metadata(name) if table is None else table.metadata
        if metadata is None and (name, kind) in catalog.all_relations():
            raise CatalogError("The catalog lists it, but does not know it.")
        if metadata is None or (table is not None and read.get(key) == table.location):
            return
        if home is not None:
            _subtract_folders(left, metadata, comparable(home))
        for location in () if table is None else references(table):
            for spelling in comparables(location):
                left.pop(spelling, None)
        read[key] = "" if table is None else table.location
    except _UNREADABLE as error:
        raise CatalogError(
            f"{'.'.join(name)} cannot be read, and may have files that would be removed. Nothing "
            f"was removed. Run `iceberg-stream check {'.'.join(name)}`; if it has lost its files, "
            f"drop it from the catalog. {reason(error)}"
        ) from error


def _subtract_folders(left: dict[str, str], metadata: Metadata, home: str) -> None:
    for folder in folders(metadata):
        if (inner := comparable(folder)) != home and is_within(inner, home):
            for location in [location for location in left if is_within(location, inner)]:
                del left[location]
