"""Reads columns of a data file as a schema that is newer, older or another table's.

Columns and nested fields are matched by field id (spec, "Column Projection").
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import (
    ColumnError,
    list_offsets,
    null_mask,
    unencoded_type,
)
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id


def project(
    rows: pa.Table, schema: Schema, partition: dict[int, Any] | None = None
) -> list[pa.ChunkedArray]:
    """Return the columns of a schema.

    Args:
        rows: rows of a file, with its field ids.
        schema: the columns, all of them and all their nested fields optional.
        partition: values of columns that the file may lack, by field id.

    Returns:
        The columns; absent ones have the partition's value, the initial default, or are null.

    Raises:
        ColumnError: the file has a value that a column's type does not include.
    """
    own = {field_id(field): index for index, field in enumerate(rows.schema)}
    columns = []
    for field, target in zip(schema.fields, file_schema(schema), strict=True):
        if field.field_id in own:
            index = own[field.field_id]
            kind = rows.schema.field(index).type
            chunks = [
                _project(chunk, kind, field.field_type, target.type, field.name)
                for chunk in rows.column(index).chunks
            ]
        else:
            value = (partition or {}).get(field.field_id, field.initial_default)
            chunks = [constant(value, target.type, rows.num_rows)]
        columns.append(pa.chunked_array(chunks, target.type))
    return columns


def constant(value: Any, kind: pa.DataType, length: int) -> pa.Array:
    """Return an array of one value.

    Args:
        value: as PyIceberg has it; None for nulls.
        kind: type of the array.
        length: of the array.
    """
    if value is None:
        return pa.nulls(length, kind)
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    raw = getattr(value, "bytes", value) if storage != kind else value
    return pa.repeat(pa.scalar(raw, storage), length).cast(kind)


def _project(
    array: pa.Array, kind: pa.DataType, wanted: IcebergType, target: pa.DataType, name: str
) -> pa.Array:
    """Convert an array; `kind` has the file's field ids, and `wanted` those of the schema."""
    if isinstance(wanted, StructType) and pa.types.is_struct(kind):
        return _struct(array, kind, wanted, target, name)
    if isinstance(wanted, ListType) and not pa.types.is_map(kind) and pa.types.is_nested(kind):
        elements = _project(
            array.flatten(), kind.value_type, wanted.element_type, target.value_type, name
        )
        return pa.ListArray.from_arrays(
            list_offsets(array), elements, type=target, mask=null_mask(array)
        )
    if isinstance(wanted, MapType) and pa.types.is_map(kind):
        return _map(array, kind, wanted, target, name)
    if array.type == target:
        return array
    try:
        storage = target.storage_type if isinstance(target, pa.BaseExtensionType) else target
        return array.cast(unencoded_type(array.type)).cast(storage).cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ColumnError(name, f"is {array.type} in a file, not {target}: {error}") from error


def _struct(
    array: pa.StructArray, kind: pa.StructType, wanted: StructType, target: pa.StructType, name: str
) -> pa.StructArray:
    own = {field_id(kind.field(i)): i for i in range(kind.num_fields)}
    children = array.flatten()
    columns = []
    for field, into in zip(wanted.fields, target.fields, strict=True):
        columns.append(_child(field, into, own, children, kind, len(array), name))
    return pa.StructArray.from_arrays(columns, fields=target.fields, mask=null_mask(array))


def _child(
    field: NestedField,
    target: pa.Field,
    own: dict[int | None, int],
    children: list[pa.Array],
    kind: pa.StructType,
    length: int,
    name: str,
) -> pa.Array:
    if field.field_id not in own:
        return constant(field.initial_default, target.type, length)
    index = own[field.field_id]
    path = f"{name}.{field.name}"
    return _project(children[index], kind.field(index).type, field.field_type, target.type, path)


def _map(
    array: pa.MapArray, kind: pa.MapType, wanted: MapType, target: pa.MapType, name: str
) -> pa.MapArray:
    key, value = kind.key_field.with_name("key"), kind.item_field.with_name("value")
    listed = array.cast(pa.list_(pa.struct([key, value])))
    keys, values = listed.flatten().flatten()
    keys = _project(keys, kind.key_type, wanted.key_type, target.key_type, f"{name}.key")
    values = _project(values, kind.item_type, wanted.value_type, target.item_type, f"{name}.value")
    return pa.MapArray.from_arrays(
        list_offsets(listed), keys, values, type=target, mask=null_mask(array)
    )
