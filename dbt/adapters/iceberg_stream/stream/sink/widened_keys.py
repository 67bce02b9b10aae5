"""Rewrite equality deletes in the new type when a key's type is widened.

Iceberg 1.12 caches an equality delete file's keys by the file's name (`BaseDeleteLoader`). An
engine that has read the file before would search for the wide type among keys of the narrow one,
and deleted rows would reappear. DuckDB 1.5 does not read keys of another type than the column's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import TableUpdate

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, with_schema
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    current_schema,
    known_schemas,
    remove_quietly,
)
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError, conform
from dbt.adapters.iceberg_stream.tables.files.data_files import describe_in_place
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id
from dbt.adapters.iceberg_stream.tables.files.parquet import writer_beside
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

ROWS_AT_ONCE = 1_000_000


def rewrite_widened_deletes(
    base: LoadedTable, updates: Sequence[TableUpdate], properties: Mapping[str, str]
) -> Change | None:
    """Rewrite the live equality deletes of columns that a schema update widens.

    Args:
        base: the table before the update.
        updates: the updates, which include the new schema.
        properties: of the snapshot.

    Returns:
        The change to commit along with the schema, with the deletes' own data sequence numbers;
        None if no live equality delete has a column that is widened.

    Raises:
        ColumnError: a delete file to rewrite is not in Parquet.
        OSError: the storage refuses a file; the files written before are removed.
    """
    metadata = with_schema(base.metadata, updates)
    widened = _widened(base.metadata, metadata)
    if not widened:
        return None

    def has_widened(item: ManifestEntry) -> bool:
        file = item.data_file
        of_keys = file.content == DataFileContent.EQUALITY_DELETES
        return of_keys and not widened.keys().isdisjoint(file.equality_ids or ())

    entries = live_entries(base.io, base.metadata, ManifestContent.DELETES, test=has_widened)
    if not entries:
        return None
    _check_formats(entries, widened)
    target = WriteTarget.of(metadata, base.io)
    rewritten: dict[int | None, list[DataFile]] = defaultdict(list)
    with ExitStack() as on_error:
        for item in entries:
            file = _rewrite(metadata, target, item.data_file)
            on_error.callback(remove_quietly, base.io, file.file_path)
            rewritten[item.sequence_number].append(file)
        on_error.pop_all()
    return Change(
        Operation.REPLACE,
        tuple(
            AddedFiles(deletes=tuple(files), sequence_number=number)
            for number, files in rewritten.items()
        ),
        removed=tuple(item.data_file for item in entries),
        properties=properties,
    )


def _widened(before: Metadata, after: Metadata) -> dict[int, str]:
    """Return the names of columns whose type is changed, by field id."""
    old, new = current_schema(before), current_schema(after)
    return {
        field.field_id: field.name
        for field in old.fields
        if field.field_id in new.field_ids and new.find_type(field.field_id) != field.field_type
    }


def _check_formats(entries: Sequence[ManifestEntry], widened: Mapping[int, str]) -> None:
    for file in (item.data_file for item in entries):
        if file.file_format != FileFormat.PARQUET:
            key = next(
                name for number, name in widened.items() if number in (file.equality_ids or ())
            )
            raise ColumnError(
                key,
                f"is widened, and {file.file_path} has equality deletes by it in "
                f"{file.file_format.value}. Compact the table with Spark first: call "
                "system.rewrite_data_files(…, options => map('delete-file-threshold', '1'))",
            )


def _rewrite(metadata: Metadata, target: WriteTarget, old: DataFile) -> DataFile:
    filesystem, path = target.filesystem(), target.path_of(old.file_path)
    with filesystem.open_input_file(path) as stream, pq.ParquetFile(stream) as parquet:
        schema = _columns(metadata, parquet.schema_arrow)
        stored = file_schema(schema)
        writer = writer_beside(
            filesystem, stored, target.options, old.file_path, path, "stream-deletes-"
        )
        with writer:
            for batch in parquet.iter_batches(ROWS_AT_ONCE):
                renamed = pa.RecordBatch.from_arrays(batch.columns, names=stored.names)
                rows = pa.Table.from_batches([conform(renamed, stored)], stored)
                writer.write(rows, may_roll=False)
            new = writer.close()[0]
    return describe_in_place(schema, dict(target.properties), old, new)


def _columns(metadata: Metadata, stored: pa.Schema) -> Schema:
    """Return a file's columns in the table's current schema, or in the last one that has them."""
    schemas = list(known_schemas(metadata))
    numbers = [number for f in stored if (number := field_id(f)) is not None]
    return Schema(
        *(
            next(schema for schema in schemas if n in schema.field_ids).find_field(n)
            for n in numbers
        )
    )
