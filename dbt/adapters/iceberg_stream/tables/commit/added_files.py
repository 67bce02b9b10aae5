"""The files that a table has and another table, whose files it began with, does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    iter_manifests,
    read_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget


def metadata_files(table: LoadedTable) -> list[str]:
    """List the metadata files of a table.

    Args:
        table: the table.
    """
    log = [entry["metadata-file"] for entry in table.metadata.get("metadata-log") or []]
    return [*log, table.location]


def added_files(table: LoadedTable, base: Collection[int]) -> tuple[list[str], list[str]]:
    """List the files that snapshots of a table have added.

    Args:
        table: the table, with all snapshots.
        base: ids of the snapshots that the table began with.

    Returns:
        Manifest lists and manifests; data and delete files in the table's folder. Files from
        elsewhere, such as those of `add_files`, belong to somebody else.

    Raises:
        OSError: the storage cannot be read.
    """
    snapshots = table.metadata.get("snapshots") or []
    new = {s["snapshot-id"]: s for s in snapshots if s["snapshot-id"] not in base}
    manifests: dict[str, None] = {}
    data: dict[str, None] = {}
    for snapshot in new.values():
        manifests[snapshot["manifest-list"]] = None
        for path, files in _added_by(table, snapshot, set(new)):
            manifests[path] = None
            data.update(dict.fromkeys(files))
    return list(manifests), _in_folder(table, list(data))


def _in_folder(table: LoadedTable, files: list[str]) -> list[str]:
    if not files:
        return []
    target = WriteTarget.of(table.metadata, table.io)
    folder = target.path_of(table.metadata["location"]).rstrip("/") + "/"
    return [file for file in files if target.path_of(file).startswith(folder)]


def _added_by(
    table: LoadedTable, snapshot: Mapping[str, Any], ids: set[int]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the manifests that snapshots have written, and the files that these have added."""
    manifests = read_manifest_list(table.io, snapshot["manifest-list"])
    own = [manifest for manifest in manifests if manifest.added_snapshot_id in ids]
    for manifest, entries in iter_manifests(table.io, own):
        yield (
            manifest.manifest_path,
            [
                entry.data_file.file_path
                for entry in entries
                # Entries of deleted files have the deleting snapshot's id.
                if entry.status == ADDED and entry.snapshot_id in (None, *ids)
            ],
        )
