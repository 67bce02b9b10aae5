"""Checks position deletes and deletion vectors against their data files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestEntry
from pyroaring import BitMap64

from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.live_files import (
    DATA,
    POSITIONS,
    can_be_read,
    is_vector,
    only_file,
    other_partition,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import referenced_file
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import read_deletion_vector

PATH, POS = "file_path", "pos"


def check_positions(
    io: FileIO, version: int, ref: str, entries: list[ManifestEntry], deleted: dict[str, BitMap64]
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
    for entry in entries:
        if is_vector(entry.data_file) and can_be_read(entry.data_file):
            yield from _vector(io, entry.data_file, data, vectors)
    hidden: dict[str, BitMap64] = defaultdict(BitMap64)
    for entry in entries:
        file = entry.data_file
        if file.content == POSITIONS and file.file_format == FileFormat.PARQUET:
            yield from _parquet(io, ref, entry, data, hidden if version > 2 else None)
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


def _past_end(where: str, path: str, position: int, entry: ManifestEntry) -> Finding:
    return Finding(
        "position-past-end",
        where,
        f"It deletes position {position} of {path}, which has {entry.data_file.record_count} rows.",
    )


def _parquet(
    io: FileIO,
    ref: str,
    entry: ManifestEntry,
    data: dict[str, ManifestEntry],
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
    if rows.sort_by([(PATH, "ascending"), (POS, "ascending")]) != rows:
        yield Finding("unsorted-deletes", where, "Its rows are not sorted by file and position.")
    for group in rows.group_by(PATH).aggregate([(POS, "max"), (POS, "min")]).to_pylist():
        path, highest = group[PATH], group[f"{POS}_max"]
        target = data.get(path)
        if target is None:
            if referenced_file(entry.data_file) is None:
                yield Finding(
                    "dangling-delete", where, f"It deletes rows of {path}, not live in {ref}."
                )
            continue
        if highest >= target.data_file.record_count or group[f"{POS}_min"] < 0:
            yield _past_end(where, path, highest, target)
        if only_file(entry.data_file) is None:
            yield from other_partition(entry.data_file, target.data_file)
        if hidden is not None and (entry.sequence_number or 0) >= (target.sequence_number or 0):
            is_own = pc.and_(pc.equal(rows[PATH], path), pc.greater_equal(rows[POS], 0))
            own = rows.filter(is_own)[POS]
            hidden[path] |= BitMap64(own.to_pylist())
