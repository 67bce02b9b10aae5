"""Splits rows by partition (spec, "Partitioning")."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, VoidTransform
from pyiceberg.typedef import Record

from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError, stored_values

NAME = "partition {}"


@dataclass(frozen=True)
class StoredPartition(PartitionKey):
    """A partition with values as manifests store them: times since 1970, UUIDs as bytes.

    PyIceberg's PartitionKey converts values by the column's type, but a transform's result may
    have another type; and it supports only one partition field per column.
    """

    @cached_property
    def partition(self) -> Record:
        """The values as a record."""
        return Record(*(field.value for field in self.field_values))

    def to_path(self) -> str:
        """Return the folder of the partition's files."""
        try:
            return super().to_path()
        except OverflowError:
            # Python has no dates before the year 1 and after 9999. Readers do not parse the path.
            pairs = ((f.field.name, f.value) for f in self.field_values)
            return "/".join(f"{quote_plus(n)}={quote_plus(str(v))}" for n, v in pairs)

    @cached_property
    def exact(self) -> tuple[str, ...]:
        """A key that is equal for equal values only: NaN is NaN, and 0.0 is not -0.0."""
        return tuple(repr(field.value) for field in self.field_values)


def partition_key(spec: PartitionSpec, schema: Schema, values: Sequence[Any]) -> StoredPartition:
    """Return a partition.

    Args:
        spec: the partition spec.
        schema: the table's schema.
        values: as manifests store them, in the order of the spec's fields.
    """
    fields = zip(spec.fields, values, strict=True)
    return StoredPartition([PartitionFieldValue(f, value) for f, value in fields], spec, schema)


def split(
    rows: pa.Table, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[StoredPartition | None, pa.Table]]:
    """Split rows by partition.

    Args:
        rows: the rows.
        spec: the partition spec.
        schema: the table's schema.

    Yields:
        A partition and its rows, in their order; None and all rows if unpartitioned.
    """
    if spec.is_unpartitioned():
        yield None, rows
        return
    names = [NAME.format(number) for number in range(len(spec.fields))]
    keys = pa.table([partition_values(rows, field, schema) for field in spec.fields], names=names)
    ordered = keys.append_column("row", pa.arange(0, rows.num_rows))
    for name in names:
        column = ordered.schema.get_field_index(name)
        ordered = ordered.set_column(column, name, _sortable(ordered[name]))
    order = pc.sort_indices(ordered, [(name, "ascending") for name in [*names, "row"]])
    ordered, keys = ordered.take(order), keys.take(order)
    begins = [*_begins(ordered.select(names)), rows.num_rows]
    for begin, end in zip(begins, begins[1:], strict=False):
        values = [keys[name][begin].as_py() for name in names]
        # A copy, because a slice would hold the rows of all partitions in memory.
        yield (
            partition_key(spec, schema, values),
            rows.take(ordered["row"].slice(begin, end - begin)),
        )


def partition_values(rows: pa.Table, field: PartitionField, schema: Schema) -> pa.ChunkedArray:
    """Return each row's value of a partition field, as manifests store it.

    Args:
        rows: the rows.
        field: the partition field.
        schema: the table's schema.
    """
    column = schema.find_column_name(field.source_id)
    if column is None or isinstance(field.transform, VoidTransform):
        return pa.chunked_array([pa.nulls(rows.num_rows, pa.int32())])
    head, *nested_names = [column] if column in rows.column_names else column.split(".")
    source = rows[head].combine_chunks()
    values = pc.struct_field(source, nested_names) if nested_names else source
    return pa.chunked_array([stored_values(transformed(values, field, schema))])


def transformed(values: pa.Array, field: PartitionField, schema: Schema) -> pa.Array:
    """Apply a partition field's transform (spec, "Partition Transforms").

    Args:
        values: of the source column.
        field: the partition field.
        schema: the table's schema.

    Raises:
        ColumnError: a partition would be a string that is not UTF-8.
    """
    if pa.types.is_string(values.type) and not isinstance(field.transform, BucketTransform):
        _require_text(values, field.name)
    if isinstance(field.transform, IdentityTransform):
        return values
    kind = schema.find_type(field.source_id)
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        # All transforms use microseconds, rounded down.
        numbers = values.cast(pa.int64())
        micros = pc.subtract(
            pc.divide(numbers, 1000), pc.cast(_has_negative_remainder(numbers), pa.int64())
        )
        values = micros.cast(pa.timestamp("us", values.type.tz))
    if isinstance(field.transform, BucketTransform) and pa.types.is_time(values.type):
        # The hash of a time is that of its integer.
        values = values.cast(pa.int64())
    return field.transform.pyarrow_transform(kind)(values)


def _require_text(values: pa.Array, partition: str) -> None:
    """Check strings, which PyIceberg needs as Python's, and of which its transforms crash."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ColumnError(
            partition, f"partitions the table, and has a value that is not UTF-8: {error}"
        ) from error


def _has_negative_remainder(numbers: pa.Array) -> pa.BooleanArray:
    """Return where a division by 1000, which rounds towards 0, has a negative remainder."""
    multiple = pc.multiply(pc.divide(numbers, 1000), 1000)
    return pc.less(numbers, multiple)


def _sortable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floating-point numbers as their bits: all NaN are equal, and 0.0 is not -0.0."""
    if not pa.types.is_floating(values.type):
        return values
    canonical = pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), values)
    bits = pa.int32() if values.type == pa.float32() else pa.int64()
    return pa.chunked_array([canonical.combine_chunks().view(bits)])


def _begins(keys: pa.Table) -> list[int]:
    """Return the rows of sorted keys whose key differs from the row before."""
    if not keys.num_rows:
        return []
    changed: Any = None
    for column in keys.columns:
        values = column.combine_chunks()
        now, before = values.slice(1), values.slice(0, len(values) - 1)
        different = pc.fill_null(pc.not_equal(now, before), False)
        different = pc.or_(different, pc.xor(now.is_null(), before.is_null()))
        changed = different if changed is None else pc.or_(changed, different)
    return [0, *(pc.add(pc.indices_nonzero(changed), 1)).to_pylist()]
