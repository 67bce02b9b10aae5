"""Checks the columns of a data file against the table's (spec, "Column Projection")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.types import ListType, MapType, NestedField, StructType

from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.schemas import TableSchemas
from dbt.adapters.iceberg_stream.maintenance.check.values import fits

FIELD_ID = b"PARQUET:field_id"


def check_file_schema(
    schemas: TableSchemas, file: DataFile, schema: pa.Schema, is_mapped: bool
) -> Iterator[Finding]:
    """Check the ids and types of a file's columns, and that the required ones are there.

    Args:
        schemas: the table's schemas.
        file: the file's descriptor.
        schema: of the file.
        is_mapped: whether the table maps names to columns, for files without ids.
    """
    where = file.file_path
    found = list(_fields(schema, None, ()))
    with_id = [(number, parent, path, kind) for number, parent, path, kind in found if number]
    if len(with_id) < len(found) and not (is_mapped and not with_id):
        missing = [".".join(path) for number, _, path, _ in found if number is None]
        what = f"`{missing[0]}` has no field id." if with_id else "Its columns have no field ids."
        yield Finding("field-ids-missing", where, what)
    times = Counter(number for number, *_ in with_id)
    for number, count in times.items():
        if count > 1:
            paths = [".".join(path) for own, _, path, _ in with_id if own == number]
            problem = f"Several columns have the id {number}: {', '.join(paths)}."
            yield Finding("file-field-ids", where, problem)
    for number, parent, path, kind in with_id:
        yield from _field(schemas, where, number, parent, ".".join(path), kind)
    if file.content == DataFileContent.DATA and with_id and schemas.current is not None:
        yield from _required(schemas.current.fields, where, set(times))


FoundField = tuple["int | None", "int | None", tuple[str, ...], pa.DataType]


def _fields(
    fields: pa.Schema | list[pa.Field], parent: int | None, path: tuple[str, ...]
) -> Iterator[FoundField]:
    """Yield id, the parent's id, path and type of all fields of a file."""
    for field in fields:
        number = int((field.metadata or {}).get(FIELD_ID, 0)) or None
        own = (*path, field.name)
        yield number, parent, own, field.type
        yield from _fields(_children(field.type), number, own)


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind.fields)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field]
    return []


def _field(
    schemas: TableSchemas,
    where: str,
    number: int,
    parent: int | None,
    path: str,
    kind: pa.DataType,
) -> Iterator[Finding]:
    column = schemas.fields.get(number)
    if column is None:
        return
    names, name = schemas.names.get(number, set()), path.rsplit(".", 1)[-1]
    siblings = {n for n, p in schemas.parents.items() if p == schemas.parents.get(number)}
    others = [n for n in siblings - {number} if name in schemas.names.get(n, set())]
    if schemas.parents.get(number) != parent or (others and name not in names):
        problem = f"`{path}` has the id {number}, which is that of `{column.name}` in the table."
        yield Finding("file-field-ids", where, problem)
    elif not _fits(kind, column):
        problem = f"`{path}` is {kind} in the file and {column.field_type} in the table."
        yield Finding("column-type", where, problem)


def _fits(kind: pa.DataType, column: NestedField) -> bool:
    for table_type, is_same in (
        (StructType, pa.types.is_struct),
        (MapType, pa.types.is_map),
        (ListType, lambda k: pa.types.is_list(k) or pa.types.is_large_list(k)),
    ):
        if isinstance(column.field_type, table_type):
            return bool(is_same(kind))
    return fits(kind, column.field_type)


def _required(fields: tuple[NestedField, ...], where: str, found: set[int]) -> Iterator[Finding]:
    for field in fields:
        if field.field_id in found:
            if isinstance(field.field_type, StructType):
                yield from _required(field.field_type.fields, where, found)
        elif field.required and field.initial_default is None:
            yield Finding(
                "required-column-missing", where, f"It lacks the required column `{field.name}`."
            )
