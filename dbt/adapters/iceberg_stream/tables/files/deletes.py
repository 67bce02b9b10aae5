"""Writes and reads delete files (spec, "Position Delete Files" and "Equality Delete Files")."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import conform
from dbt.adapters.iceberg_stream.tables.files.data_files import Describer
from dbt.adapters.iceberg_stream.tables.files.parquet import RollingWriter
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

# PyIceberg's own schema has optional columns and a position of 32 bits.
POSITIONS = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)
REFERENCED_DATA_FILE = [f.name for f in DATA_FILE_TYPE[3].fields].index("referenced_data_file")
# Bounds of paths must not be truncated: readers take equal bounds as one data file.
WHOLE_BOUNDS = {"write.metadata.metrics.default": "full"}


def write_position_deletes(
    target: WriteTarget,
    name: str,
    positions: Mapping[str, Sequence[int] | pa.Array | BitMap],
    partition: PartitionKey | None = None,
) -> DataFile:
    """Write one position delete file. For format version 2: 3 has deletion vectors only.

    Args:
        target: the table.
        name: of the file, without extension.
        positions: positions of deleted rows, from 0, by their data file's location.
        partition: the partition of all these data files; None if unpartitioned.

    Returns:
        The file's descriptor.
    """
    paths = sorted(positions)
    # Sorted by file, then position, as the specification requires.
    columns = [_in_order(positions[path]) for path in paths]
    numbers = np.repeat(np.arange(len(paths), dtype=np.int32), [len(c) for c in columns])
    # As in the file: a location has over a hundred bytes, and would be there for each row.
    names = pa.DictionaryArray.from_arrays(numbers, pa.array(paths, pa.string()))
    kinds = file_schema(POSITIONS)
    rows = pa.Table.from_arrays(
        [names, pa.chunked_array(columns, pa.int64())],
        schema=kinds.set(0, kinds.field(0).with_type(names.type)),
    )
    file = _write(
        target, name, rows, POSITIONS, partition, DataFileContent.POSITION_DELETES, WHOLE_BOUNDS
    )
    if len(paths) == 1:
        file[REFERENCED_DATA_FILE] = paths[0]
    return file


def _in_order(positions: Sequence[int] | pa.Array | BitMap) -> pa.Int64Array:
    """Return positions in their order, each once."""
    if isinstance(positions, BitMap):
        return pa.array(np.asarray(positions.to_array(), np.int64))
    return pc.unique(pa.array(positions, pa.int64())).sort()


def write_equality_deletes(
    target: WriteTarget,
    name: str,
    keys: pa.Table,
    partition: PartitionKey | None = None,
) -> DataFile:
    """Write one equality delete file.

    Args:
        target: the table.
        name: of the file, without extension.
        keys: the deleted keys; columns are named as the table's.
        partition: the partition whose rows are deleted; None deletes rows of all partitions.

    Returns:
        The file's descriptor.
    """
    schema = target.schema.select(*keys.column_names)
    schema_of_file = file_schema(schema)
    batches = [conform(batch, schema_of_file) for batch in keys.to_batches()]
    rows = pa.Table.from_batches(batches, schema_of_file)
    ids = [field.field_id for field in schema.fields]
    content = DataFileContent.EQUALITY_DELETES
    properties = dict(target.properties)
    return _write(target, name, rows, schema, partition, content, properties, ids)


def read_position_deletes(
    io: FileIO, file: DataFile, paths: Set[str] | None = None
) -> Iterator[tuple[str, pa.Array]]:
    """Read the positions of a position delete file.

    Args:
        io: the table's FileIO.
        file: the file's descriptor.
        paths: locations of data files of which positions are returned; None for all.

    Yields:
        A data file's location and positions of deleted rows; a location may occur several times.

    Raises:
        OSError: the storage refuses the file.
        pa.ArrowException: the file is damaged.
    """
    with io.new_input(file.file_path).open() as stream, pq.ParquetFile(stream) as parquet:
        for batch in parquet.iter_batches(columns=["file_path", "pos"]):
            for path in batch["file_path"].unique().to_pylist():
                if paths is None or path in paths:
                    matching = batch.filter(pc.equal(batch["file_path"], path))
                    yield path, matching["pos"].cast(pa.int64())


def only_data_file(file: DataFile) -> str | None:
    """Return the only data file that a position delete file references; None if unknown."""
    referenced: str | None = file[REFERENCED_DATA_FILE]
    if referenced is not None:
        return referenced
    lower, upper = _path_bounds(file)
    return lower.decode() if lower is not None and lower == upper else None


def may_delete_of(file: DataFile, paths: Collection[str]) -> bool:
    """Return whether a position delete file may reference one of these data files."""
    if (only := only_data_file(file)) is not None:
        return only in paths
    lower, upper = _path_bounds(file)
    if lower is None or upper is None:
        return True
    return any(lower <= path.encode() <= upper for path in paths)


def _path_bounds(file: DataFile) -> tuple[bytes | None, bytes | None]:
    field = POSITIONS.fields[0].field_id
    return (file.lower_bounds or {}).get(field), (file.upper_bounds or {}).get(field)


def _write(
    target: WriteTarget,
    name: str,
    rows: pa.Table,
    schema: Schema,
    partition: PartitionKey | None,
    content: DataFileContent,
    properties: dict[str, str],
    equality_ids: list[int] | None = None,
) -> DataFile:
    location = str(target.locations.new_data_location(f"{name}.parquet", partition))
    options = target.options
    if schema is POSITIONS:
        # Each position occurs once: a dictionary of them would only cost time.
        options = replace(options, dictionary_columns=("file_path",))
    writer = RollingWriter(
        target.filesystem(), rows.schema, options, lambda: location, target.path_of
    )
    with writer:
        writer.write(rows.combine_chunks())
        finished_file = writer.close()[0]
    describer = Describer(schema, properties, target.spec.spec_id)
    return describer.describe(finished_file, partition, content=content, equality_ids=equality_ids)
