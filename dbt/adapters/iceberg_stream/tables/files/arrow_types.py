"""Converts Arrow and Iceberg types (spec, "Schemas and Data Types", "Appendix A: Parquet")."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from dbt.adapters.iceberg_stream.tables.files.casting import (
    MAX_DECIMAL_DIGITS,
    ColumnError,
    unencoded_type,
)
from dbt.adapters.iceberg_stream.tables.files.field_ids import DEFAULT, FIELD_ID
from dbt.adapters.iceberg_stream.tables.files.projection import encoded_default


def new_schema(arrow: pa.Schema, format_version: int = 2) -> Schema:
    """Return the schema of a new table for data, with field ids from 1.

    All columns are optional: only the last batch would show that a column has no null.

    Args:
        arrow: schema of the data.
        format_version: of the table.

    Raises:
        ColumnError: the format version does not have the type of a column.
    """
    ids = itertools.count(1)
    return Schema(*_fields(list(arrow), ids, format_version, ""))


def added_fields(
    fields: list[pa.Field], last_column_id: int, format_version: int
) -> list[iceberg.NestedField]:
    """Return new columns of a table.

    Args:
        fields: the columns.
        last_column_id: the table's last assigned field id.
        format_version: of the table.

    Raises:
        ColumnError: the format version does not have the type of a column.
    """
    return list(_fields(fields, itertools.count(last_column_id + 1), format_version, ""))


def replaced_schema(
    current: Schema,
    arrow: pa.Schema,
    last_column_id: int,
    format_version: int,
    keeps: Callable[[iceberg.NestedField, iceberg.IcebergType], bool] = lambda *_: False,
) -> Schema:
    """Return the schema of data that replace all rows of a table.

    Columns of the same name and type keep their field ids, nested ones included. Identifier
    columns stay so if all of them are kept.

    Args:
        current: the table's current schema.
        arrow: schema of the data.
        last_column_id: the table's last assigned field id.
        format_version: of the table.
        keeps: whether a column keeps its current type, although the data have another one.

    Raises:
        ColumnError: the format version does not have the type of a column.
    """
    ids = itertools.count(last_column_id + 1)
    current_fields = {field.name: field for field in current.fields}
    fields = []
    for field in _fields(list(arrow), ids, format_version, ""):
        old = current_fields.get(field.name)
        kind = None if old is None else _with_ids_of(old.field_type, field.field_type)
        if old is not None and kind is None and keeps(old, field.field_type):
            kind = old.field_type
        if old is not None and kind is not None:
            field = old.model_copy(update={"required": False, "field_type": kind})
        fields.append(field)
    identifiers = set(current.identifier_field_ids)
    if not identifiers <= {field.field_id for field in fields}:
        return Schema(*fields)
    # Identifier columns must be required (spec, "Identifier Field IDs").
    required = [f.model_copy(update={"required": f.field_id in identifiers}) for f in fields]
    return Schema(*required, identifier_field_ids=current.identifier_field_ids)


def _with_ids_of(old: iceberg.IcebergType, new: iceberg.IcebergType) -> iceberg.IcebergType | None:
    """Return the new type with the old one's field ids; None if the types differ otherwise."""
    if isinstance(old, iceberg.StructType) and isinstance(new, iceberg.StructType):
        if [f.name for f in old.fields] != [f.name for f in new.fields]:
            return None
        fields = []
        for before, after in zip(old.fields, new.fields, strict=True):
            kind = _with_ids_of(before.field_type, after.field_type)
            if kind is None:
                return None
            fields.append(
                before.model_copy(update={"field_type": kind, "required": after.required})
            )
        return iceberg.StructType(*fields)
    if isinstance(old, iceberg.ListType) and isinstance(new, iceberg.ListType):
        kind = _with_ids_of(old.element_type, new.element_type)
        return kind and iceberg.ListType(old.element_id, kind, new.element_required)
    if isinstance(old, iceberg.MapType) and isinstance(new, iceberg.MapType):
        key = _with_ids_of(old.key_type, new.key_type)
        value = _with_ids_of(old.value_type, new.value_type)
        if key is None or value is None:
            return None
        return iceberg.MapType(old.key_id, key, old.value_id, value, new.value_required)
    return new if old == new else None


def _fields(
    fields: list[pa.Field], ids: Iterator[int], version: int, prefix: str
) -> Iterator[iceberg.NestedField]:
    names = [f.name for f in fields]
    if duplicates := {n for n in names if names.count(n) > 1}:
        raise ColumnError(prefix + min(duplicates), "occurs twice")
    lower = [name.lower() for name in names]
    if duplicates := {n for n in names if lower.count(n.lower()) > 1}:
        raise ColumnError(
            prefix + min(duplicates),
            "occurs twice, in another letter case: Spark could not read the table. Rename one",
        )
    # Iceberg numbers the fields of a struct before the fields nested in them.
    numbered = [(next(ids), field) for field in fields]
    for number, field in numbered:
        kind = _iceberg_type(field.type, ids, version, prefix + field.name)
        yield iceberg.NestedField(number, field.name, kind, required=False)


def _iceberg_type(
    kind: pa.DataType, ids: Iterator[int], version: int, column: str
) -> iceberg.IcebergType:
    kind = unencoded_type(kind)
    if pa.types.is_struct(kind):
        return iceberg.StructType(*_fields(list(kind), ids, version, f"{column}."))
    if pa.types.is_list(kind):
        number = next(ids)
        element = _iceberg_type(kind.value_type, ids, version, f"{column}.element")
        return iceberg.ListType(number, element, element_required=False)
    if pa.types.is_map(kind):
        key_id, value_id = next(ids), next(ids)
        key = _iceberg_type(kind.key_type, ids, version, f"{column}.key")
        value = _iceberg_type(kind.item_type, ids, version, f"{column}.value")
        return iceberg.MapType(key_id, key, value_id, value, value_required=False)
    return _primitive(kind, version, column)


def _primitive(kind: pa.DataType, version: int, column: str) -> iceberg.PrimitiveType:
    if pa.types.is_timestamp(kind):
        return _timestamp(kind, version)
    if pa.types.is_decimal(kind):
        if kind.precision > MAX_DECIMAL_DIGITS or not 0 <= kind.scale <= kind.precision:
            raise ColumnError(
                column,
                f"is {kind}: Iceberg's decimals have at most 38 digits, and a scale from 0 to "
                "the number of digits. Cast it to such a decimal",
            )
        return iceberg.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, pa.FixedSizeBinaryType):
        return iceberg.FixedType(kind.byte_width)
    if pa.types.is_null(kind):
        if version < 3:
            raise ColumnError(
                column, "has no type, because all its values are null: cast it to a type"
            )
        return iceberg.UnknownType()
    primitive = SIMPLE.get(kind)
    if primitive is None:
        raise ColumnError(
            column, f"is {kind}, which Iceberg does not have: cast it to another type"
        )
    return primitive


def _timestamp(kind: pa.TimestampType, version: int) -> iceberg.PrimitiveType:
    if kind.unit == "ns" and version >= 3:
        return iceberg.TimestamptzNanoType() if kind.tz else iceberg.TimestampNanoType()
    return iceberg.TimestamptzType() if kind.tz else iceberg.TimestampType()


# Iceberg's primitive types by Arrow's, after `unencoded_type`.
SIMPLE: dict[pa.DataType, iceberg.PrimitiveType] = {
    pa.bool_(): iceberg.BooleanType(),
    pa.int8(): iceberg.IntegerType(),
    pa.int16(): iceberg.IntegerType(),
    pa.int32(): iceberg.IntegerType(),
    pa.uint8(): iceberg.IntegerType(),
    pa.uint16(): iceberg.IntegerType(),
    pa.int64(): iceberg.LongType(),
    pa.uint32(): iceberg.LongType(),
    pa.uint64(): iceberg.DecimalType(20, 0),
    pa.float16(): iceberg.FloatType(),
    pa.float32(): iceberg.FloatType(),
    pa.float64(): iceberg.DoubleType(),
    pa.date32(): iceberg.DateType(),
    pa.date64(): iceberg.DateType(),
    pa.time32("s"): iceberg.TimeType(),
    pa.time32("ms"): iceberg.TimeType(),
    pa.time64("us"): iceberg.TimeType(),
    pa.time64("ns"): iceberg.TimeType(),
    pa.string(): iceberg.StringType(),
    pa.binary(): iceberg.BinaryType(),
    pa.uuid(): iceberg.UUIDType(),
}


def file_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a table's data files, with field ids, also of nested fields.

    Fields have their initial defaults, for files that are older.

    Args:
        schema: the table's schema.

    Raises:
        ColumnError: PyArrow cannot write a column's type.
    """
    return pa.schema([_field(field, field.name) for field in schema.fields if _is_stored(field)])


def _is_stored(field: iceberg.NestedField) -> bool:
    # Columns of the type unknown are always null and not in the file (spec, "Primitive Types").
    return not isinstance(field.field_type, iceberg.UnknownType)


def _field(field: iceberg.NestedField, column: str) -> pa.Field:
    kind, metadata = _arrow_type(field.field_type, column), {FIELD_ID: b"%d" % field.field_id}
    if field.initial_default is not None and field.field_type.is_primitive:
        metadata[DEFAULT] = encoded_default(field.initial_default, kind)
    return pa.field(field.name, kind, nullable=not field.required, metadata=metadata)


def _arrow_type(kind: iceberg.IcebergType, column: str) -> pa.DataType:
    if isinstance(kind, iceberg.StructType):
        return pa.struct([_field(f, f"{column}.{f.name}") for f in kind.fields if _is_stored(f)])
    if isinstance(kind, iceberg.ListType):
        return pa.list_(_field(kind.element_field, f"{column}.element"))
    if isinstance(kind, iceberg.MapType):
        key = _field(kind.key_field, f"{column}.key")
        return pa.map_(key, _field(kind.value_field, f"{column}.value"))
    if isinstance(kind, iceberg.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, iceberg.FixedType):
        return pa.binary(len(kind))
    arrow_type = STORED.get(type(kind))
    if arrow_type is None:
        raise ColumnError(
            column, f"has the type {kind}, which PyArrow cannot write; write it with a SQL model"
        )
    return arrow_type


STORED: dict[type[iceberg.IcebergType], pa.DataType] = {
    iceberg.BooleanType: pa.bool_(),
    iceberg.IntegerType: pa.int32(),
    iceberg.LongType: pa.int64(),
    iceberg.FloatType: pa.float32(),
    iceberg.DoubleType: pa.float64(),
    iceberg.DateType: pa.date32(),
    iceberg.TimeType: pa.time64("us"),
    iceberg.TimestampType: pa.timestamp("us"),
    iceberg.TimestamptzType: pa.timestamp("us", "UTC"),
    iceberg.TimestampNanoType: pa.timestamp("ns"),
    iceberg.TimestamptzNanoType: pa.timestamp("ns", "UTC"),
    iceberg.StringType: pa.string(),
    iceberg.BinaryType: pa.binary(),
    iceberg.UUIDType: pa.uuid(),
}
