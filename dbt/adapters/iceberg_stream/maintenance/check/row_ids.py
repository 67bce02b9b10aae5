"""Checks that no two live rows have the same row id (spec, "Row Lineage")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestEntry
from pyroaring import BitMap64

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.live_files import DATA
from dbt.adapters.iceberg_stream.tables.commit.manifests import FILE_FIRST_ROW_ID
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id

ROW_ID = 2147483540
BATCH_ROWS = 100_000


def check_row_ids(
    io: FileIO,
    metadata: Metadata,
    ref: str,
    entries: Iterable[ManifestEntry],
    deleted: Mapping[str, BitMap64],
) -> Iterator[Finding]:
    """Read the row ids that the files of a branch or tag store, and compare them with all others.

    Rows that are deleted by position do not count: an update keeps the id of the row that it
    deletes.

    Args:
        io: the table's FileIO.
        metadata: table metadata.
        ref: the branch or tag.
        entries: its live entries.
        deleted: positions of deleted rows by data file.
    """
    if metadata["format-version"] < 3:
        return
    used, limit = BitMap64(), metadata.get("next-row-id", 0)
    for entry in entries:
        file = entry.data_file
        if file.content != DATA or file.file_format != FileFormat.PARQUET:
            continue
        own: BitMap64 = BitMap64()
        twice = 0
        lowest = 0
        for ids in _live_ids(io, file, deleted.get(file.file_path, BitMap64())):
            lowest = min(lowest, ids.min(initial=0))
            batch = BitMap64(ids[ids >= 0])
            twice += int((ids >= 0).sum()) - len(batch) + len(batch & own)
            own |= batch
        twice += len(own & used)
        used |= own
        if twice:
            yield Finding(
                "row-id-twice",
                file.file_path,
                f"{twice} of its rows have row ids that other rows in {ref} have.",
            )
        if lowest < 0:
            yield Finding("row-ids", file.file_path, f"It has the row id {lowest}, below zero.")
        if own and own.max() >= limit:
            yield Finding(
                "row-ids",
                file.file_path,
                f"It has the row id {own.max()}; the table's next-row-id is {limit}.",
            )


def _live_ids(io: FileIO, file: DataFile, deleted: BitMap64) -> Iterator[np.ndarray]:
    """Yield the row ids of a file, stored or inherited, without those of deleted rows."""
    first = file[FILE_FIRST_ROW_ID]
    try:
        with io.new_input(file.file_path).open() as stream, pq.ParquetFile(stream) as parquet:
            stored = [
                f.name
                for f in parquet.schema_arrow
                if field_id(f) == ROW_ID and pa.types.is_int64(f.type)
            ]
            if not stored and first is None:
                return
            position = 0
            batches = (
                parquet.iter_batches(BATCH_ROWS, columns=stored)
                if stored
                else _lengths(parquet.metadata.num_rows)
            )
            for batch in batches:
                count = len(batch)
                positions = np.arange(position, position + count, dtype=np.int64)
                position += count
                live = np.ones(count, dtype=bool)
                gone = deleted & BitMap64(range(position - count, position))
                live[np.fromiter(gone, np.int64) - (position - count)] = False
                yield _ids(batch, positions, first)[live & _known(batch, first)]
    except (OSError, pa.ArrowException):
        return  # reported when the file's contents are read


def _lengths(rows: int) -> Iterator[range]:
    for begin in range(0, rows, BATCH_ROWS):
        yield range(min(BATCH_ROWS, rows - begin))


def _ids(batch: pa.RecordBatch | range, positions: np.ndarray, first: int | None) -> np.ndarray:
    inherited = positions + (first or 0)
    if isinstance(batch, range):
        return inherited
    stored = batch.column(0)
    values = stored.fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(stored.is_null().to_numpy(zero_copy_only=False), inherited, values)


def _known(batch: pa.RecordBatch | range, first: int | None) -> np.ndarray:
    if isinstance(batch, range) or first is not None:
        return np.ones(len(batch), dtype=bool)
    return batch.column(0).is_valid().to_numpy(zero_copy_only=False)
