"""Give rows the defaults of the columns and nested fields that they lack.

Iceberg spec, "Default values": `write-default` is for writers that do not supply a value.
"""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from dbt.adapters.iceberg_stream.tables.files.casting import list_offsets, null_mask
from dbt.adapters.iceberg_stream.tables.files.projection import constant


def with_write_defaults(
    batch: pa.RecordBatch, schema: Schema, file_schema: pa.Schema
) -> pa.RecordBatch:
    """Return rows with the columns and nested fields that they lack and that have a default.

    Args:
        batch: the rows; a null is a value, and a null struct gets no fields.
        schema: of the table.
        file_schema: of its files.
    """
    for field in schema.fields:
        kind = file_schema.field(field.name).type
        if field.name in batch.schema.names:
            # There is no index if the name occurs twice, which `conform` refuses.
            index = batch.schema.get_field_index(field.name)
            if index >= 0 and _has_defaults(field.field_type):
                filled = _filled(batch.column(index), field.field_type, kind)
                batch = batch.set_column(index, field.name, filled)
        elif field.write_default is not None:
            default = constant(field.write_default, kind, batch.num_rows)
            batch = batch.append_column(field.name, default)
    return batch


def _filled(array: pa.Array, kind: IcebergType, target: pa.DataType) -> pa.Array:
    if not _has_defaults(kind):
        return array
    if isinstance(kind, StructType) and pa.types.is_struct(array.type):
        return _filled_struct(array, kind, target)
    if isinstance(kind, ListType) and pa.types.is_list(array.type):
        elements = _filled(array.flatten(), kind.element_type, target.value_type)
        return pa.ListArray.from_arrays(list_offsets(array), elements, mask=null_mask(array))
    if isinstance(kind, MapType) and pa.types.is_map(array.type):
        key, value = array.type.key_field.with_name("key"), array.type.item_field.with_name("value")
        listed = array.cast(pa.list_(pa.struct([key, value])))
        keys, values = listed.flatten().flatten()
        values = _filled(values, kind.value_type, target.item_type)
        return pa.MapArray.from_arrays(list_offsets(listed), keys, values, mask=null_mask(array))
    return array


def _filled_struct(array: pa.StructArray, kind: StructType, target: pa.StructType) -> pa.Array:
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    if len(names) != len(set(names)):
        return array  # `conform` refuses them
    children = dict(zip(names, array.flatten(), strict=True))
    for field in kind.fields:
        wanted = target.field(field.name).type
        if field.name in children:
            children[field.name] = _filled(children[field.name], field.field_type, wanted)
        elif field.write_default is not None:
            children[field.name] = constant(field.write_default, wanted, len(array))
    return pa.StructArray.from_arrays(
        list(children.values()), names=list(children), mask=null_mask(array)
    )


def _has_defaults(kind: IcebergType) -> bool:
    """Return whether a field within a type has a default."""
    if isinstance(kind, ListType):
        return _has_defaults(kind.element_type)
    if isinstance(kind, MapType):
        return _has_defaults(kind.value_type)
    if not isinstance(kind, StructType):
        return False
    return any(f.write_default is not None or _has_defaults(f.field_type) for f in kind.fields)
