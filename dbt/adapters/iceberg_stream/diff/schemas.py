"""Compares two schemas, and finds the columns in which rows can be compared.

Versions of one table share field ids, so a renamed column stays the same column. Columns of
different tables are matched by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema, index_by_id
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
    UnknownType,
)

from dbt.adapters.iceberg_stream.diff.errors import DiffError
from dbt.adapters.iceberg_stream.diff.version import TableVersion

ADDED, DROPPED, RENAMED, WIDENED = "added", "dropped", "renamed", "widened"
TYPE_CHANGED, OPTIONAL, REQUIRED = "type changed", "optional", "required"
# The first field id of those that no table has.
ABSENT_IDS = 2**30
WIDER = {(IntegerType(), LongType()), (FloatType(), DoubleType())}


@dataclass(frozen=True)
class SchemaChange:
    """A difference of two schemas.

    Attributes:
        kind: `added`, `dropped`, `renamed`, `widened`, `type changed`, `optional` or `required`.
        column: its name after the change, nested fields with dots; of a dropped one before it.
        before: name or type before; None if it was added.
        after: name or type after; None if it was dropped.
    """

    kind: str
    column: str
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class Columns:
    """The columns in which rows are compared, in the order of the newer version.

    Attributes:
        before: to read rows of the older version, with its field ids and the names below.
        after: the same columns to read rows of the newer version.
        excluded: columns of both versions whose types cannot be compared.
    """

    before: Schema
    after: Schema
    excluded: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """Names of the columns in the newer version."""
        return [field.name for field in self.after.fields]


def schema_changes(before: TableVersion, after: TableVersion) -> list[SchemaChange]:
    """Return the differences of two schemas: those of columns in their order, then dropped ones.

    Args:
        before: the older version.
        after: the newer version.
    """
    by_id = before.is_same_table(after)
    old, new = _fields(before.schema), _fields(after.schema)
    older = {number if by_id else name: (name, field) for number, (name, field) in old.items()}
    changes: list[SchemaChange] = []
    for number, (name, field) in new.items():
        match = older.pop(number if by_id else name, None)
        if match is None:
            changes.append(SchemaChange(ADDED, name, None, str(field.field_type)))
        else:
            changes += _field_changes(*match, name, field)
    dropped = older.values()
    return changes + [SchemaChange(DROPPED, n, str(f.field_type)) for n, f in dropped]


def _fields(schema: Schema) -> dict[int, tuple[str, NestedField]]:
    """Return full names and fields by id, in the order of the columns."""
    fields = index_by_id(schema)
    names = {number: schema.find_column_name(number) or "" for number in fields}
    top = [field.field_id for field in schema.fields]
    rank = {schema.fields[i].name: i for i in range(len(top))}

    def place(number: int) -> tuple[int, int]:
        # The fields of a struct follow the struct.
        owners = (name for name in rank if f"{names[number]}.".startswith(f"{name}."))
        return rank[max(owners, key=len)], number

    return {number: (names[number], fields[number]) for number in sorted(fields, key=place)}


def _field_changes(
    old_name: str, old: NestedField, name: str, new: NestedField
) -> Iterator[SchemaChange]:
    if old.name != new.name:
        yield SchemaChange(RENAMED, name, old_name, name)
    before, after = old.field_type, new.field_type
    # Changes within a struct, a list or a map are changes of their fields.
    if before != after and not (type(before) is type(after) and not before.is_primitive):
        kind = WIDENED if _wider(before, after) == after else TYPE_CHANGED
        yield SchemaChange(kind, name, str(before), str(after))
    if old.required != new.required:
        kinds = {True: REQUIRED, False: OPTIONAL}
        yield SchemaChange(kinds[new.required], name, kinds[old.required], kinds[new.required])


def compared_columns(before: TableVersion, after: TableVersion) -> Columns:
    """Return the columns in which rows of two versions are compared.

    They are those of the newer version. A column that the older version does not have is null
    there, or has its initial default; of one table, it has the values of older files, as if it was
    never dropped, so that data files of both versions need not be read. Types are the wider ones.

    Args:
        before: the older version.
        after: the newer version.

    Raises:
        DiffError: the versions have no column in common.
    """
    pairing = _Pairing(before.is_same_table(after))
    older = {pairing.key(field): field for field in before.schema.fields}
    pairs: list[tuple[NestedField, NestedField]] = []
    excluded: list[str] = []
    for field in after.schema.fields:
        pair = pairing.pair(older.get(pairing.key(field)), field)
        if pair is None:
            excluded.append(field.name)
        elif not isinstance(pair[1].field_type, UnknownType):
            pairs.append(pair)
    common = {pairing.key(field) for field in after.schema.fields} & older.keys()
    if not pairs or not common:
        raise DiffError(
            f"{before.label} and {after.label} have no column in common, so their rows cannot be "
            "compared."
        )
    return Columns(Schema(*(p[0] for p in pairs)), Schema(*(p[1] for p in pairs)), excluded)


class _Pairing:
    """Matches the fields of two schemas, and gives both the wider type."""

    def __init__(self, by_id: bool) -> None:
        self._by_id = by_id
        self._absent = itertools.count(ABSENT_IDS)

    def key(self, field: NestedField) -> int | str:
        """Return what fields of both schemas are matched by."""
        return field.field_id if self._by_id else field.name

    def pair(
        self, old: NestedField | None, new: NestedField
    ) -> tuple[NestedField, NestedField] | None:
        """Return a field with the ids of either schema; None if the types cannot be compared."""
        if old is None:
            old = new if self._by_id else self._without_values(new)
        kinds = self._types(old.field_type, new.field_type)
        if kinds is None:
            return None
        one = _optional(old.field_id, new.name, kinds[0], old)
        return one, _optional(new.field_id, new.name, kinds[1], new)

    def _types(self, old: IcebergType, new: IcebergType) -> tuple[IcebergType, IcebergType] | None:
        if isinstance(old, StructType) and isinstance(new, StructType):
            return self._structs(old, new)
        if isinstance(old, ListType) and isinstance(new, ListType):
            element = self._types(old.element_type, new.element_type)
            return element and (
                ListType(old.element_id, element[0], False),
                ListType(new.element_id, element[1], False),
            )
        if isinstance(old, MapType) and isinstance(new, MapType):
            key = self._types(old.key_type, new.key_type)
            value = self._types(old.value_type, new.value_type)
            return (
                key
                and value
                and (
                    MapType(old.key_id, key[0], old.value_id, value[0], False),
                    MapType(new.key_id, key[1], new.value_id, value[1], False),
                )
            )
        wider = _wider(old, new) or _wider(new, old)
        return None if wider is None else (wider, wider)

    def _structs(self, old: StructType, new: StructType) -> tuple[StructType, StructType] | None:
        older = {self.key(field): field for field in old.fields}
        pairs = [self.pair(older.get(self.key(field)), field) for field in new.fields]
        if any(pair is None for pair in pairs):
            return None
        kept = [p for p in pairs if p and not isinstance(p[1].field_type, UnknownType)]
        return StructType(*(p[0] for p in kept)), StructType(*(p[1] for p in kept))

    def _without_values(self, field: NestedField) -> NestedField:
        """Return a field that no file of the other table has."""
        return NestedField(next(self._absent), field.name, field.field_type, required=False)


def _optional(number: int, name: str, kind: IcebergType, field: NestedField) -> NestedField:
    default = field.initial_default
    return NestedField(number, name, kind, required=False, initial_default=default)


def _wider(old: IcebergType, new: IcebergType) -> IcebergType | None:
    """Return the new type if it has all values of the old one, or else None."""
    if old == new or isinstance(old, UnknownType) or (old, new) in WIDER:
        return new
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new if old.scale == new.scale and old.precision <= new.precision else None
    return None
