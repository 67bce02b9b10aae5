"""Checks the columns of a Parquet file against the table's (spec, "Column Projection")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, name_mapping
from dbt.adapters.iceberg_stream.catalog.variant_type import VariantType
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.schema_rules import children
from dbt.adapters.iceberg_stream.maintenance.check.schemas import HIGHEST_ID, TableSchemas
from dbt.adapters.iceberg_stream.maintenance.check.values import fits
from dbt.adapters.iceberg_stream.tables.files.field_ids import field_id

TABLE = 0


def has_ids(schema: pa.Schema) -> bool:
    """Return whether any column of a file has an id, nested ones included.

    Args:
        schema: the file's.
    """
    pending = list(schema)
    while pending:
        field = pending.pop()
        if field_id(field) is not None:
            return True
        pending += nested(field.type)
    return False


def nested(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type of a file.

    Args:
        kind: the type.
    """
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if isinstance(kind, pa.DataType) and pa.types.is_nested(kind):
        return [kind.field(number) for number in range(kind.num_fields)]
    return []


def check_file_schema(
    metadata: Metadata, schemas: TableSchemas, file: DataFile, schema: pa.Schema
) -> Iterator[Finding]:
    """Check the ids, types and presence of a file's columns.

    Args:
        metadata: table metadata.
        schemas: the table's schemas, as the file is read.
        file: the file's descriptor.
        schema: the file's schema.
    """
    if not has_ids(schema):
        if name_mapping(metadata) is None:
            yield Finding("field-ids-missing", file.file_path, "Its columns have no field ids.")
        return
    walk = _Walk(schemas, file, _parents(metadata))
    yield from walk.fields(list(schema), TABLE, "")
    if file.content == DataFileContent.DATA and schemas.current_json is not None:
        yield from walk.absent(list(schema), schemas.current_json, "")


def _parents(metadata: Metadata) -> dict[int, dict[int, set[str]]]:
    """Return the names that each field has or had, by its parent and its id."""
    parents: dict[int, dict[int, set[str]]] = {}
    for schema in metadata.get("schemas") or []:
        pending: list[tuple[Any, int]] = [(schema, TABLE)]
        while pending:
            node, parent = pending.pop()
            for field in children(node):
                names = parents.setdefault(parent, {})
                names.setdefault(field["id"], set()).add(field["name"])
                pending.append((field["type"], field["id"]))
    return parents


class _Walk:
    """Compares the columns of one file with those of the table."""

    def __init__(
        self,
        schemas: TableSchemas,
        file: DataFile,
        parents: Mapping[int, Mapping[int, set[str]]],
    ) -> None:
        self._schemas = schemas
        self._file = file
        self._parents = parents
        self._known = {identifier for fields in parents.values() for identifier in fields}
        # Where older schemas were removed, an older name or id of a column may look wrong.
        self._is_complete = schemas.is_complete

    def fields(self, columns: list[pa.Field], parent: int, prefix: str) -> Iterator[Finding]:
        """Check fields of one struct, list, map or table."""
        siblings = self._parents.get(parent, {})
        seen: set[int] = set()
        for column in columns:
            path = f"{prefix}{column.name}"
            identifier = field_id(column)
            if identifier is None:
                # A column that the table does not have is not read, with or without an id.
                is_read = any(column.name in names for names in siblings.values())
                if is_read or (parent != TABLE and not self._is_struct(parent)):
                    yield self._finding("field-id", f"`{path}` has no field id.")
                continue
            if identifier in seen:
                yield self._finding("field-id", f"Two columns have the field id {identifier}.")
            seen.add(identifier)
            yield from self._identified(column, identifier, siblings, path)

    def _identified(
        self, column: pa.Field, identifier: int, siblings: Mapping[int, set[str]], path: str
    ) -> Iterator[Finding]:
        if identifier > HIGHEST_ID:
            return
        if identifier not in siblings:
            named = [i for i, names in siblings.items() if column.name in names]
            if identifier in self._known or (named and self._is_complete):
                yield self._finding(
                    "field-id",
                    f"`{path}` has the field id {identifier}, which is "
                    + ("that of another column." if identifier in self._known else "unknown."),
                )
            return
        others = {i for i, names in siblings.items() if column.name in names}
        if self._is_complete and others and identifier not in others:
            yield self._finding(
                "field-id",
                f"`{path}` has the field id {identifier} of `{min(siblings[identifier])}`; its own "
                f"is {min(others)}.",
            )
            return
        yield from self._typed(column, identifier, path)

    def _typed(self, column: pa.Field, identifier: int, path: str) -> Iterator[Finding]:
        field = self._schemas.fields.get(identifier)
        if field is None:
            return
        kind = column.type
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if _is_another_kind(kind, field.field_type):
            yield self._finding(
                "column-type",
                f"`{path}` is {column.type} in the file and {field.field_type} in the table.",
            )
        elif not field.field_type.is_primitive:
            yield from self.fields(nested(kind), identifier, f"{path}.")

    def absent(self, columns: list[pa.Field], table: Any, prefix: str) -> Iterator[Finding]:
        """Find required fields that the file does not have."""
        by_id = {field_id(column): column for column in columns}
        for field in children(table):
            column = by_id.get(field["id"])
            path = f"{prefix}{field['name']}"
            if column is not None:
                yield from self.absent(nested(column.type), field["type"], f"{path}.")
            elif (
                field["required"]
                and field.get("initial-default") is None
                and not self._is_partition(field["id"])
            ):
                yield self._finding(
                    "required-absent",
                    f"It lacks `{path}`, which is required and has no initial default.",
                )

    def _is_struct(self, identifier: int) -> bool:
        field = self._schemas.fields.get(identifier)
        return field is None or field.field_type.is_struct

    def _is_partition(self, identifier: int) -> bool:
        """Return whether a column's values are those of an identity partition field."""
        spec = self._schemas.specs.get(self._file.spec_id)
        return spec is not None and any(
            isinstance(field.transform, IdentityTransform) and field.source_id == identifier
            for field in spec.fields
        )

    def _finding(self, code: str, problem: str) -> Finding:
        return Finding(code, self._file.file_path, problem)


def _is_another_kind(kind: pa.DataType, table: IcebergType) -> bool:
    """Return whether readers cannot take a file's column for one of the table's type."""
    if isinstance(table, VariantType):
        # A group with two columns or more (spec, "Appendix A: Parquet").
        return "metadata" not in {part.name for part in nested(kind)}
    if table.is_primitive:
        return pa.types.is_nested(kind) or not fits(kind, table)
    return not pa.types.is_nested(kind)
