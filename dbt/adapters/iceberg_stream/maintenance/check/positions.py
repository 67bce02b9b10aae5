"""Checks position deletes and deletion vectors against their data files."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestEntry
from pyroaring import BitMap64

from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.live_files import (
    DATA,
    FILE_PATH_ID,
    POSITIONS,
    LiveLocations,
    can_be_read,
    is_vector,
    only_file,
    other_partition,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import referenced_file
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import (
    CONTENT_OFFSET,
    read_deletion_vector,
)
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id
from dbt.adapters.iceberg_stream.tables.files.puffin_footer import read_footer

PATH, POS = "file_path", "pos"
IDS = {PATH: FILE_PATH_ID, POS: FILE_PATH_ID - 1}
# What a footer that is damaged, or not one of Puffin, raises.
NO_FOOTER = (ValueError, KeyError, TypeError, AttributeError, struct.error)


def check_positions(
    io: FileIO,
    version: int,
    ref: str,
    entries: Sequence[ManifestEntry],
    deleted: dict[str, BitMap64],
) -> Iterator[Finding]:
    """Read and check the position deletes and deletion vectors of a branch or tag.

    Args:
        io: the table's FileIO.
        version: the table's format version.
        ref: the branch or tag.
        entries: its live entries.
        deleted: is filled with the positions of deleted rows by data file, in format version 3.
    """
    data = {e.data_file.file_path: e for e in entries if e.data_file.content == DATA}
    vectors: dict[str, BitMap64] = {}
    footers: dict[str, dict[Any, Any] | None] = {}
    for entry in entries:
        if is_vector(entry.data_file) and can_be_read(entry.data_file):
            yield from _vector(io, entry.data_file, data, vectors)
            yield from _blob(io, entry.data_file, footers)
    live = LiveLocations(ref, data)
    hidden: dict[str, BitMap64] = defaultdict(BitMap64)
    for entry in entries:
        file = entry.data_file
        if file.content == POSITIONS and file.file_format == FileFormat.PARQUET:
            yield from _parquet(io, entry, data, live, hidden if version > 2 else None)
    deleted |= vectors
    for path, positions in hidden.items():
        if path not in vectors:
            deleted[path] = positions
        elif ignored := len(positions - vectors[path]):
            yield Finding(
                "hidden-deletes",
                path,
                f"{ignored} rows are deleted by position delete files, but not by the file's "
                f"deletion vector in {ref}.",
            )


def _vector(
    io: FileIO, file: DataFile, data: dict[str, ManifestEntry], vectors: dict[str, BitMap64]
) -> Iterator[Finding]:
    try:
        positions = BitMap64(read_deletion_vector(io, file))
    except FileNotFoundError:
        return  # reported as missing
    except (OSError, ValueError) as error:
        yield Finding("unreadable-file", file.file_path, str(error))
        return
    path = str(referenced_file(file))
    vectors[path] = positions
    if len(positions) != file.record_count:
        yield Finding(
            "vector-count",
            file.file_path,
            f"The vector of {path} has {len(positions)} positions; its manifest says "
            f"{file.record_count}.",
        )
    if path in data and positions and positions.max() >= data[path].data_file.record_count:
        yield _past_end(file.file_path, path, positions.max(), data[path])


def _blob(
    io: FileIO, file: DataFile, footers: dict[str, dict[Any, Any] | None]
) -> Iterator[Finding]:
    """Check that the footer of a vector's file names the data file as the manifest does."""
    where, offset, path = file.file_path, file[CONTENT_OFFSET], referenced_file(file)
    if where not in footers:
        try:
            blobs = read_footer(io.new_input(where))["blobs"]
            footers[where] = {b["offset"]: b.get("properties", {}) for b in blobs}
        except FileNotFoundError:
            return  # reported as missing
        except (OSError, *NO_FOOTER) as error:
            footers[where] = None
            yield Finding("not-checked", where, f"Its footer cannot be read: {error}")
    if (vectors := footers[where]) is None:
        return
    properties = vectors.get(offset)
    if properties is None:
        yield Finding("vector-blob", where, f"Its footer has no vector of {path} at {offset}.")
    elif (named := properties.get("referenced-data-file", path)) != path:
        yield Finding(
            "vector-blob", where, f"The vector at {offset} is that of {named}, not {path}."
        )


def _past_end(where: str, path: str, position: int, entry: ManifestEntry) -> Finding:
    return Finding(
        "position-past-end",
        where,
        f"It deletes position {position} of {path}, which has {entry.data_file.record_count} rows.",
    )


def _parquet(
    io: FileIO,
    entry: ManifestEntry,
    data: dict[str, ManifestEntry],
    live: LiveLocations,
    hidden: dict[str, BitMap64] | None,
) -> Iterator[Finding]:
    where = entry.data_file.file_path
    try:
        with io.new_input(where).open() as stream:
            rows = pq.read_table(stream, columns=[PATH, POS])
    except FileNotFoundError:
        return  # reported as missing
    except (OSError, pa.ArrowException) as error:
        yield Finding("unreadable-file", where, f"It cannot be read as position deletes: {error}")
        return
    if not pa.types.is_integer(rows[POS].type) or rows[POS].null_count or rows[PATH].null_count:
        yield Finding("unreadable-file", where, "Its positions are no numbers, or are missing.")
        return
    for name, identifier in IDS.items():
        if (found := field_id(rows.schema.field(name))) != identifier:
            yield Finding(
                "field-id", where, f"`{name}` must have the field id {identifier}, not {found}."
            )
    if rows.sort_by([(PATH, "ascending"), (POS, "ascending")]) != rows:
        yield Finding("unsorted-deletes", where, "Its rows are not sorted by file and position.")
    for group in rows.group_by(PATH).aggregate([(POS, "max"), (POS, "min")]).to_pylist():
        path, highest = group[PATH], group[f"{POS}_max"]
        target = data.get(path)
        if target is None:
            if referenced_file(entry.data_file) is None:
                yield live.dangling(where, path)
            continue
        if highest >= target.data_file.record_count or group[f"{POS}_min"] < 0:
            yield _past_end(where, path, highest, target)
        if only_file(entry.data_file) is None:
            yield from other_partition(entry.data_file, target.data_file)
        if hidden is not None and (entry.sequence_number or 0) >= (target.sequence_number or 0):
            is_own = pc.and_(pc.equal(rows[PATH], path), pc.greater_equal(rows[POS], 0))
            own = rows.filter(is_own)[POS]
            hidden[path] |= BitMap64(own.to_pylist())
