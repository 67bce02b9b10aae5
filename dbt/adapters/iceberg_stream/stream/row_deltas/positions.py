"""Deletes by position, for readers that refuse equality deletes.

A query of the table finds the positions of the keys' rows. Iceberg spec, "Position Delete Files"
and "Deletion Vectors": https://iceberg.apache.org/spec/
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent

from dbt.adapters.iceberg_stream.catalog.locations import spark_path
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.producer import referenced_file
from dbt.adapters.iceberg_stream.tables.files.data_files import PARTITION
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

# Positions of rows by the location of their data file.
Positions = Mapping[str, pa.Int64Array]


def find_positions(
    session: Session, relation: str, keys: Sequence[str], locations: Sequence[str]
) -> Positions:
    """Find the rows of a table whose keys are in some Parquet files.

    Args:
        session: of the engine.
        relation: the table's name for Spark.
        keys: columns that identify a row.
        locations: of the Parquet files with the keys.
    """
    match = " and ".join(f"t.{quote(key)} <=> k.{quote(key)}" for key in keys)
    sql = (
        f"select t._file as file, t._pos as pos from {relation} as t "
        f"left semi join __stream_keys as k on {match}"
    )
    rows = session.rows(sql, __stream_keys=session.spark.read.parquet(*map(spark_path, locations)))
    by_file = rows.group_by("file").aggregate([("pos", "list")]).to_batches()
    return {
        batch["file"][n].as_py(): batch["pos_list"][n].values
        for batch in by_file
        for n in range(batch.num_rows)
    }


def position_deletes(
    target: WriteTarget, name: str, positions: Positions, data: Sequence[DataFile]
) -> list[DataFile]:
    """Write position delete files, one for each partition (format version 2).

    Args:
        target: the table's schema, properties and storage.
        name: prefix of the files' names.
        positions: of the rows to delete.
        data: the data files that have the rows.
    """
    groups: dict[tuple[int, Any], dict[str, pa.Array]] = defaultdict(dict)
    for file in data:
        if file.file_path in positions:
            groups[file.spec_id, file.partition][file.file_path] = positions[file.file_path]
    files = []
    for number, ((spec_id, partition), rows) in enumerate(groups.items()):
        file = write_position_deletes(target, f"{name}-{number}", rows)
        file[PARTITION] = partition
        file.spec_id = spec_id
        files.append(file)
    return files


def deletion_vectors(
    target: WriteTarget,
    name: str,
    positions: Positions,
    data: Sequence[DataFile],
    deletes: Sequence[DataFile],
) -> tuple[list[DataFile], list[DataFile]]:
    """Write deletion vectors that include the older position deletes of their data files.

    A reader that finds a data file's vector ignores its other position deletes: those from before
    format version 3 must be in the vector, too. Their files are removed if they are of this data
    file only.

    Args:
        target: the table's schema, properties and storage.
        name: prefix of the file's name.
        positions: of the rows to delete.
        data: the data files that have the rows.
        deletes: the table's live delete files.

    Returns:
        The vectors, and the delete files that they replace.

    Raises:
        StreamError: an older delete file cannot be read.
    """
    dead = {path: {*rows.to_pylist()} for path, rows in positions.items()}
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
    """Return the delete files of the table's current snapshot.

    Args:
        io: of the table.
        metadata: of the table.
    """
    entries = live_entries(io, metadata, ManifestContent.DELETES)
    return [item.data_file for item in entries]
