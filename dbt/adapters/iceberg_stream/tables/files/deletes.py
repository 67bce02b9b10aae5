"""Delete files in Parquet (spec, "Position Delete Files" and "Equality Delete Files")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

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


def read_position_deletes(
    io: FileIO, file: DataFile, paths: Set[str] | None = None
) -> Iterator[tuple[str, pa.Array]]:
    """Positions by the location of their data file, of some paths only; one may come often.

    Raises:
        OSError, pa.ArrowException: the file is damaged, or the storage refuses it.
    """
    with io.new_input(file.file_path).open() as stream, pq.ParquetFile(stream) as parquet:
        for batch in parquet.iter_batches(columns=["file_path", "pos"]):
            for path in batch["file_path"].unique().to_pylist():
                if paths is None or path in paths:
                    here = batch.filter(pc.equal(batch["file_path"], path))
                    yield path, here["pos"].cast(pa.int64())


def only_data_file(file: DataFile) -> str | None:
    """The one data file whose rows position deletes are of; None if they may be of several."""
    referenced: str | None = file[REFERENCED_DATA_FILE]
    if referenced is not None:
        return referenced
    lower, upper = _path_bounds(file)
    return lower.decode() if lower is not None and lower == upper else None


def may_delete_of(file: DataFile, paths: Iterable[str]) -> bool:
    """Whether position deletes may be of one of these data files."""
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
    writer = RollingWriter(
        target.filesystem(), rows.schema, target.options, lambda: location, target.path_of
    )
    with writer:
        writer.write(rows.combine_chunks())
        written = writer.close()[0]
    describer = Describer(schema, properties, target.spec.spec_id)
    return describer.describe(written, partition, content=content, equality_ids=equality_ids)
