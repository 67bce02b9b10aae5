"""Reads columns of a data file as a schema that is newer, older or another table's.

Columns and nested fields are matched by field id (spec, "Column Projection"). Worker code: the
standard library, PyArrow and other worker code.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.tables.files.casting import (
    ColumnError,
    convert_values,
    list_offsets,
    null_mask,
    nulls,
    without_nulls,
)
from dbt.adapters.iceberg_stream.tables.files.field_ids import DEFAULT, field_id

# Encoded values of columns that a file may lack, by field id.
Constants = Sequence[tuple[int, bytes]]
# The encoded value of a column that is null.
NULL = b""


def project(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema.

    Args:
        rows: rows of a file, with its field ids.
        schema: the columns, with field ids and initial defaults; see `arrow_types.file_schema`.

    Returns:
        The columns; absent ones have the initial default, or are null.

    Raises:
        ColumnError: the file has a value that a column's type does not include.
    """
    own = {field_id(field): index for index, field in enumerate(rows.schema)}
    columns = []
    for field in schema:
        number = field_id(field)
        if (index := own.get(number)) is not None:
            kind = rows.schema.field(index).type
            chunks = [_required(_project(c, kind, field), field) for c in rows.column(index).chunks]
        else:
            chunks = [_required(_absent(field, rows.num_rows), field)]
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


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


def encoded_default(value: Any, kind: pa.DataType) -> bytes:
    """Return an initial default for the metadata of a field.

    Args:
        value: as PyIceberg has it.
        kind: type of the field.
    """
    column = constant(value, kind, 1)
    stored = column.storage if isinstance(column, pa.ExtensionArray) else column
    batch = pa.record_batch([stored], ["default"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    # Clients of schemas take metadata for text.
    return base64.b64encode(sink.getvalue())


def encoded_constant(value: Any, kind: pa.DataType) -> bytes:
    """Return a value of Constants.

    Args:
        value: as PyIceberg has it; None for a null.
        kind: type of the column.
    """
    return NULL if value is None else encoded_default(value, kind)


def with_constants(schema: pa.Schema, constants: Constants) -> pa.Schema:
    """Return a schema whose columns have other values than the initial default where absent.

    Args:
        schema: with field ids.
        constants: the values.
    """
    if not constants:
        return schema
    values = dict(constants)

    def fitted(field: pa.Field) -> pa.Field:
        metadata = dict(field.metadata or {})
        if (value := values.get(field_id(field) or 0)) is not None:
            metadata.pop(DEFAULT, None)
            metadata |= {DEFAULT: value} if value != NULL else {}
        kind = field.type
        if pa.types.is_struct(kind):
            kind = pa.struct([fitted(kind.field(number)) for number in range(kind.num_fields)])
        return field.with_type(kind).with_metadata(metadata)

    return pa.schema(map(fitted, schema))


def without_defaults(schema: pa.Schema) -> pa.Schema:
    """Return a schema without initial defaults: what a file lacks is null.

    Args:
        schema: with initial defaults.
    """

    def without(field: pa.Field) -> pa.Field:
        others = {key: value for key, value in field.metadata.items() if key != DEFAULT}
        return field.with_metadata(others)

    return pa.schema(map(without, schema))


def _absent(field: pa.Field, length: int) -> pa.Array:
    """Return the values of a field in rows that are older than it."""
    encoded = (field.metadata or {}).get(DEFAULT)
    if encoded is None:
        return nulls(length, field.type)
    stream = pa.ipc.open_stream(base64.b64decode(encoded))
    default = stream.read_next_batch().column(0)[0]
    return pa.repeat(default, length).cast(field.type)


def _required(values: pa.Array, field: pa.Field, absent: pa.Array | None = None) -> pa.Array:
    """Return values; raise ColumnError if the field is required and one is null.

    Where the struct of a required field is `absent`, the field has some value.
    """
    if field.nullable or not values.null_count:
        return values
    missing = values.is_null() if absent is None else pc.and_not(values.is_null(), absent)
    if pc.any(missing).as_py():
        raise ColumnError(field.name, "is missing or null in a file, but the table requires it")
    return without_nulls(values)


def _project(array: pa.Array, kind: pa.DataType, field: pa.Field) -> pa.Array:
    """Convert an array; `kind` has the file's field ids, and `field` those of the schema."""
    target = field.type
    if kind.equals(target, check_metadata=True):
        return array
    if pa.types.is_struct(target) and pa.types.is_struct(kind):
        return _struct(array, kind, field)
    if pa.types.is_map(target) and pa.types.is_map(kind):
        return _map(array, kind, target)
    if pa.types.is_list(target) and pa.types.is_nested(kind) and hasattr(kind, "value_field"):
        element = target.value_field
        elements = _required(_project(array.flatten(), kind.value_type, element), element)
        return pa.ListArray.from_arrays(
            list_offsets(array), elements, type=target, mask=null_mask(array)
        )
    if pa.types.is_date(kind) and pa.types.is_timestamp(target):
        return array.cast(target)  # for files only: a user's dates are refused
    return convert_values(array, target, field.name)


def _struct(array: pa.StructArray, kind: pa.StructType, field: pa.Field) -> pa.StructArray:
    own = {field_id(kind.field(i)): i for i in range(kind.num_fields)}
    children, absent = array.flatten(), null_mask(array)
    fields = [field.type.field(number) for number in range(field.type.num_fields)]
    columns = []
    for child in fields:
        if (index := own.get(field_id(child))) is None:
            values = _absent(child, len(array))
        else:
            values = _project(children[index], kind.field(index).type, child)
        columns.append(_required(values, child, absent))
    return pa.StructArray.from_arrays(columns, fields=fields, mask=absent)


def _map(array: pa.MapArray, kind: pa.MapType, target: pa.MapType) -> pa.MapArray:
    key, value = kind.key_field.with_name("key"), kind.item_field.with_name("value")
    listed = array.cast(pa.list_(pa.struct([key, value])))
    keys, values = listed.flatten().flatten()
    keys = _project(keys, kind.key_type, target.key_field)
    values = _required(_project(values, kind.item_type, target.item_field), target.item_field)
    return pa.MapArray.from_arrays(
        list_offsets(listed), keys, values, type=target, mask=null_mask(array)
    )
