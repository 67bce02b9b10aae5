"""Checks the row ids in data files (spec, "Row Lineage")."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestEntry
from pyroaring import BitMap64

from dbt.adapters.iceberg_stream.maintenance.check.file_schema import FIELD_ID
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.live_files import DATA
from dbt.adapters.iceberg_stream.tables.commit.manifests import FILE_FIRST_ROW_ID

ROW_ID = 2_147_483_540


def check_row_ids(io: FileIO, ref: str, entries: list[ManifestEntry]) -> Iterator[Finding]:
    """Check that no two rows of a branch or tag have the same row id.

    Where there are delete files, rows that are deleted keep their ids: ids are then compared within
    each file only.

    Args:
        io: the table's FileIO.
        ref: the branch or tag.
        entries: its live entries.
    """
    files = [entry.data_file for entry in entries if entry.data_file.content == DATA]
    compares = len(files) == len(entries)
    seen: BitMap64 = BitMap64()
    for file in files:
        if file.file_format != FileFormat.PARQUET or len(file) <= FILE_FIRST_ROW_ID:
            continue
        try:
            ids, rows = _row_ids(io, file)
        except (OSError, pa.ArrowException):
            continue  # reported where its contents are checked
        shared = seen & ids if compares else ()
        if len(ids) < rows or shared:
            least = f", such as {min(shared)}" if shared else ""
            problem = f"In {ref}, several rows have the same row id{least}."
            yield Finding("row-ids", file.file_path, problem)
        if compares:
            seen |= ids


def _row_ids(io: FileIO, file: DataFile) -> tuple[BitMap64, int]:
    """Return the row ids of a file, and how many of its rows have one."""
    first = file[FILE_FIRST_ROW_ID]
    with io.new_input(file.file_path).open() as stream, pq.ParquetFile(stream) as parquet:
        rows = parquet.metadata.num_rows
        fields = {(f.metadata or {}).get(FIELD_ID): f.name for f in parquet.schema_arrow}
        name = fields.get(str(ROW_ID).encode())
        stored = None if name is None else parquet.read([name]).column(0).combine_chunks()
    if stored is None:
        return (BitMap64(), 0) if first is None else (BitMap64(range(first, first + rows)), rows)
    if first is not None:
        stored = pc.coalesce(stored, pa.array(np.arange(first, first + rows)))
    ids = stored.drop_null()
    return BitMap64(ids.to_numpy().astype(np.uint64)), len(ids)
