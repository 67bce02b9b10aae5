"""How a table's schema changes along with rows (spec, "Schema Evolution")."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
)

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    current_schema,
    known_schemas,
    partition_spec,
)
from dbt.adapters.iceberg_stream.tables.files.arrow_types import added_fields, replaced_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError


def replacing(metadata: Metadata, arrow: pa.Schema, place: str) -> tuple[TableUpdate, ...]:
    """The schema of data that replace all rows, unless it is the old one. Partitions stay.

    Raises:
        ColumnError: a column that partitions the table is missing or has another type.
    """
    current = current_schema(metadata)
    schema = replaced_schema(current, arrow, metadata["last-column-id"], metadata["format-version"])
    if schema.as_struct() == current.as_struct() and (
        schema.identifier_field_ids == current.identifier_field_ids
    ):
        return ()
    known = {field.field_id for field in schema.fields}
    for field in partition_spec(metadata, metadata["default-spec-id"]).fields:
        if field.source_id not in known:
            lost = current.find_column_name(field.source_id) or field.name
            raise ColumnError(
                lost,
                f"is missing or has another type, but {place} is partitioned by it: drop the table "
                "to change that",
            )
    return _updates(metadata, schema)


def evolving(metadata: Metadata, arrow: pa.Schema, place: str) -> tuple[TableUpdate, ...]:
    """The schema that takes in such data beside the rows that are there: columns are added at the
    end, types widened, and columns that the data lack become optional.

    Raises:
        ColumnError: a column has a type that the table's cannot become, or one is missing that
            identifies rows.
    """
    current = current_schema(metadata)
    version = metadata["format-version"]
    known = {name.lower() for name in current.column_names}
    unknown = [field for field in arrow if field.name.lower() not in known]
    new = added_fields(unknown, metadata["last-column-id"], version)
    given = {f.name: f for f in added_fields(list(arrow), 0, version)}
    for number in current.identifier_field_ids:
        name = str(current.find_column_name(number))
        if name.split(".")[0] not in given and name not in given:
            raise ColumnError(name, f"identifies the rows of {place} and is missing: select it")
    fields = [_evolved(field, given.get(field.name), place) for field in current.fields]
    if not new and fields == list(current.fields):
        return ()
    identifiers = current.identifier_field_ids
    return _updates(metadata, Schema(*fields, *new, identifier_field_ids=identifiers))


def _evolved(field: NestedField, given: NestedField | None, place: str) -> NestedField:
    if given is None:
        return field.model_copy(update={"required": False})
    old, new = field.field_type, given.field_type
    if type(old) is type(new) and not isinstance(old, DecimalType):
        return field
    if _takes(old, new):
        return field
    if _takes(new, old):
        return field.model_copy(update={"field_type": new})
    raise ColumnError(
        field.name,
        f"is {old} in {place} and comes as {new} now, which it cannot become: cast it in the "
        "query, give it another name, or rebuild the table with --full-refresh",
    )


def _takes(wide: IcebergType, narrow: IcebergType) -> bool:
    """Whether a column takes values of a narrower type (spec, "Schema Evolution")."""
    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        return wide.scale == narrow.scale and wide.precision >= narrow.precision
    pairs = ((LongType, IntegerType), (DoubleType, FloatType))
    return wide == narrow or any(isinstance(wide, w) and isinstance(narrow, n) for w, n in pairs)


def _updates(metadata: Metadata, schema: Schema) -> tuple[TableUpdate, ...]:
    """Make a schema the table's. One that it has had is named: catalogs keep no schema twice."""
    for older in known_schemas(metadata):
        same = set(older.identifier_field_ids) == set(schema.identifier_field_ids)
        if same and older.as_struct() == schema.as_struct():
            return (_set_current(older.schema_id),)
    number = 1 + max(known["schema-id"] for known in metadata["schemas"])
    numbered = schema.model_copy(update={"schema_id": number})
    added = AddSchemaUpdate.model_validate({"schema": numbered})
    return (added, _set_current(-1))


def _set_current(schema_id: int) -> SetCurrentSchemaUpdate:
    return SetCurrentSchemaUpdate.model_validate({"schema-id": schema_id})


def requirements(
    metadata: Metadata, updates: Sequence[TableUpdate]
) -> tuple[TableRequirement, ...]:
    """What a catalog is to check where a schema changes: ids of fields that nobody else has given
    away, and the schema that the new one was made from. None where it does not change.
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
    """Whether a change of the schema that was made from the table as it was would not fit now."""
    keys = ("current-schema-id", "last-column-id")
    ids = [{known["schema-id"] for known in one["schemas"]} for one in (before, now)]
    return ids[0] != ids[1] or any(before[key] != now[key] for key in keys)
