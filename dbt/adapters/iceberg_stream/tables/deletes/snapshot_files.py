"""The data files of a snapshot with their deleted rows, and the keys in them."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.manifests import FILE_FIRST_ROW_ID
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    file_key,
    referenced_file,
)
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.deletes import (
    may_delete_of,
    only_data_file,
    read_position_deletes,
)
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import (
    CONTENT_OFFSET,
    read_deletion_bitmap,
)
from dbt.adapters.iceberg_stream.tables.files.reader import (
    NotByRewriting,
    OldFile,
    no_rows,
    read_rows,
    require_ids,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

# A position has 32 bits in an index and in Roaring bitmaps.
MAX_ROWS = 1 << 32


class UnsupportedFile(Exception):
    """Rows of a file cannot be read here; the message says why."""


@dataclass(frozen=True)
class SnapshotFile:
    """A live data file, and the delete files that delete its rows by position.

    Attributes:
        file: the data file.
        own_deletes: delete files of this data file only, which newer ones replace.
        shared_deletes: delete files of several data files, which stay.
        sequence_number: the data file's data sequence number; None in format version 1.
    """

    file: DataFile
    own_deletes: list[DataFile] = field(default_factory=list)
    shared_deletes: list[DataFile] = field(default_factory=list)
    sequence_number: int | None = None

    @property
    def path(self) -> str:
        """Location of the data file."""
        return str(self.file.file_path)

    @property
    def lacks_row_ids(self) -> bool:
        """Return whether rows have no ids yet, as before the first commit in version 3."""
        return self.file[FILE_FIRST_ROW_ID] is None

    @property
    def delete_keys(self) -> frozenset[tuple[str, int | None]]:
        """Identify the delete files: files with the same keys have the same deleted rows."""
        files = (*self.own_deletes, *self.shared_deletes)
        return frozenset((file_key(f)[0], _offset(f)) for f in files)


def old_file(
    target: WriteTarget, entry: ManifestEntry | SnapshotFile, dead: BitMap | pa.Int64Array
) -> OldFile:
    """Describe a data file for what rewrites it.

    Args:
        target: the table's storage.
        entry: the file, as a manifest or a snapshot has it.
        dead: positions of its deleted rows.
    """
    file = entry.file if isinstance(entry, SnapshotFile) else entry.data_file
    if isinstance(dead, BitMap):
        dead = pa.array(dead.to_array(), pa.uint32()).cast(pa.int64())
    return OldFile(
        file.file_path,
        target.path_of(file.file_path),
        dead,
        file[FILE_FIRST_ROW_ID],
        entry.sequence_number,
        size=file.file_size_in_bytes,
        constants=target.constants(file),
    )


def _offset(file: DataFile) -> int | None:
    offset: int | None = file[CONTENT_OFFSET] if file.file_format == FileFormat.PUFFIN else None
    return offset


def snapshot_files(
    table: LoadedTable,
    data: Sequence[ManifestEntry] | None = None,
    deletes: Sequence[ManifestEntry] | None = None,
) -> dict[str, SnapshotFile]:
    """Return the data files of a table's current snapshot whose rows can be read here.

    Args:
        table: the table.
        data: manifest entries of its data files; by default they are read.
        deletes: manifest entries of its delete files; by default they are read.

    Returns:
        The files by their locations.

    Raises:
        UnsupportedFile: a file has another format than Parquet, or too many rows.
        CatalogError: the table has a file twice.
    """
    files = with_position_deletes(table, data, deletes)
    for snapshot_file in files.values():
        _require_supported(snapshot_file.file)
    return files


def with_position_deletes(
    table: LoadedTable,
    data: Sequence[ManifestEntry] | None = None,
    deletes: Sequence[ManifestEntry] | None = None,
) -> dict[str, SnapshotFile]:
    """Return data files of any format, like `snapshot_files`.

    Raises:
        UnsupportedFile: position deletes have another format than Parquet or Puffin.
        CatalogError: the table has a file twice.
    """
    io, metadata = table.io, table.metadata
    if data is None:
        data = live_entries(io, metadata, ManifestContent.DATA)
    if deletes is None:
        deletes = live_entries(io, metadata, ManifestContent.DELETES)
    files = {
        item.data_file.file_path: SnapshotFile(item.data_file, sequence_number=item.sequence_number)
        for item in data
    }
    if len(files) < len(data):
        _raise_repeated(table, data)
    for item in deletes:
        delete = item.data_file
        if delete.content != DataFileContent.POSITION_DELETES:
            # A row that an equality delete has deleted may be deleted by position once more.
            continue
        only = referenced_file(delete) or only_data_file(delete)
        if only is None and may_delete_of(delete, files):
            _require_readable(delete)
            for path in {path for path, _ in read_position_deletes(io, delete, files.keys())}:
                if _applies(item, files[path]):
                    files[path].shared_deletes.append(delete)
        elif only in files and _applies(item, files[only]):
            _require_readable(delete)
            files[only].own_deletes.append(delete)
    return files


def _applies(delete: ManifestEntry, file: SnapshotFile) -> bool:
    """Return whether deletes by position are as new as a data file (spec, "Scan Planning").

    Those of a file that was removed may outlive it, and the file may be added again.
    """
    is_vector = delete.data_file.file_format == FileFormat.PUFFIN
    return is_vector or (delete.sequence_number or 0) >= (file.sequence_number or 0)


def _raise_repeated(table: LoadedTable, data: Sequence[ManifestEntry]) -> NoReturn:
    """Refuse a file that is listed twice: deletes of its rows would affect both entries."""
    ((path, count),) = Counter(item.data_file.file_path for item in data).most_common(1)
    raise CatalogError(
        f"{'.'.join(table.name)} lists the data file {path} {count} times. Spark's add_files does "
        "that if check_duplicate_files is false. Rows of such a table cannot be changed. Write the "
        "table again: create or replace table … as select * from it."
    )


def _require_supported(file: DataFile) -> None:
    if file.file_format != FileFormat.PARQUET:
        raise UnsupportedFile(
            f"{file.file_path} is a file in {file.file_format.value}, not Parquet"
        )
    if file.record_count >= MAX_ROWS:
        raise UnsupportedFile(f"{file.file_path} has {file.record_count:,} rows")


def _require_readable(delete: DataFile) -> None:
    if delete.file_format not in (FileFormat.PARQUET, FileFormat.PUFFIN):
        raise UnsupportedFile(
            f"{delete.file_path} has position deletes in {delete.file_format.value}"
        )


def deleted_rows(table: LoadedTable, files: Sequence[SnapshotFile]) -> dict[str, BitMap]:
    """Read the rows that position deletes and deletion vectors delete.

    Args:
        table: the table.
        files: data files.

    Returns:
        Positions by the location of the data file.

    Raises:
        OSError: a delete file is damaged, or the storage refuses it; the message names it.
    """
    rows: dict[str, BitMap] = {item.file.file_path: BitMap() for item in files}
    position_deletes: dict[str, DataFile] = {}
    paths: dict[str, set[str]] = defaultdict(set)
    for item in files:
        for delete in (*item.own_deletes, *item.shared_deletes):
            if delete.file_format == FileFormat.PUFFIN:
                with _naming(delete):
                    rows[item.file.file_path] |= read_deletion_bitmap(table.io, delete)
            else:
                position_deletes[delete.file_path] = delete
                paths[delete.file_path].add(item.path)
    for location, delete in position_deletes.items():
        with _naming(delete):
            for path, positions in read_position_deletes(table.io, delete, paths[location]):
                rows[path] |= bitmap(positions.to_numpy())
    return rows


@contextmanager
def _naming(delete: DataFile) -> Iterator[None]:
    """Raise errors of a damaged delete file as OSError with its location."""
    try:
        yield
    except (pa.ArrowException, ValueError) as error:
        raise OSError(f"{delete.file_path}: {error}") from error


def bitmap(positions: Sequence[int] | npt.NDArray[np.integer]) -> BitMap:
    """Return positions as a Roaring bitmap.

    Args:
        positions: from 0, below 2**32.
    """
    return BitMap(array("I", np.asarray(positions, np.uint32).tobytes()))


def read_keys(
    target: WriteTarget,
    schema: pa.Schema,
    location: str,
    is_needed: Callable[[int, pq.RowGroupMetaData], bool] | None = None,
) -> Iterator[tuple[int, pa.Table]]:
    """Read the keys of a data file.

    Args:
        target: the table's storage.
        schema: of the key columns, with field ids.
        location: of the data file.
        is_needed: returns whether a row group is read, from the position of its first row and its
            description; None for all.

    Yields:
        The position of a row group's first row, and the keys of its rows.

    Raises:
        UnsupportedFile: the file has no field ids, or values that the key columns cannot have.
        OSError: the storage refuses the file.
    """
    begin = 0
    try:
        with (
            target.filesystem().open_input_file(target.path_of(location)) as opened,
            pq.ParquetFile(opened) as parquet,
        ):
            require_ids(parquet)
            for group in range(parquet.metadata.num_row_groups):
                described = parquet.metadata.row_group(group)
                if is_needed is None or is_needed(begin, described):
                    yield begin, read_rows(parquet, schema, group)
                begin += described.num_rows
    except NotByRewriting as error:
        raise UnsupportedFile(f"{error} ({location})") from error
    except ColumnError as error:
        raise UnsupportedFile(f"{error.clause} ({location})") from error
    except pa.ArrowException as error:
        raise OSError(f"{location}: {error}") from error


def read_rows_at(
    target: WriteTarget, schema: pa.Schema, location: str, positions: npt.NDArray[np.int64]
) -> pa.Table:
    """Read some rows of a data file.

    Args:
        target: the table's storage.
        schema: of the columns, with field ids.
        location: of the data file.
        positions: of the rows in the file, in any order.

    Returns:
        The rows, in the order of `positions`.

    Raises:
        UnsupportedFile, OSError: as for `read_keys`.
    """
    order = np.argsort(positions, kind="stable")
    ascending = positions[order]
    parts = [no_rows(schema)]

    def has_rows(begin: int, group: pq.RowGroupMetaData) -> bool:
        return bool(np.ptp(np.searchsorted(ascending, (begin, begin + group.num_rows))))

    for begin, rows in read_keys(target, schema, location, has_rows):
        first, last = np.searchsorted(ascending, (begin, begin + rows.num_rows))
        parts.append(rows.take(ascending[first:last] - begin))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_tables(parts).take(back)
