"""Casts Arrow data to the exact types of a table's files, without loss.

Worker code: the standard library and PyArrow only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

MAX_DECIMAL_DIGITS = 38
# Type families that a family may be cast to; the values are checked, too.
CASTS = {
    "boolean": {"boolean"},
    "integer": {"integer", "floating", "decimal"},
    "floating": {"floating"},
    "decimal": {"decimal", "integer"},
    "date": {"date"},
    "time": {"time"},
    "timestamp": {"timestamp"},
    "timestamp with time zone": {"timestamp with time zone"},
    "string": {"string"},
    "binary": {"binary", "uuid"},
    "uuid": {"uuid", "binary"},
}


class ColumnError(ValueError):
    """A column of the data does not fit the table.

    Attributes:
        column: the column's name, nested ones with dots.
        reason: what is wrong, as a predicate: "is missing".
    """

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason

    def __str__(self) -> str:
        return f"The column `{self.column}` {self.reason}."

    @property
    def clause(self) -> str:
        """The message as a part of another sentence."""
        return f"the column `{self.column}` {self.reason}"


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to the columns, types and field ids of the table's files.

    Columns are matched by name; missing optional columns become null.

    Args:
        batch: the rows.
        schema: of the table's files; see `arrow_types.file_schema`.

    Raises:
        ColumnError: a column is unknown, missing, has an incompatible type, or a value that the
            table's type does not include.
    """
    _check_names(batch.schema.names, schema.names, "")
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = [_column(arrays, field, field.name, batch.num_rows) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def stored_values(values: pa.Array) -> pa.Array:
    """Return partition values as manifests store them: times as integers, UUIDs as bytes."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_temporal(values.type):
        return values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return values


def _check_names(names: Sequence[str], table_names: Sequence[str], prefix: str) -> None:
    for name in names:
        if name not in table_names:
            raise ColumnError(
                f"{prefix}{name}", f"is not in the table, which has {_listed(table_names)}"
            )
        if names.count(name) > 1:
            raise ColumnError(f"{prefix}{name}", "occurs twice in the new rows: rename one of them")


def _column(arrays: Mapping[str, pa.Array], field: pa.Field, column: str, length: int) -> pa.Array:
    if field.name in arrays:
        return _child(arrays[field.name], field, column)
    if not field.nullable:
        raise ColumnError(column, "is missing, but the table requires it")
    return nulls(length, field.type)


def _child(array: pa.Array, field: pa.Field, column: str) -> pa.Array:
    converted = _convert(array, field.type, column)
    # The schema's nullability is not enforced, so the data are checked.
    if not field.nullable and converted.null_count:
        raise ColumnError(column, "has nulls, but the table requires it")
    return converted


def _convert(array: pa.Array, target: pa.DataType, column: str) -> pa.Array:
    if pa.types.is_nested(target):
        array = _decoded(array, column)
    if pa.types.is_struct(target) and pa.types.is_struct(array.type):
        return _struct(array, target, column)
    if pa.types.is_list(target) and _is_list(array.type):
        return _list(array, target, column)
    if pa.types.is_map(target) and pa.types.is_map(array.type):
        return _map(array, target, column)
    return convert_values(array, target, column)


def convert_values(array: pa.Array, target: pa.DataType, column: str) -> pa.Array:
    """Convert values of a type that is not nested.

    Args:
        array: the values.
        target: the type.
        column: its name, for errors.

    Raises:
        ColumnError: the type is incompatible, or does not include a value.
    """
    if array.type == target and not pa.types.is_nested(target):
        return array
    array = _decoded(array, column)
    if pa.types.is_null(array.type):
        return nulls(len(array), target)
    return _leaf(array, target, column)


def _struct(array: pa.StructArray, target: pa.StructType, column: str) -> pa.Array:
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    fields = [target.field(i) for i in range(target.num_fields)]
    _check_names(names, [f.name for f in fields], f"{column}.")
    children, absent = dict(zip(names, array.flatten(), strict=True)), null_mask(array)
    converted = []
    for field in fields:
        path = f"{column}.{field.name}"
        # Where the struct itself is null, its required fields are null, too.
        child = _column(
            children, field.with_nullable(field.nullable or absent is not None), path, len(array)
        )
        if not field.nullable and absent is not None:
            _require(child, absent, path)
            child = without_nulls(child)
        converted.append(child)
    return pa.StructArray.from_arrays(converted, fields=fields, mask=absent)


def _require(child: pa.Array, absent: pa.Array, column: str) -> None:
    if pc.any(pc.and_not(child.is_null(), absent)).as_py():
        raise ColumnError(column, "is missing or null, but the table requires it")


def _list(array: pa.Array, target: pa.ListType, column: str) -> pa.Array:
    # Unlike `values`, `flatten` omits elements of null lists and outside the slice.
    elements = _child(array.flatten(), target.value_field, f"{column}.element")
    return pa.ListArray.from_arrays(
        list_offsets(array), elements, type=target, mask=null_mask(array)
    )


def _map(array: pa.MapArray, target: pa.MapType, column: str) -> pa.Array:
    key, value = array.type.key_field.with_name("key"), array.type.item_field.with_name("value")
    listed = array.cast(pa.list_(pa.struct([key, value])))
    keys, values = listed.flatten().flatten()
    keys = _child(keys, target.key_field, f"{column}.key")
    values = _child(values, target.item_field, f"{column}.value")
    return pa.MapArray.from_arrays(
        list_offsets(listed), keys, values, type=target, mask=null_mask(array)
    )


def nulls(length: int, kind: pa.DataType) -> pa.Array:
    """Return an array of nulls, in which required fields of structs have some value.

    Args:
        length: of the array.
        kind: its type.
    """
    if not pa.types.is_struct(kind):
        return pa.nulls(length, kind)
    fields = [kind.field(number) for number in range(kind.num_fields)]
    children = [
        nulls(length, field.type) if field.nullable else without_nulls(nulls(length, field.type))
        for field in fields
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=pa.repeat(True, length))


def without_nulls(array: pa.Array) -> pa.Array:
    """Return an array with some value in the place of each null.

    A required field of a struct that is null: Parquet's writer refuses nulls there.

    Args:
        array: of any type.
    """
    kind = array.type
    if not array.null_count:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, without_nulls(array.storage))
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        children = [
            child if field.nullable else without_nulls(child)
            for field, child in zip(fields, array.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=fields)
    if pa.types.is_map(kind):
        key, value = kind.key_field.with_name("key"), kind.item_field.with_name("value")
        listed = array.cast(pa.list_(pa.struct([key, value])))
        return pa.MapArray.from_arrays(list_offsets(listed), *listed.flatten().flatten(), type=kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(list_offsets(array), array.flatten(), type=kind)
    buffers = [None, *array.buffers()[1:]]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset)


def list_offsets(array: pa.Array) -> pa.Array:
    """Return the offset of each list among the elements that `flatten` returns."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    zero = pa.array([0], pa.int32())
    offsets = pa.concat_arrays([zero, pc.cumulative_sum(lengths).cast(pa.int32())])
    # Before PyArrow 26, a validity bitmap counts as nulls even if it has none.
    return pa.Array.from_buffers(pa.int32(), len(offsets), [None, offsets.buffers()[1]])


def null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _leaf(array: pa.Array, target: pa.DataType, column: str) -> pa.Array:
    have, want = kind_of(array.type), kind_of(target)
    if want not in CASTS.get(have, ()):
        raise ColumnError(column, f"is {array.type}, but the table has {target}{_hint(have, want)}")
    if "uuid" in (have, want):
        return _uuid(array, target, column)
    try:
        if (have, want) == ("integer", "decimal"):
            # Casting an integer checks the types only; casting a decimal checks the values.
            array = array.cast(pa.decimal256(20 + target.scale, target.scale))
        converted = array.cast(target)
    except pa.ArrowInvalid as error:
        raise ColumnError(
            column, f"has a value that {target} cannot store: {str(error).split(chr(10))[0]}"
        ) from error
    if want == "floating" and have == "floating" and target.bit_width < array.type.bit_width:
        _require_same(array, converted, column)
    return converted


def _uuid(array: pa.Array, target: pa.DataType, column: str) -> pa.Array:
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    try:
        return storage.cast(pa.binary(16)).cast(target)
    except pa.ArrowInvalid as error:
        raise ColumnError(column, f"has a value that is not a UUID of 16 bytes: {error}") from error


def _require_same(before: pa.Array, after: pa.Array, column: str) -> None:
    back = after.cast(before.type)
    changed = pc.and_not(pc.not_equal(back, before), pc.is_nan(before))
    if pc.any(changed).as_py():
        example = before.filter(changed)[0].as_py()
        raise ColumnError(column, f"has {example!r}, which {after.type} cannot store exactly")


def _decoded(array: pa.Array, column: str) -> pa.Array:
    kind = array.type
    try:
        if pa.types.is_dictionary(kind):
            return _decoded(array.dictionary_decode(), column)
        if isinstance(kind, pa.RunEndEncodedType):
            return _decoded(pc.run_end_decode(array), column)
        if isinstance(kind, pa.BaseExtensionType) and kind != pa.uuid():
            return _decoded(array.storage, column)
        unencoded = unencoded_type(kind)
        return array if unencoded == kind or _is_list(kind) else array.cast(unencoded)
    except pa.ArrowInvalid as error:
        raise ColumnError(column, f"cannot be read: {error}") from error


def unencoded_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values without dictionaries, run ends, views, large offsets."""
    if pa.types.is_dictionary(kind) or isinstance(kind, pa.RunEndEncodedType):
        return unencoded_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and kind != pa.uuid():
        return unencoded_type(kind.storage_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if _is_list(kind):
        return pa.list_(kind.value_field)
    if pa.types.is_decimal(kind) and kind.precision <= MAX_DECIMAL_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or isinstance(kind, pa.ListViewType | pa.LargeListViewType)
    )


def kind_of(kind: pa.DataType) -> str:
    """Return the family of a type, a key of CASTS; the type's name for other types."""
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp"
    families = {
        "boolean": pa.types.is_boolean,
        "integer": pa.types.is_integer,
        "floating": pa.types.is_floating,
        "decimal": pa.types.is_decimal,
        "date": pa.types.is_date,
        "time": pa.types.is_time,
        "string": pa.types.is_string,
        "binary": lambda k: pa.types.is_binary(k) or pa.types.is_fixed_size_binary(k),
    }
    if kind == pa.uuid():
        return "uuid"
    return next((name for name, belongs in families.items() if belongs(kind)), str(kind))


def _hint(have: str, want: str) -> str:
    zoned = "timestamp with time zone"
    if (have, want) == ("timestamp", zoned):
        return ": cast it, with the time zone of its values"
    if (have, want) == (zoned, "timestamp"):
        return ": cast it, with the time zone in which the table stores it"
    return ": cast it"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
