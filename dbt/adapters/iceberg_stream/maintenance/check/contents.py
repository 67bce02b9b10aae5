"""Checks the contents of Parquet files against their manifest entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import NestedField

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.check.file_schema import check_file_schema, has_ids
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.schemas import TableSchemas
from dbt.adapters.iceberg_stream.maintenance.check.values import (
    bound_value,
    comparable,
    holds_nan,
    is_bound,
    partition_value,
)
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id, nested_ids

BATCH_ROWS = 100_000
# OverflowError: Python has no dates before the year 1 and after 9999.
UNSUPPORTED = (
    NotImplementedError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    pa.ArrowException,
)


@dataclass
class _Column:
    """Statistics of one column's actual values; see `values.comparable` for the bounds."""

    lower: Any = None
    upper: Any = None
    nulls: int = 0
    nans: int = 0
    rows: int = 0
    partitions: dict[int, set[Any]] = field(default_factory=dict)

    def add(self, values: pa.Array) -> None:
        """Add values."""
        self.rows += len(values)
        self.nulls += values.null_count
        converted = comparable(values)
        if converted is None:
            return
        if pa.types.is_floating(converted.type):
            nan = pc.fill_null(pc.is_nan(converted), False)
            self.nans += pc.sum(nan).as_py() or 0
            converted = converted.filter(pc.invert(nan))
        if len(converted) == converted.null_count:
            return
        extremes = pc.min_max(converted).as_py()
        low, high = extremes["min"], extremes["max"]
        self.lower = low if self.lower is None else min(self.lower, low)
        self.upper = high if self.upper is None else max(self.upper, high)


def check_contents(
    io: FileIO, metadata: Metadata, schemas: TableSchemas, file: DataFile
) -> Iterator[Finding]:
    """Read a file, and check its rows, counts, bounds, partition and order.

    Args:
        io: the table's FileIO.
        metadata: table metadata.
        schemas: the table's schemas.
        file: the file's descriptor.
    """
    where = file.file_path
    if file.file_format != FileFormat.PARQUET:
        if file.file_format != FileFormat.PUFFIN:
            yield Finding("not-checked", where, f"{file.file_format} files are not read.")
        return
    try:
        with io.new_input(where).open() as stream, pq.ParquetFile(stream) as parquet:
            yield from _check_parquet(metadata, schemas, file, parquet)
    except FileNotFoundError:
        return  # reported as missing
    except (OSError, pa.ArrowException) as error:
        yield Finding("unreadable-file", where, f"It cannot be read as a Parquet file: {error}")


def _check_parquet(
    metadata: Metadata, schemas: TableSchemas, file: DataFile, parquet: pq.ParquetFile
) -> Iterator[Finding]:
    where = file.file_path
    if parquet.metadata.num_rows != file.record_count:
        yield Finding(
            "row-count",
            where,
            f"It has {parquet.metadata.num_rows} rows; its manifest says {file.record_count}.",
        )
    yield from _split_offsets(file, parquet)
    mismatches = list(check_file_schema(metadata, schemas, file, parquet.schema_arrow))
    yield from mismatches
    if mismatches or not has_ids(parquet.schema_arrow):
        return  # Values cannot be compared with columns that are not theirs.
    paths = _paths(parquet.schema_arrow)
    if missing := [i for i in file.equality_ids or [] if i not in paths]:
        yield Finding("equality-column", where, f"It lacks the key columns with the ids {missing}.")
    spec = schemas.specs.get(file.spec_id)
    fields = list(spec.fields) if spec and file.content == DataFileContent.DATA else []
    columns = {identifier: _Column() for identifier in paths}
    unsupported: set[str] = set()
    for batch in parquet.iter_batches(batch_size=BATCH_ROWS):
        for identifier, path in paths.items():
            columns[identifier].add(_values(batch, path))
        for number, partition_field in enumerate(fields):
            _add_partition(schemas, number, partition_field, batch, paths, columns, unsupported)
    for name in sorted(unsupported):
        yield Finding("not-checked", where, f"Values of the partition field `{name}`.")
    yield from _absent(schemas, file, parquet.schema_arrow)
    for identifier, column in columns.items():
        yield from _metrics(schemas.fields.get(identifier), identifier, file, column)
        if file.content == DataFileContent.DATA and len(paths[identifier]) == 1:
            yield from _required(schemas.fields.get(identifier), file, column)
    yield from _partition(schemas, file, fields, columns)
    yield from _order(metadata, schemas, file, parquet, paths)


def _paths(schema: pa.Schema) -> dict[int, tuple[str, ...]]:
    """Return the paths of leaf columns outside lists and maps, by field id."""
    paths: dict[int, tuple[str, ...]] = {}
    pending: list[tuple[tuple[str, ...], pa.Field]] = [((field.name,), field) for field in schema]
    while pending:
        path, field = pending.pop()
        if pa.types.is_struct(field.type):
            pending += [((*path, child.name), child) for child in field.type.fields]
        elif not pa.types.is_nested(field.type) and (identifier := field_id(field)) is not None:
            paths[identifier] = path
    return dict(sorted(paths.items()))


def _values(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    values = batch.column(batch.schema.get_field_index(path[0]))
    for name in path[1:]:
        values = values.flatten()[values.type.get_field_index(name)]
    return values


def _split_offsets(file: DataFile, parquet: pq.ParquetFile) -> Iterator[Finding]:
    offsets = list(file.split_offsets or [])
    if not offsets or not parquet.metadata.num_columns:
        return
    starts = set()
    for number in range(parquet.metadata.num_row_groups):
        first = parquet.metadata.row_group(number).column(0)
        dictionary = first.dictionary_page_offset
        starts.add(min(first.data_page_offset, dictionary or first.data_page_offset))
    if offsets != sorted(offsets) or not starts.issuperset(offsets):
        yield Finding(
            "split-offsets",
            file.file_path,
            f"Its split offsets {offsets[:3]} are not where its row groups begin.",
        )


def _metrics(
    column: NestedField | None, identifier: int, file: DataFile, actual: _Column
) -> Iterator[Finding]:
    name = f"`{column.name}`" if column else f"field {identifier}"
    for metric, counted, number in (
        ("values", file.value_counts, actual.rows),
        ("nulls", file.null_value_counts, actual.nulls),
        ("NaN values", file.nan_value_counts, actual.nans),
    ):
        count = (counted or {}).get(identifier)
        if count is not None and count != number:
            yield Finding(
                "value-counts", file.file_path, f"{name} has {number} {metric}, not {count}."
            )
    if column is None:
        return
    for side, bounds in (("lower", file.lower_bounds), ("upper", file.upper_bounds)):
        raw = (bounds or {}).get(identifier)
        if raw is not None and not is_bound(column.field_type, raw):
            yield Finding(
                "bounds",
                file.file_path,
                f"The {side} bound of {name} has {len(raw)} bytes, too few or too many "
                f"for the type {column.field_type}.",
            )
    if actual.lower is None:
        return
    lower = bound_value(column.field_type, (file.lower_bounds or {}).get(identifier))
    upper = bound_value(column.field_type, (file.upper_bounds or {}).get(identifier))
    if lower is not None and lower > actual.lower:
        yield Finding(
            "bounds", file.file_path, f"The lower bound of {name} is above a value of the file."
        )
    if upper is not None and upper < actual.upper:
        yield Finding(
            "bounds", file.file_path, f"The upper bound of {name} is below a value of the file."
        )


def _absent(schemas: TableSchemas, file: DataFile, schema: pa.Schema) -> Iterator[Finding]:
    """Check the metrics of columns that a file does not have: readers find nulls in them."""
    present = {i for f in schema for i in (field_id(f), *(i for _, i in nested_ids(f)))}
    bounds = {*(file.lower_bounds or {}), *(file.upper_bounds or {})}
    nulls = file.null_value_counts or {}
    for identifier in sorted({*bounds, *nulls} - present):
        column = schemas.fields.get(identifier)
        is_null = identifier not in bounds and nulls[identifier] == file.record_count
        if column is not None and not is_null:
            yield Finding(
                "value-counts",
                file.file_path,
                f"The manifest has values of `{column.name}`, but the file has no such column.",
            )


def _required(column: NestedField | None, file: DataFile, actual: _Column) -> Iterator[Finding]:
    """Check a column of the table; a required field is null where its struct is."""
    if column is not None and column.required and actual.nulls:
        yield Finding(
            "null-in-required",
            file.file_path,
            f"`{column.name}` is required and has {actual.nulls} nulls.",
        )


def _add_partition(
    schemas: TableSchemas,
    number: int,
    partition_field: PartitionField,
    batch: pa.RecordBatch,
    paths: Mapping[int, tuple[str, ...]],
    columns: dict[int, _Column],
    unsupported: set[str],
) -> None:
    source = schemas.fields.get(partition_field.source_id)
    if (
        isinstance(partition_field.transform, VoidTransform)
        or source is None
        or partition_field.source_id not in paths
    ):
        return
    values = _values(batch, paths[partition_field.source_id])
    if holds_nan(values):
        return
    try:
        transformed = partition_field.transform.pyarrow_transform(source.field_type)(values)
        distinct = {partition_value(v) for v in pc.unique(transformed).to_pylist()}
    except UNSUPPORTED:
        unsupported.add(partition_field.name)
        return
    columns[partition_field.source_id].partitions.setdefault(number, set()).update(distinct)


def _partition(
    schemas: TableSchemas,
    file: DataFile,
    fields: list[PartitionField],
    columns: Mapping[int, _Column],
) -> Iterator[Finding]:
    for number, partition_field in enumerate(fields):
        if number >= len(file.partition):
            yield Finding(
                "partition-value", file.file_path, f"It has no value for `{partition_field.name}`."
            )
            continue
        if partition_field.source_id not in columns:
            continue
        own = partition_value(file.partition[number])
        distinct = columns[partition_field.source_id].partitions.get(number, set())
        if other_values := distinct - {own}:
            yield Finding(
                "partition-value",
                file.file_path,
                f"It is in the partition {partition_field.name}={own!r}, but has rows of "
                f"{next(iter(other_values))!r}.",
            )


def _order(
    metadata: Metadata,
    schemas: TableSchemas,
    file: DataFile,
    parquet: pq.ParquetFile,
    paths: Mapping[int, tuple[str, ...]],
) -> Iterator[Finding]:
    """Check that a file with a sort order is sorted; transforms are not checked."""
    orders = {order["order-id"]: order for order in metadata.get("sort-orders") or []}
    if not file.sort_order_id or file.content != DataFileContent.DATA:
        return
    order = orders.get(file.sort_order_id)
    if order is None:
        yield Finding(
            "sort-order", file.file_path, f"Its sort order {file.sort_order_id} does not exist."
        )
        return
    sources = [sort_field.get("source-id") for sort_field in order["fields"]]
    untransformed = all(f["transform"] == "identity" for f in order["fields"])
    if (
        not sources
        or not untransformed
        or any(source not in paths or len(paths[source]) > 1 for source in sources)
    ):
        return
    rows = parquet.read([paths[source][0] for source in sources])
    ranks = []
    for sort_field in order["fields"]:
        values = comparable(rows[paths[sort_field["source-id"]][0]].combine_chunks())
        if values is None or holds_nan(values):
            return
        direction = "ascending" if sort_field["direction"].lower() == "asc" else "descending"
        rank = pc.rank(values, direction, tiebreaker="dense").to_numpy().astype(np.int64)
        if sort_field["null-order"] == "nulls-first":
            rank[values.is_null().to_numpy(zero_copy_only=False)] = 0
        ranks.append(rank)
    if not _is_sorted(ranks):
        yield Finding(
            "sort-order",
            file.file_path,
            f"It has the sort order {file.sort_order_id}, but its rows are not sorted by it.",
        )


def _is_sorted(ranks: list[np.ndarray[Any, Any]]) -> bool:
    equal = np.ones(max(len(ranks[0]) - 1, 0), dtype=bool)
    for rank in ranks:
        steps = np.diff(rank)
        if np.any(equal & (steps < 0)):
            return False
        equal &= steps == 0
    return True
