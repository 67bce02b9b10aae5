"""Rows by partition (spec, "Partitioning"): what each file may hold together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, VoidTransform
from pyiceberg.typedef import Record

from dbt.adapters.iceberg_stream.tables.files.casting import stored_values

NAME = "partition {}"


@dataclass(frozen=True)
class StoredPartition(PartitionKey):
    """A partition by the values that manifests hold: times as numbers since 1970, UUIDs as bytes.

    PyIceberg's own goes by the type of the column, of which the transform's result may have
    another one, and by one field of each column.
    """

    @cached_property
    def partition(self) -> Record:
        return Record(*(each.value for each in self.field_values))

    @cached_property
    def exact(self) -> tuple[str, ...]:
        """Equal for equal values only: NaN is NaN, and 0.0 is not -0.0."""
        return tuple(repr(each.value) for each in self.field_values)


def partition_key(spec: PartitionSpec, schema: Schema, values: Sequence[Any]) -> StoredPartition:
    """The partition with such values, as manifests hold them, in the order of the spec's fields."""
    fields = zip(spec.fields, values, strict=True)
    return StoredPartition([PartitionFieldValue(f, value) for f, value in fields], spec, schema)


def split(
    rows: pa.Table, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[StoredPartition | None, pa.Table]]:
    """The rows of each partition, in the order they came in; None of an unpartitioned table."""
    if spec.is_unpartitioned():
        yield None, rows
        return
    names = [NAME.format(number) for number in range(len(spec.fields))]
    keys = pa.table([partition_values(rows, field, schema) for field in spec.fields], names=names)
    ordered = keys.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    for name in names:
        column = ordered.schema.get_field_index(name)
        ordered = ordered.set_column(column, name, _sortable(ordered[name]))
    order = pc.sort_indices(ordered, [(name, "ascending") for name in [*names, "row"]])
    ordered, keys = ordered.take(order), keys.take(order)
    begins = [*_begins(ordered.select(names)), rows.num_rows]
    for begin, end in zip(begins, begins[1:], strict=False):
        values = [keys[name][begin].as_py() for name in names]
        # A copy: a slice would keep all the other partitions' rows in memory.
        yield (
            partition_key(spec, schema, values),
            rows.take(ordered["row"].slice(begin, end - begin)),
        )


def partition_values(rows: pa.Table, field: PartitionField, schema: Schema) -> pa.ChunkedArray:
    """A partition field's value of each row, as manifests hold it."""
    column = schema.find_column_name(field.source_id)
    if column is None or isinstance(field.transform, VoidTransform):
        return pa.chunked_array([pa.nulls(rows.num_rows, pa.int32())])
    head, *rest = [column] if column in rows.column_names else column.split(".")
    source = rows[head].combine_chunks()
    values = pc.struct_field(source, rest) if rest else source
    return pa.chunked_array([stored_values(transformed(values, field, schema))])


def transformed(values: pa.Array, field: PartitionField, schema: Schema) -> pa.Array:
    """Values of a partition field's column after its transform (spec, "Partition Transforms")."""
    if isinstance(field.transform, IdentityTransform):
        return values
    kind = schema.find_type(field.source_id)
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        # All of them go by the microsecond before.
        numbers = values.cast(pa.int64())
        micros = pc.subtract(pc.divide(numbers, 1000), pc.cast(_rest(numbers), pa.int64()))
        values = micros.cast(pa.timestamp("us", values.type.tz))
    if isinstance(field.transform, BucketTransform) and pa.types.is_time(values.type):
        # The hash is that of the number.
        values = values.cast(pa.int64())
    return field.transform.pyarrow_transform(kind)(values)


def _rest(numbers: pa.Array) -> pa.BooleanArray:
    """Where a division by 1000, which goes towards 0, has left something below 0."""
    whole = pc.multiply(pc.divide(numbers, 1000), 1000)
    return pc.less(numbers, whole)


def _sortable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floating-point numbers by their bits: each NaN is the same, and 0.0 is not -0.0."""
    if not pa.types.is_floating(values.type):
        return values
    same = pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), values)
    bits = pa.int32() if values.type == pa.float32() else pa.int64()
    return pa.chunked_array([same.combine_chunks().view(bits)])


def _begins(keys: pa.Table) -> list[int]:
    """Rows of sorted keys whose key is not that of the row before."""
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
