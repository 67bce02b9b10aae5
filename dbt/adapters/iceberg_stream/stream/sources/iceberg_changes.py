"""What a snapshot changes in a table's rows, as pieces of files (spec, "Scan Planning").

In each data sequence number deletes come before rows: an update is both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    read_manifest_list,
    read_manifests,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import referenced_file
from dbt.adapters.iceberg_stream.tables.files.deletes import read_position_deletes
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import read_deletion_vector

# Within a data sequence number: deletes are 0, a row is behind those of the files before its own.
FIRST_ROW = 1
ROWS_OF_A_FILE = 1 << 40
NO_POSITIONS = pa.array([], pa.int64())
Positions = Mapping[str, pa.Array]
NOTHING: Positions = MappingProxyType({})


@dataclass(frozen=True)
class Piece:
    """Rows of one file that are changes of the same kind.

    Attributes:
        location: of the file.
        size: its bytes; 0 if it is not known.
        deleted: whether the rows, or the keys, are deleted.
        major, minor: the place of the first row's change; deletes of a number share one.
        positions: rows that alone count, if `takes`, or else those that do not.
        only_keys: whether the file says nothing else of deleted rows.
    """

    location: str
    size: int
    deleted: bool
    major: int
    minor: int = 0
    positions: pa.Array = field(default_factory=lambda: NO_POSITIONS)
    takes: bool = False
    only_keys: bool = False


@dataclass(frozen=True)
class SnapshotChanges:
    """All changes of a snapshot.

    Attributes:
        parent_id: the snapshot before it.
        first: its first data sequence number.
        scanned: removed files of which only a scan of the parent can tell which rows were live.
        compared: whether a row that is deleted and there again, all the same, has not changed.
    """

    snapshot_id: int
    parent_id: int
    first: int
    pieces: Sequence[Piece]
    scanned: Sequence[str]
    compared: bool


def plan_changes(
    io: FileIO, snapshot: Mapping[str, Any], parent: Mapping[str, Any]
) -> SnapshotChanges:
    """The changes between a snapshot and its parent.

    Raises:
        StreamError: they cannot be read.
    """
    number = snapshot["snapshot-id"]
    try:
        return _plan(io, snapshot, parent)
    except FileNotFoundError as error:
        raise StreamError(
            f"A file that the snapshot {number} needs is gone: {error}. It was removed before this "
            "stream has read it. Rebuild the table with --full-refresh."
        ) from error
    except (OSError, ValueError) as error:
        raise StreamError(f"The changes of snapshot {number} cannot be read: {error}") from error


def _plan(io: FileIO, snapshot: Mapping[str, Any], parent: Mapping[str, Any]) -> SnapshotChanges:
    number, last = snapshot["snapshot-id"], parent.get("sequence-number", 0)
    if not snapshot.get("sequence-number"):
        raise StreamError(
            f"The snapshot {number} is of format version 1, which has no sequence numbers: its "
            "changes have no order. Upgrade the table to format version 2."
        )
    entries = _own_entries(io, snapshot)
    data = _with_content(entries, DataFileContent.DATA)
    added = [e for e in data if e.status == ADDED]
    gone = {e.data_file.file_path: e for e in data if e.status == DELETED}
    new = [e for e in entries if e.status == ADDED]
    equality = _with_content(new, DataFileContent.EQUALITY_DELETES)
    _require_parquet(e.data_file for e in (*data, *equality))
    dead = _positions(io, _with_content(new, DataFileContent.POSITION_DELETES))
    first = min(
        (_number(e) for e in (*added, *equality) if _number(e) > last),
        default=snapshot["sequence-number"],
    )
    touched = set(dead) - {e.data_file.file_path for e in added} - set(gone)
    before, scanned = _before(io, parent, gone, touched)
    pieces = [
        *_rows(added, dead, first),
        *(_piece(e, True, first, 0, before) for p, e in gone.items() if p not in scanned),
        *_rows_at(touched, dead, before, first),
        *(replace(_piece(e, True, _number(e)), only_keys=True) for e in equality),
    ]
    # An equality delete would still delete the row's key, were the row left out as unchanged.
    compared = bool(gone or touched) and not equality
    return SnapshotChanges(number, parent["snapshot-id"], first, pieces, sorted(scanned), compared)


def _rows(added: Iterable[ManifestEntry], dead: Positions, first: int) -> Iterator[Piece]:
    """Rows of new files but for those that the same commit deletes."""
    for place, entry in enumerate(added):
        minor = FIRST_ROW + place * ROWS_OF_A_FILE
        yield _piece(entry, False, max(_number(entry), first), minor, dead)


def _rows_at(
    paths: Iterable[str], dead: Positions, before: Positions, major: int
) -> Iterator[Piece]:
    """Rows of older files that are deleted now and were not before."""
    for path in sorted(paths):
        earlier = before.get(path, NO_POSITIONS)
        now = dead[path].filter(pc.invert(pc.is_in(dead[path], value_set=earlier)))
        yield Piece(path, 0, True, major, positions=now, takes=True)


def _piece(
    entry: ManifestEntry, deleted: bool, major: int, minor: int = 0, left_out: Positions = NOTHING
) -> Piece:
    file = entry.data_file
    positions = left_out.get(file.file_path, NO_POSITIONS)
    return Piece(file.file_path, file.file_size_in_bytes, deleted, major, minor, positions)


def _number(entry: ManifestEntry) -> int:
    return entry.sequence_number or 0


def _own_entries(io: FileIO, snapshot: Mapping[str, Any]) -> list[ManifestEntry]:
    """What the snapshot itself has added and removed."""
    number = snapshot["snapshot-id"]
    manifests = read_manifest_list(io, snapshot["manifest-list"])
    own = [manifest for manifest in manifests if manifest.added_snapshot_id == number]
    return [
        entry
        for found in read_manifests(io, own)
        for entry in found
        if entry.snapshot_id == number and entry.status != EXISTING
    ]


def _before(
    io: FileIO,
    parent: Mapping[str, Any],
    gone: Mapping[str, ManifestEntry],
    touched: Set[str],
) -> tuple[Positions, set[str]]:
    """Positions that were deleted before, and the removed files that had equality deletes."""
    if not gone and not touched:
        return {}, set()
    manifests = read_manifest_list(io, parent["manifest-list"])
    live = [
        entry
        for found in read_manifests(io, filter(_has_deletes, manifests))
        for entry in found
        if entry.status != DELETED
    ]
    equality = _with_content(live, DataFileContent.EQUALITY_DELETES)
    newest = max(map(_number, equality), default=0)
    scanned = {path for path, entry in gone.items() if _number(entry) < newest}
    wanted = {*touched, *gone} - scanned
    positions = _with_content(live, DataFileContent.POSITION_DELETES)
    return _positions(io, positions, wanted), scanned


def _has_deletes(manifest: ManifestFile) -> bool:
    live = manifest.has_added_files() or manifest.has_existing_files()
    return live and manifest.content == ManifestContent.DELETES


def _with_content(
    entries: Iterable[ManifestEntry], content: DataFileContent
) -> list[ManifestEntry]:
    return [entry for entry in entries if entry.data_file.content == content]


def _positions(
    io: FileIO, entries: Iterable[ManifestEntry], wanted: Set[str] | None = None
) -> Positions:
    """Deleted positions by the location of their data file, of those that are wanted."""
    found: dict[str, list[pa.Array]] = {}
    for file in (entry.data_file for entry in entries):
        referenced = referenced_file(file)
        if wanted is not None and (not wanted or (referenced and referenced not in wanted)):
            continue
        if file.file_format == FileFormat.PUFFIN:
            vector = pa.array(read_deletion_vector(io, file), pa.int64())
            found.setdefault(str(referenced), []).append(vector)
            continue
        _require_parquet([file])
        for path, positions in read_position_deletes(io, file, wanted):
            found.setdefault(path, []).append(positions)
    return {path: pa.concat_arrays(parts).unique() for path, parts in found.items()}


def _require_parquet(files: Iterable[DataFile]) -> None:
    for file in files:
        if file.file_format != FileFormat.PARQUET:
            raise StreamError(
                f"{file.file_path} is of the format {file.file_format.value}: changes can be "
                "streamed of tables in Parquet only."
            )
