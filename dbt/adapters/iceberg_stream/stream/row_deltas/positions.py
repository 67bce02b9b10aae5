"""Deletes by position, for readers that refuse equality deletes: the table is asked where rows are.

Spec, "Position Delete Files" and "Deletion Vectors".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.commit.producer import referenced_file
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.files.deletes import write_position_deletes
from dbt.adapters.iceberg_stream.files.deletion_vectors import (
    DeletionVector,
    read_deletion_vector,
    write_deletion_vectors,
)
from dbt.adapters.iceberg_stream.files.target import WriteTarget
from dbt.adapters.iceberg_stream.merge.candidates import live_entries
from dbt.adapters.iceberg_stream.relation import quote

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
    """Vectors of the table's data files, with what older ones delete, and the older ones."""
    older = {
        str(referenced_file(file)): file
        for file in deletes
        if file.content == DataFileContent.POSITION_DELETES
        and file.file_format == FileFormat.PUFFIN
        and referenced_file(file) in positions
    }
    vectors = []
    for file in data:
        if file.file_path in positions:
            dead = set(positions[file.file_path].to_pylist())
            if file.file_path in older:
                dead |= set(read_deletion_vector(target.io, older[file.file_path]))
            vectors.append(DeletionVector(file, sorted(dead)))
    return write_deletion_vectors(target, name, vectors) if vectors else [], list(older.values())


def live_deletes(io: FileIO, metadata: Metadata) -> list[DataFile]:
    """Delete files of the table's current snapshot."""
    entries = live_entries(io, metadata, ManifestContent.DELETES)
    return [item.data_file for item in entries]
