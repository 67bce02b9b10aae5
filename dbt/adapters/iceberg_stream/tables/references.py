"""Everything that the tables and views of catalogs reference: files that nobody may remove."""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from cachetools import LRUCache
from pyiceberg.exceptions import ResolveError
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
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX

# Properties with folders for new files.
FOLDERS = (
    "write.data.path",
    "write.folder-storage.path",
    "write.metadata.path",
    "write.object-storage.path",
)
# References outside of their table's folders, which few tables have, by the table's metadata file.
CACHED_LOCATIONS = 1_000_000
_elsewhere: LRUCache[str, list[str]] = LRUCache(CACHED_LOCATIONS, lambda value: len(value) + 1)
_elsewhere_lock = threading.Lock()
_LOCATION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/.*|/.*", re.DOTALL)
# Relations that are read at the same time.
PARALLEL = 8
# How often all relations are read while some of them change; at least twice.
PASSES = 5
# What reading metadata raises: refusals, errors of the storage, damaged files.
UNREADABLE = (
    *(CatalogError, OSError, ValueError, KeyError, ResolveError, zlib.error),
    *(IndexError, TypeError, EOFError, AssertionError),
)


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
    home = comparable(metadata["location"])
    named = _locations(value for name, value in properties.items() if name.startswith(PREFIX))
    yield from (location for location in named if is_within(comparable(location), home))
    yield from _of_snapshots(table.io, metadata)


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


def _of_snapshots(io: FileIO, metadata: Metadata) -> Iterator[str]:
    visited: set[str] = set()
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
    owner: LoadedTable | None = None,
    dropped: Collection[Name] = (),
) -> list[str]:
    """Return those of some files that no table and no view references.

    Args:
        files: locations.
        catalogs: whose tables and views may reference them.
        owner: a table of the first catalog in whose folder they are. The folders of others within
            that folder are theirs with all files, because a write that still runs is not
            referenced yet.
        dropped: tables of the first catalog whose references do not count.

    Raises:
        CatalogError: a namespace cannot be listed, or a relation cannot be read, so it may
            reference any file.
    """
    left = {comparable(file): file for file in files}
    read: dict[tuple[str, Name], str] = {}
    # A file may go from one table to another while they are read, as when a build is published,
    # and a table may get another name. So they are listed and read again until none is missing.
    missing: list[Name] = []
    for attempt in range(PASSES):
        if attempt > 1 and not missing:
            break
        missing.clear()
        for number, catalog in enumerate(catalogs):
            relations = _list(catalog) if left else []
            if number == 0:
                relations = [relation for relation in relations if relation[0] not in dropped]
            is_first = number == 0 and owner is not None
            with ThreadPoolExecutor(PARALLEL) as pool:
                subtract = partial(_subtract, left, catalog, read, owner, is_first)
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
    read: dict[tuple[str, Name], str],
    owner: LoadedTable | None,
    is_first: bool,
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
        if table is not None and read.get(key) == table.location:
            return True
        if owner is not None and not (is_first and name == owner.name):
            _subtract_folders(left, metadata, comparable(owner.metadata["location"]))
        for spelling in () if table is None else _spellings(table, left):
            left.pop(spelling, None)
        read[key] = "" if table is None else table.location
        return True
    except UNREADABLE as error:
        raise CatalogError(
            f"{'.'.join(name)} cannot be read, and may have files that would be removed. Nothing "
            f"was removed. Run `iceberg-stream check {'.'.join(name)}`; if it has lost its files, "
            f"drop it from the catalog. {reason(error)}"
        ) from error


def _spellings(table: LoadedTable, files: Iterable[str]) -> Iterable[str]:
    """Return the spellings of a table's references that can be among some files."""
    own = {comparable(folder) for folder in folders(table.metadata)}
    if any(is_within(file, folder) for folder in own for file in list(files)):
        return (spelling for location in references(table) for spelling in comparables(location))
    # Whoever removes many files asks for each table again.
    with _elsewhere_lock:
        elsewhere = _elsewhere.get(table.location)
    if elsewhere is None:
        spellings = (s for location in references(table) for s in comparables(location))
        elsewhere = [s for s in spellings if not any(is_within(s, folder) for folder in own)]
        if len(elsewhere) < CACHED_LOCATIONS:
            with _elsewhere_lock:
                _elsewhere[table.location] = elsewhere
    return elsewhere


def _subtract_folders(left: dict[str, str], metadata: Metadata, home: str) -> None:
    for folder in folders(metadata):
        if (inner := comparable(folder)) != home and is_within(inner, home):
            # Other threads remove some, too.
            for location in [location for location in list(left) if is_within(location, inner)]:
                left.pop(location, None)
