"""Deletes by position, for readers that refuse equality deletes: the table is asked where rows are.

Spec, "Position Delete Files" and "Deletion Vectors".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.tables.commit.producer import referenced_file
from dbt.adapters.iceberg_stream.tables.files.deletes import (
    may_delete_of,
    only_data_file,
    read_position_deletes,
    write_position_deletes,
)
from dbt.adapters.iceberg_stream.tables.files.deletion_vectors import (
    DeletionVector,
    read_deletion_vector,
    write_deletion_vectors,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge.candidates import live_entries

# Positions of rows by the location of their data file.
Positions = Mapping[str, pa.Int64Array]
PARTITION_FIELD = 3


def find_positions(
    session: Session, relation: str, keys: Sequence[str], locations: Sequence[str]
) -> Positions:
    """Where the table has rows with the keys that are in some Parquet files."""
    match = " and ".join(f"t.{quote(key)} <=> k.{quote(key)}" for key in keys)
    sql = (
        f"select t._file as file, t._pos as pos from {relation} as t "
        f"left semi join __stream_keys as k on {match}"
    )
    rows = session.rows(sql, __stream_keys=session.spark.read.parquet(*locations))
    found = rows.group_by("file").aggregate([("pos", "list")]).to_batches()
    return {
        batch["file"][n].as_py(): batch["pos_list"][n].values
        for batch in found
        for n in range(batch.num_rows)
    }


def position_deletes(
    target: WriteTarget, name: str, positions: Positions, data: Sequence[DataFile]
) -> list[DataFile]:
    """Files that delete rows of the table's data files, one for each partition (version 2)."""
    groups: dict[tuple[int, Any], dict[str, pa.Array]] = defaultdict(dict)
    for file in data:
        if file.file_path in positions:
            groups[file.spec_id, file.partition][file.file_path] = positions[file.file_path]
    made = []
    for number, ((spec_id, partition), rows) in enumerate(groups.items()):
        described = write_position_deletes(target, f"{name}-{number}", rows)
        described[PARTITION_FIELD] = partition
        described.spec_id = spec_id
        made.append(described)
    return made


def deletion_vectors(
    target: WriteTarget,
    name: str,
    positions: Positions,
    data: Sequence[DataFile],
    deletes: Sequence[DataFile],
) -> tuple[list[DataFile], list[DataFile]]:
    """Vectors of the table's data files, with all that older deletes delete, and files to remove.

    A reader takes a data file's vector and no other position delete of it: those of the time
    before format version 3 go into the vector, too. Their files go if they are of this data file
    only.

    Raises:
        StreamError: an older delete file cannot be read.
    """
    dead = {path: {*found.to_pylist()} for path, found in positions.items()}
    replaced = []
    for file in deletes:
        of_positions = file.content == DataFileContent.POSITION_DELETES
        if not of_positions or not may_delete_of(file, positions):
            continue
        for path, rows in _read(target.io, file, positions.keys()):
            dead[path] |= {*rows}
        if only_data_file(file) is not None:
            replaced.append(file)
    vectors = [
        DeletionVector(file, sorted(dead[file.file_path]))
        for file in data
        if file.file_path in positions
    ]
    return write_deletion_vectors(target, name, vectors) if vectors else [], replaced


def _read(io: FileIO, file: DataFile, paths: Set[str]) -> Iterator[tuple[str, Sequence[int]]]:
    if file.file_format == FileFormat.PUFFIN:
        yield str(referenced_file(file)), read_deletion_vector(io, file)
    elif file.file_format == FileFormat.PARQUET:
        for path, rows in read_position_deletes(io, file, paths):
            yield path, rows.to_pylist()
    else:
        raise StreamError(
            f"{file.file_path} has position deletes in {file.file_format.value}, which deletion "
            "vectors of the same data files would hide. Compact the table with Spark: call "
            "system.rewrite_data_files(…, options => map('delete-file-threshold', '1'))"
        )


def live_deletes(io: FileIO, metadata: Metadata) -> list[DataFile]:
    """Delete files of the table's current snapshot."""
    entries = live_entries(io, metadata, ManifestContent.DELETES)
    return [item.data_file for item in entries]
