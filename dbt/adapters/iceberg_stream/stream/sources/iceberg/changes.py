"""Plan the row changes of a snapshot as pieces of files.

In each data sequence number deletes come before rows, because an update is both. Iceberg spec,
"Scan Planning": https://iceberg.apache.org/spec/
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

# Minors in a data sequence number: deletes have 0, rows follow those of the files before.
FIRST_ROW = 1
ROWS_OF_A_FILE = 1 << 40
NO_POSITIONS = pa.array([], pa.int64())
Positions = Mapping[str, pa.Array]
NO_DELETES: Positions = MappingProxyType({})


@dataclass(frozen=True)
class Piece:
    """Rows of one file that are changes of the same kind.

    Attributes:
        location: of the file.
        size: of the file in bytes; 0 if it is not known.
        deleted: whether the rows, or the rows of the keys, are deleted.
        major: data sequence number of the changes.
        minor: of the first row's change; all deletes of a sequence number share one.
        positions: the only rows of the piece if `takes`, or else the rows that it leaves out.
        takes: how `positions` is used.
        only_keys: whether the file has the keys of deleted rows, and no other columns.
        begin: position of the first row of the piece.
        end: position after its last row; None for the file's end.
        file: the file, or a delete file of its partition.
    """

    location: str
    size: int
    deleted: bool
    major: int
    minor: int = 0
    positions: pa.Array = field(default_factory=lambda: NO_POSITIONS)
    takes: bool = False
    only_keys: bool = False
    begin: int = 0
    end: int | None = None
    file: DataFile | None = None


@dataclass(frozen=True)
class SnapshotChanges:
    """All changes of a snapshot.

    Attributes:
        snapshot_id: the snapshot.
        parent_id: the snapshot before it.
        first: its first data sequence number.
        pieces: the changes, by files.
        scanned: removed files whose live rows only a scan of the parent can find.
        compared: whether rows that are deleted and added again with equal values are unchanged,
            as after a copy-on-write.
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
    """Plan the changes between a snapshot and its parent.

    Args:
        io: of the table.
        snapshot: from the table's metadata.
        parent: from the table's metadata.

    Raises:
        StreamError: the changes cannot be read.
    """
    number = snapshot["snapshot-id"]
    try:
        return _plan(io, snapshot, parent)
    except FileNotFoundError as error:
        raise StreamError(
            f"A file of the snapshot {number} is gone: {error}. It was removed before this stream "
            "read it. Rebuild the table with --full-refresh."
        ) from error
    except (OSError, ValueError) as error:
        raise StreamError(f"The changes of snapshot {number} cannot be read: {error}") from error


def _plan(io: FileIO, snapshot: Mapping[str, Any], parent: Mapping[str, Any]) -> SnapshotChanges:
    number, last = snapshot["snapshot-id"], parent.get("sequence-number", 0)
    if not snapshot.get("sequence-number"):
        raise StreamError(
            f"The snapshot {number} is of format version 1, which has no sequence numbers, so that "
            "its changes have no order. Upgrade the table to format version 2, and then run the "
            "stream with --full-refresh."
        )
    entries = _own_entries(io, snapshot)
    data = _with_content(entries, DataFileContent.DATA)
    added = [e for e in data if e.status == ADDED]
    deleted = {e.data_file.file_path: e for e in data if e.status == DELETED}
    new = [e for e in entries if e.status == ADDED]
    equality = _with_content(new, DataFileContent.EQUALITY_DELETES)
    _require_parquet(e.data_file for e in (*data, *equality))
    positions, partitions = _new_positions(io, _with_content(new, DataFileContent.POSITION_DELETES))
    first = min(
        (_number(e) for e in (*added, *equality) if _number(e) > last),
        default=snapshot["sequence-number"],
    )
    touched = set(positions) - {e.data_file.file_path for e in added} - set(deleted)
    before, scanned = _deletes_before(io, parent, deleted, touched)
    pieces = [
        *_rows(added, positions, first),
        *(_piece(e, True, first, 0, before) for p, e in deleted.items() if p not in scanned),
        *_rows_at(touched, positions, before, first, partitions),
        *(replace(_piece(e, True, _number(e)), only_keys=True) for e in equality),
    ]
    # A row that is left out as unchanged would be deleted by an equality delete of its key.
    compared = bool(deleted or touched) and not equality
    return SnapshotChanges(number, parent["snapshot-id"], first, pieces, sorted(scanned), compared)


def _rows(added: Iterable[ManifestEntry], deletes: Positions, first: int) -> Iterator[Piece]:
    """Yield the rows of new files, without those that the same commit deletes."""
    for rank, entry in enumerate(added):
        minor = FIRST_ROW + rank * ROWS_OF_A_FILE
        yield _piece(entry, False, max(_number(entry), first), minor, deletes)


def _rows_at(
    paths: Iterable[str],
    deletes: Positions,
    before: Positions,
    major: int,
    partitions: Mapping[str, DataFile],
) -> Iterator[Piece]:
    """Yield the rows of older files that the snapshot deletes and that were live before."""
    for path in sorted(paths):
        earlier = before.get(path, NO_POSITIONS)
        new = deletes[path].filter(pc.invert(pc.is_in(deletes[path], value_set=earlier)))
        yield Piece(path, 0, True, major, positions=new, takes=True, file=partitions[path])


def _new_positions(
    io: FileIO, entries: Iterable[ManifestEntry]
) -> tuple[Positions, dict[str, DataFile]]:
    """Return deleted positions, and a delete file of each data file, which is of its partition."""
    by_partition: dict[tuple[int, str], list[ManifestEntry]] = {}
    for entry in entries:
        key = entry.data_file.spec_id, repr(entry.data_file.partition)
        by_partition.setdefault(key, []).append(entry)
    parts: dict[str, list[pa.Array]] = {}
    files: dict[str, DataFile] = {}
    for group in by_partition.values():
        for path, positions in deleted_positions(io, group).items():
            parts.setdefault(path, []).append(positions)
            files[path] = group[0].data_file
    return {path: pa.concat_arrays(found).unique() for path, found in parts.items()}, files


def _piece(
    entry: ManifestEntry,
    deleted: bool,
    major: int,
    minor: int = 0,
    deletes: Positions = NO_DELETES,
) -> Piece:
    file = entry.data_file
    positions = deletes.get(file.file_path, NO_POSITIONS)
    size = file.file_size_in_bytes
    return Piece(file.file_path, size, deleted, major, minor, positions, file=file)


def _number(entry: ManifestEntry) -> int:
    return entry.sequence_number or 0


def _own_entries(io: FileIO, snapshot: Mapping[str, Any]) -> list[ManifestEntry]:
    """Return the files that the snapshot itself has added and removed."""
    number = snapshot["snapshot-id"]
    manifests = read_manifest_list(io, snapshot["manifest-list"])
    own = [manifest for manifest in manifests if manifest.added_snapshot_id == number]
    return [
        entry
        for entries in read_manifests(io, own)
        for entry in entries
        if entry.snapshot_id == number and entry.status != EXISTING
    ]


def _deletes_before(
    io: FileIO,
    parent: Mapping[str, Any],
    deleted: Mapping[str, ManifestEntry],
    touched: Set[str],
) -> tuple[Positions, set[str]]:
    """Return the parent's deleted positions, and removed files that equality deletes applied to."""
    if not deleted and not touched:
        return {}, set()
    manifests = read_manifest_list(io, parent["manifest-list"])
    live = [
        entry
        for entries in read_manifests(io, filter(_has_deletes, manifests))
        for entry in entries
        if entry.status != DELETED
    ]
    equality = _with_content(live, DataFileContent.EQUALITY_DELETES)
    newest = max(map(_number, equality), default=0)
    scanned = {path for path, entry in deleted.items() if _number(entry) < newest}
    numbers = {path: 0 for path in touched} | {p: _number(entry) for p, entry in deleted.items()}
    numbers = {path: number for path, number in numbers.items() if path not in scanned}
    position_deletes = _with_content(live, DataFileContent.POSITION_DELETES)
    return deleted_positions(io, position_deletes, numbers), scanned


def _has_deletes(manifest: ManifestFile) -> bool:
    live = manifest.has_added_files() or manifest.has_existing_files()
    return live and manifest.content == ManifestContent.DELETES


def _with_content(
    entries: Iterable[ManifestEntry], content: DataFileContent
) -> list[ManifestEntry]:
    return [entry for entry in entries if entry.data_file.content == content]


def deleted_positions(
    io: FileIO, entries: Iterable[ManifestEntry], numbers: Mapping[str, int] | None = None
) -> Positions:
    """Read deleted positions by the location of their data file.

    Args:
        io: the table's FileIO.
        entries: of the position deletes and deletion vectors.
        numbers: data sequence numbers of the data files to which older deletes do not apply (spec,
            "Scan Planning"); None for all data files, which are older than the deletes.
    """
    by_path: dict[str, list[pa.Array]] = {}
    paths = None if numbers is None else numbers.keys()
    for entry in entries if paths is None or paths else ():
        file, referenced = entry.data_file, referenced_file(entry.data_file)
        if paths is not None and referenced is not None and referenced not in paths:
            continue
        if file.file_format == FileFormat.PUFFIN:
            vector = pa.array(read_deletion_vector(io, file), pa.int64())
            by_path.setdefault(str(referenced), []).append(vector)
            continue
        _require_parquet([file])
        for path, positions in read_position_deletes(io, file, paths):
            if numbers is None or numbers[path] <= _number(entry):
                by_path.setdefault(path, []).append(positions)
    return {path: pa.concat_arrays(parts).unique() for path, parts in by_path.items()}


def _require_parquet(files: Iterable[DataFile]) -> None:
    for file in files:
        if file.file_format != FileFormat.PARQUET:
            raise StreamError(
                f"{file.file_path} has the format {file.file_format.value}, and `changes: true` "
                "needs tables in Parquet. Rewrite the table in Parquet, or set "
                "`skip_changes: true`."
            )
