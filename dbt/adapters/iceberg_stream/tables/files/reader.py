"""Reads the rows of data files with the table's current columns.

Worker code: the standard library, PyArrow and other worker code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id, nested_ids
from dbt.adapters.iceberg_stream.tables.files.projection import (
    Constants,
    project,
    with_constants,
)

# Columns that rows of format version 3 keep in a rewritten file (Iceberg spec, "Row Lineage").
ROW_ID, LAST_UPDATED = "_row_id", "_last_updated_sequence_number"
NO_ROWS = pa.array([], pa.int64())
# Constants as a column.
CONSTANTS = pa.map_(pa.int32(), pa.binary())


class NotByRewriting(Exception):
    """A file cannot be rewritten; the message says why."""


@dataclass(frozen=True)
class OldFile:
    """A data file, and which of its rows are deleted. Positions are from 0.

    Attributes:
        location: as the table's metadata have it.
        path: on the filesystem.
        dead: positions of rows that are deleted already.
        first_row_id: the file's first row id, for rows that do not store their id.
        sequence_number: the file's data sequence number, for rows that do not store one.
        is_located: whether the following are known, so that no key is read.
        in_file, in_source: pairs of positions of the rows that a source may update.
        gone: positions of rows to delete.
        size: of the file, in bytes, by which files are distributed over tasks.
        constants: values of columns that it may lack.
    """

    location: str
    path: str
    dead: pa.Int64Array = field(default_factory=lambda: NO_ROWS)
    first_row_id: int | None = None
    sequence_number: int | None = None
    is_located: bool = False
    in_file: pa.Int64Array = field(default_factory=lambda: NO_ROWS)
    in_source: pa.Int64Array = field(default_factory=lambda: NO_ROWS)
    gone: pa.Int64Array = field(default_factory=lambda: NO_ROWS)
    size: int = 0
    constants: Constants = ()


OLD_FILES = pa.schema(
    [
        ("location", pa.string()),
        ("path", pa.string()),
        ("dead", pa.list_(pa.int64())),
        ("first_row_id", pa.int64()),
        ("sequence_number", pa.int64()),
        ("is_located", pa.bool_()),
        *((name, pa.list_(pa.int64())) for name in ("in_file", "in_source", "gone")),
        ("size", pa.int64()),
        ("constants", CONSTANTS),
    ]
)


def row_numbers(count: int) -> pa.Int64Array:
    """Return 0 to `count` - 1. A cluster's PyArrow may be too old for `arange` (version 21)."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(1, count)), 1)


def read_rows(
    parquet: pq.ParquetFile,
    schema: pa.Schema,
    group: int | None = None,
    known: pa.Table | None = None,
) -> pa.Table:
    """Read columns with the table's current names and types, matched by field id.

    Args:
        parquet: the file.
        schema: the columns, with field ids.
        group: the row group; None for all.
        known: those columns that were read before; None for none.

    Raises:
        ColumnError: the file has a value that the table's type does not include.
    """
    if known is not None:
        unread = [field for field in schema if field.name not in known.column_names]
        others = read_rows(parquet, pa.schema(unread), group)
        columns = [(known if n in known.column_names else others)[n] for n in schema.names]
        return pa.Table.from_arrays(columns, schema=schema)
    groups = list(range(parquet.metadata.num_row_groups)) if group is None else [group]
    if names := stored_names(parquet, schema):
        return project(parquet.read_row_groups(groups, columns=names), schema)
    # All columns were added after the file was written.
    count = sum(parquet.metadata.row_group(g).num_rows for g in groups)
    return project(pa.table({"": row_numbers(count)}), schema)


def stored_names(parquet: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    """Return the names of a schema's columns in a file, of those that it has.

    Args:
        parquet: the file.
        schema: the columns, with field ids.
    """
    ids = set(map(field_id, schema))
    return [field.name for field in parquet.schema_arrow if field_id(field) in ids]


def read_with_lineage(
    parquet: pq.ParquetFile,
    schema: pa.Schema,
    file: OldFile,
    group: int,
    begin: int,
    known: pa.Table | None = None,
) -> pa.Table:
    """Read a row group, with the row ids and sequence numbers that rows inherit from their file.

    Args:
        parquet: the file.
        schema: the columns, with field ids; in format version 3 with those of row lineage.
        file: describes the file.
        group: the row group.
        begin: position of its first row.
        known: as for `read_rows`.

    Raises:
        ColumnError: the file has a value that the table's type does not include.
    """
    rows = read_rows(parquet, schema, group, known)
    if ROW_ID not in schema.names or file.first_row_id is None:
        return rows
    inherited = {
        ROW_ID: pc.add(row_numbers(rows.num_rows), file.first_row_id + begin),
        LAST_UPDATED: pa.repeat(pa.scalar(file.sequence_number, pa.int64()), rows.num_rows),
    }
    for name, values in inherited.items():
        index = schema.get_field_index(name)
        rows = rows.set_column(index, schema.field(name), pc.coalesce(rows[name], values))
    return rows


def live_rows(parquet: pq.ParquetFile, schema: pa.Schema, file: OldFile) -> Iterator[pa.Table]:
    """Read a data file without its deleted rows, row group by row group.

    Args:
        parquet: the file.
        schema: the columns, with field ids; in format version 3 with those of row lineage.
        file: describes the file.

    Raises:
        ColumnError: the file has a value that the table's type does not include.
    """
    begin, schema = 0, with_constants(schema, file.constants)
    for group in range(parquet.metadata.num_row_groups):
        count = parquet.metadata.row_group(group).num_rows
        positions = pc.add(row_numbers(count), begin)
        mask = pc.invert(pc.is_in(positions, value_set=file.dead))
        if pc.any(mask).as_py():
            yield read_with_lineage(parquet, schema, file, group, begin).filter(mask)
        begin += count


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table; PyArrow's own cannot have nested columns of UUIDs.

    Args:
        schema: of the table.
    """
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def require_ids(parquet: pq.ParquetFile) -> None:
    """Check that all columns and nested fields of a file have ids.

    Args:
        parquet: the file.

    Raises:
        NotByRewriting: one has none.
    """
    for column in parquet.schema_arrow:
        if None in (field_id(column), *(number for _, number in nested_ids(column))):
            raise NotByRewriting("a file of the table has no field ids")
