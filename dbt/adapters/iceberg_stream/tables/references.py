"""Everything that the tables and views of catalogs reference: files that nobody may remove."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from cachetools import LRUCache
from pyiceberg.io import FileIO

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.locations import (
    comparable,
    comparable_folder,
    comparables,
    forget_links,
    is_within,
)
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DAMAGED,
    DELETED,
    iter_manifests,
    read_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX

# Properties with folders for new files.
FOLDERS = (
    "write.data.path",
    "write.folder-storage.path",
    "write.metadata.path",
    "write.object-storage.path",
)
# What Iceberg's writers leave behind. Other files in the folder are none of a table's, such as the
# database of a catalog whose warehouse is the folder.
METADATA = (".metadata.json", ".metadata.json.gz")
KINDS = (".parquet", ".orc", ".avro", ".puffin", ".stats", *METADATA)
# References outside of their table's folders, which few tables have, by the table's version. They
# are compared again each time: symbolic links change.
CACHED_LOCATIONS = 1_000_000
Version = tuple[str, ...]
_elsewhere: LRUCache[Version, list[str]] = LRUCache(CACHED_LOCATIONS, lambda value: len(value) + 1)
_elsewhere_lock = threading.Lock()
_LOCATION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/.*|/.*", re.DOTALL)
# Relations that are read at the same time.
PARALLEL = 8
# How often all relations are read while some of them change; at least twice.
PASSES = 5
# What reading metadata raises: refusals, errors of the storage, damaged files.
UNREADABLE = (CatalogError, OSError, *DAMAGED)


def references(table: LoadedTable) -> Iterator[str]:
    """Iterate over the locations of all files that a table's metadata may reference.

    Args:
        table: the table, with all snapshots.

    Raises:
        OSError: the storage cannot be read.
    """
    yield from _locations((table.metadata.get("properties") or {}).values())
    yield from own_references(table)


def own_references(table: LoadedTable) -> Iterator[str]:
    """Iterate over the locations of the files of a table: `references` without those of others.

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
    properties = metadata.get("properties") or {}
    # A property may name any file, such as a document about the table, or another user's.
    home = comparable_folder(metadata["location"])
    named = _locations(value for name, value in properties.items() if name.startswith(PREFIX))
    yield from (location for location in named if is_within(comparable(location), home))
    yield from _of_snapshots(table.io, metadata, set())


def _locations(values: Iterable[str]) -> Iterator[str]:
    """Yield the locations in properties: of a key index, of deleted keys, of a staged build."""
    for value in values:
        if _LOCATION.fullmatch(value):
            yield value
        elif value.startswith(("[", "{")):
            with suppress(ValueError):
                yield from _in_json(json.loads(value))


def _in_json(value: Any) -> Iterator[str]:
    if isinstance(value, str) and _LOCATION.fullmatch(value):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _in_json(item)


def _of_snapshots(io: FileIO, metadata: Metadata, visited: set[str]) -> Iterator[str]:
    for snapshot in metadata.get("snapshots") or []:
        if "manifest-list" not in snapshot:
            raise CatalogError(
                f"Snapshot {snapshot['snapshot-id']} lists its manifests in the metadata, as old "
                "writers of format version 1 did, so its files are unknown. Expire it."
            )
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


def snapshot_files(table: LoadedTable, ids: Collection[int]) -> Iterator[str]:
    """Iterate over the locations of files that only some snapshots of a table may have.

    Files that other snapshots have, too, may be among them. Those of snapshots of format version 1
    that list their manifests in the metadata are not.

    Args:
        table: the table, with all snapshots.
        ids: of the snapshots.

    Raises:
        OSError: the storage cannot be read.
    """
    snapshots = [s for s in table.metadata.get("snapshots") or [] if "manifest-list" in s]
    visited = {
        manifest.manifest_path
        for snapshot in snapshots
        if snapshot["snapshot-id"] not in ids
        for manifest in read_manifest_list(table.io, snapshot["manifest-list"])
    }
    removed = {"snapshots": [s for s in snapshots if s["snapshot-id"] in ids]}
    yield from _of_snapshots(table.io, removed, visited)
    for kind in ("statistics", "partition-statistics"):
        for statistics in table.metadata.get(kind) or []:
            if statistics["snapshot-id"] in ids:
                yield statistics["statistics-path"]


def own_files(table: LoadedTable, locations: Iterable[str]) -> list[str]:
    """Return those of some files that are in the folders of a table, each once.

    Args:
        table: the table.
        locations: of the files.
    """
    own = [comparable_folder(folder) for folder in folders(table.metadata)]
    return [
        file
        for file in dict.fromkeys(locations)
        if any(is_within(comparable(file), folder) for folder in own)
    ]


def version_of(metadata: Metadata) -> Version:
    """Return what differs between versions of a table, whatever snapshots are loaded.

    It is empty for all views, which have no files. Properties are left out, because some servers
    add their own when a table is loaded; a change of them changes the time.

    Args:
        metadata: of the table or view; empty for neither.
    """
    keys = ("table-uuid", "location", "last-updated-ms", "last-sequence-number", "refs")
    values = [metadata.get(key) for key in keys] if "last-updated-ms" in metadata else []
    return tuple(json.dumps(value, sort_keys=True) for value in values)


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
    owners: Collection[LoadedTable] = (),
) -> list[str]:
    """Return those of some files that no table and no view references.

    Args:
        files: locations.
        catalogs: whose tables and views may reference them.
        owners: tables of the first catalog in whose folders they are. The folders of others within
            those folders are theirs with all files, because a write that still runs is not
            referenced yet.

    Raises:
        CatalogError: a namespace cannot be listed, or a relation cannot be read, so it may
            reference any file.
    """
    forget_links()
    left = {comparable(file): file for file in files}
    read: dict[tuple[str, Name], Version] = {}
    # A file may go from one table to another while they are read, as when a build is published,
    # and a table may get another name. So they are listed and read again until none is missing.
    missing: list[Name] = []
    for attempt in range(PASSES):
        if attempt > 1 and not missing:
            break
        missing.clear()
        for number, catalog in enumerate(catalogs):
            relations = _list(catalog) if left else []
            own = {table.name for table in owners} if number == 0 else set()
            with ThreadPoolExecutor(PARALLEL) as pool:
                subtract = partial(_subtract, left, catalog, read, owners, own)
                found = pool.map(subtract, relations)
                pairs = zip(relations, found, strict=True)
                missing += [name for (name, _), exists in pairs if not exists]
    if missing:
        raise CatalogError(
            f"{'.'.join(missing[0])} was renamed or dropped while the tables were read, so their "
            "files are not known for certain. Nothing was removed. Run the command again."
        )
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
    read: dict[tuple[str, Name], Version],
    owners: Collection[LoadedTable],
    own: Collection[Name],
    relation: tuple[Name, str],
) -> bool:
    """Remove what a relation references from a dictionary of locations; False if it has gone."""
    if not left:
        return True
    name, kind = relation
    key = catalog.name, name
    try:
        table = catalog.load(name) if kind == "table" else None
        metadata = catalog.metadata(name) if table is None else table.metadata
        if metadata is None and (name, kind) in catalog.all_relations():
            raise CatalogError("The catalog lists it, but does not know it.")
        if metadata is None:
            return False
        version = () if table is None else (table.location, *version_of(metadata))
        if table is not None and read.get(key) == version:
            return True
        if name not in own:
            for owner in owners:
                _subtract_folders(left, metadata, owner.metadata)
        for spelling in () if table is None else _spellings(table, left):
            left.pop(spelling, None)
        read[key] = version
        return True
    except UNREADABLE as error:
        raise CatalogError(
            f"{'.'.join(name)} cannot be read, and may have files that would be removed. Nothing "
            f"was removed. Run `iceberg-stream check {'.'.join(name)}`; if it has lost its files, "
            f"drop it from the catalog. {reason(error)}"
        ) from error


def _spellings(table: LoadedTable, files: Collection[str]) -> Iterable[str]:
    """Return the spellings of a table's references that can be among some files."""
    places = folders(table.metadata)
    own = {comparable_folder(folder) for folder in places}
    if any(is_within(file, folder) for folder in own for file in files):
        return (spelling for location in references(table) for spelling in comparables(location))
    # Whoever removes many files asks for each table again. Files may get the name of older ones.
    version = (table.location, *version_of(table.metadata))
    with _elsewhere_lock:
        elsewhere = _elsewhere.get(version)
    if elsewhere is None:
        prefixes = tuple(f"{folder.rstrip('/')}/" for folder in places)
        elsewhere = [
            location
            for location in references(table)
            if not location.startswith(prefixes)
            or not all(any(is_within(s, f) for f in own) for s in comparables(location))
        ]
        if len(elsewhere) < CACHED_LOCATIONS:
            with _elsewhere_lock:
                _elsewhere[version] = elsewhere
    return (spelling for location in elsewhere for spelling in comparables(location))


def _subtract_folders(left: dict[str, str], metadata: Metadata, owner: Metadata) -> None:
    home = comparable_folder(owner["location"])
    own = {comparable_folder(folder) for folder in folders(owner)}
    for folder in folders(metadata):
        # A copy or a staged version has the same folders.
        if (inner := comparable_folder(folder)) not in own and is_within(inner, home):
            # A view has no other files, and a table that it replaced may have its folder.
            is_view = "versions" in metadata
            # Other threads remove some, too.
            for location in [location for location in list(left) if is_within(location, inner)]:
                if not is_view or location.endswith(METADATA):
                    left.pop(location, None)
