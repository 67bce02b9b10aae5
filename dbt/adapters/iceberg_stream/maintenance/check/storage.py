"""Checks that the files of a table exist, with the sizes in its metadata."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow.fs as fs

from dbt.adapters.iceberg_stream.catalog.locations import split_location
from dbt.adapters.iceberg_stream.catalog.storage import arrow_io, require_location
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.manifests import Listed, Track

CHUNK = 500


def check_files(table: LoadedTable, listed: Listed, track: Track[Any]) -> Iterator[Finding]:
    """Check that each listed file exists and has the size in the metadata, if known.

    Args:
        table: the table.
        listed: the files; see `check_manifests`.
        track: shows progress.
    """
    refs = {ref["snapshot-id"]: name for name, ref in (table.metadata.get("refs") or {}).items()}
    by_storage: dict[tuple[str, str], list[str]] = defaultdict(list)
    for location in listed.sizes:
        scheme, netloc, _ = split_location(location)
        by_storage[scheme, netloc].append(location)
    io = arrow_io(table.io)
    for (scheme, netloc), locations in by_storage.items():
        filesystem = io.fs_by_scheme(scheme, netloc)
        chunks = [locations[at : at + CHUNK] for at in range(0, len(locations), CHUNK)]
        for chunk in track(chunks, "Files"):
            paths = [require_location(table.io.properties, location) for location in chunk]
            for location, info in zip(chunk, filesystem.get_file_info(paths), strict=True):
                snapshot = listed.used_by[location]
                user = (
                    f"{refs[snapshot]} (snapshot {snapshot})"
                    if snapshot in refs
                    else (f"the older snapshot {snapshot}")
                )
                if info.type == fs.FileType.NotFound:
                    yield Finding(
                        "missing-file", location, f"The file is missing; {user} needs it."
                    )
                elif listed.sizes[location] not in (None, info.size):
                    yield Finding(
                        "file-size",
                        location,
                        f"It has {info.size} bytes; metadata say {listed.sizes[location]}.",
                    )


def check_logged_files(table: LoadedTable) -> Iterator[Finding]:
    """Check that older metadata files and statistics exist.

    Args:
        table: the table.
    """
    locations = [entry["metadata-file"] for entry in table.metadata.get("metadata-log") or []]
    for kind in ("statistics", "partition-statistics"):
        locations += [item["statistics-path"] for item in table.metadata.get(kind) or []]
    for location in locations:
        if not table.io.new_input(location).exists():
            yield Finding("metadata-log", location, "The file is missing.")
