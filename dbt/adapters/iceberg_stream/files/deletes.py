"""Delete files in Parquet (spec, "Position Delete Files" and "Equality Delete Files")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.files.casting import conform
from dbt.adapters.iceberg_stream.files.data_files import Describer
from dbt.adapters.iceberg_stream.files.parquet import RollingWriter
from dbt.adapters.iceberg_stream.files.target import WriteTarget

# PyIceberg's own schema has optional columns and a position of 32 bits.
POSITIONS = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)
REFERENCED_DATA_FILE = [f.name for f in DATA_FILE_TYPE[3].fields].index("referenced_data_file")
# Bounds of paths must be whole: equal ones tell a reader that all deletes are of one file.
WHOLE_BOUNDS = {"write.metadata.metrics.default": "full"}


def write_position_deletes(
    target: WriteTarget,
    name: str,
    positions: Mapping[str, Sequence[int] | pa.Array],
    partition: PartitionKey | None = None,
) -> DataFile:
    """One file with the positions (from 0) of deleted rows by the location of their data file.

    All data files are of the partition. Format version 2; 3 takes deletion vectors only.
    """
    paths = sorted(positions)
    # Sorted by file, then position, as the spec wants it.
    columns = [pc.unique(pa.array(positions[path], pa.int64())).sort() for path in paths]
    names = [pa.array([path] * len(c), pa.string()) for path, c in zip(paths, columns, strict=True)]
    rows = pa.Table.from_arrays(
        [pa.chunked_array(names, pa.string()), pa.chunked_array(columns, pa.int64())],
        schema=file_schema(POSITIONS),
    )
    described = _write(
        target, name, rows, POSITIONS, partition, DataFileContent.POSITION_DELETES, WHOLE_BOUNDS
    )
    if len(paths) == 1:
        described[REFERENCED_DATA_FILE] = paths[0]
    return described


def write_equality_deletes(
    target: WriteTarget,
    name: str,
    keys: pa.Table,
    partition: PartitionKey | None = None,
) -> DataFile:
    """One file with keys: rows of the table's columns that bear the keys' names are deleted.

    The rows go of the partition, or of all where the spec is unpartitioned.
    """
    schema = target.schema.select(*keys.column_names)
    stored = file_schema(schema)
    batches = [conform(batch, stored) for batch in keys.to_batches()]
    rows = pa.Table.from_batches(batches, stored)
    ids = [field.field_id for field in schema.fields]
    content = DataFileContent.EQUALITY_DELETES
    properties = dict(target.properties)
    return _write(target, name, rows, schema, partition, content, properties, ids)


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
    writer = RollingWriter(
        target.filesystem(), rows.schema, target.options, lambda: location, target.path_of
    )
    with writer:
        writer.write(rows.combine_chunks())
        written = writer.close()[0]
    describer = Describer(schema, properties, target.spec.spec_id)
    return describer.describe(written, partition, content=content, equality_ids=equality_ids)
