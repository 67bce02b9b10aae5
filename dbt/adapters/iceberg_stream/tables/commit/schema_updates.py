"""Updates of a table's schema in the same commit as rows (spec, "Schema Evolution")."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    current_schema,
    known_schemas,
    partition_spec,
)
from dbt.adapters.iceberg_stream.tables.files.arrow_types import added_fields, replaced_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError


def replacement_updates(
    metadata: Metadata,
    arrow: pa.Schema,
    table: str,
    comments: Mapping[str, str] | None = None,
) -> tuple[TableUpdate, ...]:
    """Return the updates for a write that replaces all rows.

    The partition spec stays the same. So do wider types of columns that partition or sort the
    table. If a column that sorts it is gone, the table is not sorted.

    Args:
        metadata: table metadata.
        arrow: schema of the data.
        table: the table's name, for messages.
        comments: of columns; None to keep those that the table has.

    Returns:
        The updates; none if the schema stays the same.

    Raises:
        ColumnError: a column that partitions the table is missing or has another type.
    """
    current = current_schema(metadata)
    spec = partition_spec(metadata, metadata["default-spec-id"])
    sources = {field.source_id for field in spec.fields} | _sort_sources(metadata)

    def keeps(old: NestedField, new: IcebergType) -> bool:
        return old.field_id in sources and _includes(old.field_type, new)

    last_id, version = metadata["last-column-id"], metadata["format-version"]
    schema = replaced_schema(current, arrow, last_id, version, keeps)
    if comments is not None:
        schema = with_comments(schema, comments)
    if schema.as_struct() == current.as_struct() and (
        schema.identifier_field_ids == current.identifier_field_ids
    ):
        return ()
    field_ids = {field.field_id for field in schema.fields}
    for field in spec.fields:
        if field.source_id not in field_ids:
            column = current.find_column_name(field.source_id) or field.name
            raise ColumnError(
                column,
                f"is missing or has another type, but partitions {table}: drop the table to "
                "change it",
            )
    return replaced_schema_updates(metadata, schema)


def replaced_schema_updates(metadata: Metadata, schema: Schema) -> tuple[TableUpdate, ...]:
    """Return updates that set a schema, which may lack columns of the current one.

    Args:
        metadata: of the table.
        schema: with the table's field ids.
    """
    return (*_sort_updates(metadata, schema.field_ids), *schema_updates(metadata, schema))


def _sort_updates(metadata: Metadata, field_ids: Collection[int]) -> tuple[TableUpdate, ...]:
    """Return updates that remove the table's sort order if one of its columns is gone."""
    if _sort_sources(metadata) <= set(field_ids):
        return ()
    orders = {order["order-id"] for order in metadata["sort-orders"]}
    number = UNSORTED_SORT_ORDER.order_id
    unsorted = SetDefaultSortOrderUpdate.model_validate(
        {"sort-order-id": number if number in orders else -1}
    )
    if number in orders:
        return (unsorted,)
    return (AddSortOrderUpdate.model_validate({"sort-order": UNSORTED_SORT_ORDER}), unsorted)


def _sort_sources(metadata: Metadata) -> set[int]:
    """Return the ids of the columns that sort the table."""
    orders = {order["order-id"]: order for order in metadata.get("sort-orders") or []}
    order = orders.get(metadata.get("default-sort-order-id"), {"fields": []})
    return {field["source-id"] for field in order["fields"]}


def with_comments(schema: Schema, comments: Mapping[str, str]) -> Schema:
    """Return a schema with other comments of columns, and none of fields within them.

    Args:
        schema: the schema; its nested fields have no comments.
        comments: by column; the others get none.
    """
    fields = [f.model_copy(update={"doc": comments.get(f.name)}) for f in schema.fields]
    return Schema(*fields, identifier_field_ids=schema.identifier_field_ids)


def evolution_updates(metadata: Metadata, arrow: pa.Schema, table: str) -> tuple[TableUpdate, ...]:
    """Return the schema updates for a write that keeps the existing rows.

    New columns are added at the end, types are widened, and columns that the data lack become
    optional. So do fields within structs, lists and maps.

    Args:
        metadata: table metadata.
        arrow: schema of the data.
        table: the table's name, for messages.

    Returns:
        The updates; none if the schema stays the same.

    Raises:
        ColumnError: the table's type of a column cannot be widened to that of the data, or an
            identifier column is missing.
    """
    current = current_schema(metadata)
    version = metadata["format-version"]
    columns = {name.lower() for name in current.column_names}
    new_columns = [field for field in arrow if field.name.lower() not in columns]
    added = added_fields(new_columns, metadata["last-column-id"], version)
    # New fields within existing columns keep these ids.
    last = max((Schema(*added).highest_field_id, metadata["last-column-id"]))
    data_fields = {f.name: f for f in added_fields(list(arrow), last, version)}
    for number in current.identifier_field_ids:
        name = str(current.find_column_name(number))
        if name.split(".")[0] not in data_fields and name not in data_fields:
            raise ColumnError(
                name, f"is missing, but is an identifier field of {table}: add it to the query"
            )
    fields = [_evolve(field, data_fields.get(field.name), table) for field in current.fields]
    if not added and fields == list(current.fields):
        return ()
    identifiers = current.identifier_field_ids
    return schema_updates(metadata, Schema(*fields, *added, identifier_field_ids=identifiers))


def _evolve(field: NestedField, data_field: NestedField | None, table: str) -> NestedField:
    if data_field is None:
        return field.model_copy(update={"required": False})
    old, new = field.field_type, data_field.field_type
    wide = _widened(old, new)
    if wide is None:
        raise ColumnError(
            field.name,
            f"is {old} in {table}, but {new} in the new rows, and {old} cannot be widened to "
            f"{new}: cast or rename it in the query, or rebuild the table with --full-refresh",
        )
    return field if wide == old else field.model_copy(update={"field_type": wide})


def _widened(old: IcebergType, new: IcebergType) -> IcebergType | None:
    """Return the old type with the new one's values; None if it cannot be widened to them."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        by_name = {field.name: field for field in new.fields}
        fields = [_widened_field(field, by_name.pop(field.name, None)) for field in old.fields]
        return StructType(*fields, *by_name.values())
    if isinstance(old, ListType) and isinstance(new, ListType):
        element = _widened(old.element_type, new.element_type) or old.element_type
        return ListType(old.element_id, element, old.element_required)
    if isinstance(old, MapType) and isinstance(new, MapType):
        value = _widened(old.value_type, new.value_type) or old.value_type
        return MapType(old.key_id, old.key_type, old.value_id, value, old.value_required)
    if type(old) is type(new) and not isinstance(old, DecimalType):
        return old
    if _includes(old, new):
        return old
    return new if _includes(new, old) else None


def _widened_field(field: NestedField, data_field: NestedField | None) -> NestedField:
    if data_field is None:
        return field.model_copy(update={"required": False})
    # Whether values of another type fit is checked when they are written.
    wide = _widened(field.field_type, data_field.field_type) or field.field_type
    return field if wide == field.field_type else field.model_copy(update={"field_type": wide})


def _includes(wide: IcebergType, narrow: IcebergType) -> bool:
    """Return whether a type includes a narrower one (spec, "Schema Evolution")."""
    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        return wide.scale == narrow.scale and wide.precision >= narrow.precision
    pairs = ((LongType, IntegerType), (DoubleType, FloatType))
    return wide == narrow or any(isinstance(wide, w) and isinstance(narrow, n) for w, n in pairs)


def schema_updates(metadata: Metadata, schema: Schema) -> tuple[TableUpdate, ...]:
    """Return updates that set the current schema.

    An equal older schema is used again, because catalogs store no schema twice.

    Args:
        metadata: table metadata.
        schema: with the table's field ids.
    """
    for older in known_schemas(metadata):
        same_identifiers = set(older.identifier_field_ids) == set(schema.identifier_field_ids)
        if same_identifiers and older.as_struct() == schema.as_struct():
            return (_set_current(older.schema_id),)
    number = 1 + max(s["schema-id"] for s in metadata["schemas"])
    numbered = schema.model_copy(update={"schema_id": number})
    added = AddSchemaUpdate.model_validate({"schema": numbered})
    return (added, _set_current(-1))


def _set_current(schema_id: int) -> SetCurrentSchemaUpdate:
    return SetCurrentSchemaUpdate.model_validate({"schema-id": schema_id})


def requirements(
    metadata: Metadata, updates: Sequence[TableUpdate]
) -> tuple[TableRequirement, ...]:
    """Return what the catalog must check before it changes a schema.

    Args:
        metadata: table metadata from which the updates were computed.
        updates: the commit's updates.

    Returns:
        The current schema and the last assigned field id; nothing if the schema stays the same.
    """
    if not any(isinstance(u, AddSchemaUpdate | SetCurrentSchemaUpdate) for u in updates):
        return ()
    current = {"current-schema-id": metadata["current-schema-id"]}
    last = {"last-assigned-field-id": metadata["last-column-id"]}
    return (
        AssertCurrentSchemaId.model_validate(current),
        AssertLastAssignedFieldId.model_validate(last),
    )


def schemas_changed(before: Metadata, now: Metadata) -> bool:
    """Return whether a schema changed, so that updates computed from the older one are invalid.

    Args:
        before: table metadata from which updates were computed.
        now: current table metadata.
    """
    keys = ("current-schema-id", "last-column-id")
    ids = [{s["schema-id"] for s in metadata["schemas"]} for metadata in (before, now)]
    return ids[0] != ids[1] or any(before[key] != now[key] for key in keys)
