"""Equality deletes of a key whose type is widened are written again, in the new type.

Iceberg 1.12 keeps an equality delete file's keys by the file's name (`BaseDeleteLoader`): an engine
that has read the file before would look up the wide type among keys of the narrow one, and deleted
rows would come back. DuckDB 1.5 does not read keys of another type than the column's at all.
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
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    current_schema,
    known_schemas,
    remove_quietly,
)
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError, conform
from dbt.adapters.iceberg_stream.tables.files.data_files import describe_in_place
from dbt.adapters.iceberg_stream.tables.files.parquet import writer_beside
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge.candidates import live_entries

FIELD_ID = b"PARQUET:field_id"
ROWS_AT_ONCE = 1_000_000


def rewrite_widened_deletes(
    base: LoadedTable, updates: Sequence[TableUpdate], properties: Mapping[str, str]
) -> Change | None:
    """What is committed along with the schema: the same deletes, with the sequence numbers that
    they had. None where no live equality delete has a column that is widened.

    Raises:
        ColumnError: such deletes are not in Parquet.
        OSError: the storage refuses a file; those that were written are removed.
    """
    metadata = with_schema(base.metadata, updates)
    wider = _widened(base.metadata, metadata)
    if not wider:
        return None

    def has_wider(item: ManifestEntry) -> bool:
        file = item.data_file
        of_keys = file.content == DataFileContent.EQUALITY_DELETES
        return of_keys and not wider.keys().isdisjoint(file.equality_ids or ())

    entries = live_entries(base.io, base.metadata, ManifestContent.DELETES, test=has_wider)
    if not entries:
        return None
    _check_formats(entries, wider)
    target = WriteTarget.of(metadata, base.io)
    made: dict[int | None, list[DataFile]] = defaultdict(list)
    with ExitStack() as on_error:
        for item in entries:
            file = _written_again(metadata, target, item.data_file)
            on_error.callback(remove_quietly, base.io, file.file_path)
            made[item.sequence_number].append(file)
        on_error.pop_all()
    return Change(
        Operation.REPLACE,
        tuple(AddedFiles(deletes=tuple(files), sequence_number=n) for n, files in made.items()),
        removed=tuple(item.data_file for item in entries),
        properties=properties,
    )


def _widened(before: Metadata, after: Metadata) -> dict[int, str]:
    """Columns of the table whose type is another one: field ids and names."""
    now, then = current_schema(before), current_schema(after)
    return {
        field.field_id: field.name
        for field in now.fields
        if field.field_id in then.field_ids and then.find_type(field.field_id) != field.field_type
    }


def _check_formats(entries: Sequence[ManifestEntry], wider: Mapping[int, str]) -> None:
    for file in (item.data_file for item in entries):
        if file.file_format != FileFormat.PARQUET:
            key = next(
                name for number, name in wider.items() if number in (file.equality_ids or ())
            )
            raise ColumnError(
                key,
                f"becomes wider, and {file.file_path} has deletes by it in "
                f"{file.file_format.value}. Compact the table with Spark first: call "
                "system.rewrite_data_files(…, options => map('delete-file-threshold', '1'))",
            )


def _written_again(metadata: Metadata, target: WriteTarget, old: DataFile) -> DataFile:
    filesystem, path = target.filesystem(), target.path_of(old.file_path)
    with filesystem.open_input_file(path) as stream, pq.ParquetFile(stream) as parquet:
        schema = _columns(metadata, parquet.schema_arrow)
        stored = file_schema(schema)
        writer = writer_beside(
            filesystem, stored, target.options, old.file_path, path, "stream-deletes-"
        )
        with writer:
            for batch in parquet.iter_batches(ROWS_AT_ONCE):
                named = pa.RecordBatch.from_arrays(batch.columns, names=stored.names)
                rows = pa.Table.from_batches([conform(named, stored)], stored)
                writer.write(rows, may_roll=False)
            made = writer.close()[0]
    return describe_in_place(schema, dict(target.properties), old, made)


def _columns(metadata: Metadata, stored: pa.Schema) -> Schema:
    """The columns of a file as the table has them now, or had them last."""
    schemas = list(known_schemas(metadata))
    numbers = [int(field.metadata[FIELD_ID]) for field in stored]
    return Schema(
        *(
            next(schema for schema in schemas if n in schema.field_ids).find_field(n)
            for n in numbers
        )
    )
