"""Rows by partition (spec, "Partitioning"): what each file may hold together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform

from dbt.adapters.iceberg_stream.files.casting import ColumnError

NAME = "partition {}"


def split(
    rows: pa.Table, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """The rows of each partition, in the order they came in; None of an unpartitioned table."""
    if spec.is_unpartitioned():
        yield None, rows
        return
    _require_one_field_a_column(spec, schema)
    names = [NAME.format(number) for number in range(len(spec.fields))]
    keys = pa.table([_values(rows, field, schema) for field in spec.fields], names=names)
    ordered = keys.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    ordered = ordered.sort_by([(name, "ascending") for name in [*names, "row"]])
    begins = [*_begins(ordered.select(names)), rows.num_rows]
    for begin, end in zip(begins, begins[1:], strict=False):
        found = [ordered[name][begin].as_py() for name in names]
        values = [PartitionFieldValue(f, v) for f, v in zip(spec.fields, found, strict=True)]
        # A copy: a slice would keep all the other partitions' rows in memory.
        yield (
            PartitionKey(values, spec, schema),
            rows.take(ordered["row"].slice(begin, end - begin)),
        )


def _require_one_field_a_column(spec: PartitionSpec, schema: Schema) -> None:
    sources = [field.source_id for field in spec.fields]
    if twice := {source for source in sources if sources.count(source) > 1}:
        name = schema.find_column_name(min(twice)) or "?"
        raise ColumnError(name, "partitions the table in two ways: write to it by SQL")


def _values(rows: pa.Table, field: PartitionField, schema: Schema) -> pa.ChunkedArray:
    column = schema.find_column_name(field.source_id)
    if column is None or isinstance(field.transform, VoidTransform):
        return pa.chunked_array([pa.nulls(rows.num_rows, pa.int32())])
    head, *rest = [column] if column in rows.column_names else column.split(".")
    source = rows[head].combine_chunks()
    values = pc.struct_field(source, rest) if rest else source
    transformed = field.transform.pyarrow_transform(schema.find_type(field.source_id))(values)
    return pa.chunked_array([transformed])


def _begins(keys: pa.Table) -> list[int]:
    """Rows of sorted keys whose key is not that of the row before."""
    if not keys.num_rows:
        return []
    changed: Any = None
    for column in keys.columns:
        values = column.combine_chunks()
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        now, before = values.slice(1), values.slice(0, len(values) - 1)
        different = pc.fill_null(pc.not_equal(now, before), False)
        different = pc.or_(different, pc.xor(now.is_null(), before.is_null()))
        changed = different if changed is None else pc.or_(changed, different)
    return [0, *(pc.add(pc.indices_nonzero(changed), 1)).to_pylist()]
