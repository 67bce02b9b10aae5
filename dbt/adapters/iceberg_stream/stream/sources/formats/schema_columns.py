"""Columns that the records of several schemas become."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Nullable,
    Scalar,
    SchemaError,
    Struct,
    list_of,
    unwrap,
)

WIDER = {
    (pa.int32(), pa.int64()): pa.int64(),
    (pa.float32(), pa.float64()): pa.float64(),
}
# Metadata of a field that is a member of a union: the name of its type.
MEMBER = b"member"


def widened(old: pa.DataType, new: pa.DataType, field: str = "") -> pa.DataType:
    """Return a type that takes the values of two, as Iceberg widens columns.

    Args:
        old: the type of the columns so far.
        new: another type; its new fields come last.
        field: the path of the field, for messages.

    Raises:
        SchemaError: there is no such type.
    """
    if isinstance(old, pa.StructType) and isinstance(new, pa.StructType):
        return _widened_struct(old, new, field)
    if isinstance(old, pa.ListType) and isinstance(new, pa.ListType):
        return list_of(widened(old.value_type, new.value_type, f"{field}.element"))
    if isinstance(old, pa.MapType) and isinstance(new, pa.MapType) and old.key_type == new.key_type:
        values = widened(old.item_type, new.item_type, f"{field}.value")
        return pa.map_(old.key_type, values)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new) and old.scale == new.scale:
        return old if old.precision >= new.precision else new
    wider = old if old == new else WIDER.get((old, new)) or WIDER.get((new, old))
    if wider is None:
        raise SchemaError(
            f"has `{field}` as {type_name(new)}, which is {type_name(old)} in the other schemas. "
            "Set the source's `columns` to choose its type"
        )
    return wider


def type_name(kind: pa.DataType) -> str:
    """Return a type as SQL names it."""
    from pyspark.sql.pandas.types import from_arrow_type

    return str(from_arrow_type(kind, prefer_timestamp_ntz=True).simpleString())


def member_field(name: str, kind: pa.DataType, member: str) -> pa.Field:
    """Return the field of a member of a union.

    Args:
        name: by the member's position.
        kind: of its values.
        member: the name of its type, by which Avro matches members of two unions.
    """
    return pa.field(name, kind, metadata={MEMBER: member})


def require_same_members(
    old: pa.DataType, new: pa.DataType, target: pa.DataType, field: str
) -> None:
    """Check that a column takes the members of a union from the same types of two schemas.

    Args:
        old: the column's type in a schema.
        new: its type in another one.
        target: its type in the source's definition.
        field: the path of the column, for messages.

    Raises:
        SchemaError: the types of a union have other positions.
    """
    if pa.types.is_string(target):
        target = new  # the value's JSON has the names of all members
    if isinstance(old, pa.StructType) and isinstance(new, pa.StructType):
        _require_prefix(old, new, field)
        assert isinstance(target, pa.StructType)
        by_names = [{f.name.lower(): f.type for f in own} for own in (old, new)]
        for wanted in target:
            kinds = [own.get(wanted.name.lower()) for own in by_names]
            if kinds[0] is not None and kinds[1] is not None:
                path = f"{field}.{wanted.name}" if field else wanted.name
                require_same_members(kinds[0], kinds[1], wanted.type, path)
    elif isinstance(old, pa.ListType) and isinstance(new, pa.ListType):
        assert isinstance(target, pa.ListType)
        parts = old.value_type, new.value_type, target.value_type
        require_same_members(*parts, f"{field}.element")
    elif isinstance(old, pa.MapType) and isinstance(new, pa.MapType):
        assert isinstance(target, pa.MapType)
        parts = old.item_type, new.item_type, target.item_type
        require_same_members(*parts, f"{field}.value")


def _require_prefix(old: pa.StructType, new: pa.StructType, field: str) -> None:
    """Check that one of two unions begins with the other; structs that are none are let pass."""
    old_members, new_members = ([_member(own) for own in struct] for struct in (old, new))
    pairs = zip(old_members, new_members, strict=False)
    is_prefix = all(a == b or _is_moved(a, b, old_members, new_members) for a, b in pairs)
    if any((*old_members, *new_members)) and not (is_prefix and all((*old_members, *new_members))):
        raise SchemaError(
            f"has the union `{field}` of {_members(new_members)}, which is {_members(old_members)} "
            "in the other schemas. Members have columns by their positions: add new ones last"
        )


def _member(field: pa.Field) -> str | None:
    name = (field.metadata or {}).get(MEMBER)
    return None if name is None else str(name, "utf-8")


def _widened_struct(old: pa.StructType, new: pa.StructType, field: str) -> pa.StructType:
    _require_prefix(old, new, field)
    by_name = {other.name.lower(): other for other in new}
    prefix = f"{field}." if field else ""
    fields = []
    for own in old:
        other = by_name.pop(own.name.lower(), None)
        kind = own.type
        if other is not None:
            kind = widened(kind, other.type, f"{prefix}{own.name}")
        fields.append(own.with_type(kind))
    return pa.struct([*fields, *by_name.values()])


def _is_moved(
    old: str | None, new: str | None, olds: Sequence[str | None], news: Sequence[str | None]
) -> bool:
    """Return whether two types have one name in other namespaces, as no other types of a union."""
    if old is None or new is None:
        return False
    name = _unqualified(old)
    counts = [list(map(_unqualified, filter(None, own))).count(name) for own in (olds, news)]
    return name == _unqualified(new) and counts == [1, 1]


def _unqualified(name: str) -> str:
    return name.rpartition(".")[2]


def _members(types: Sequence[str | None]) -> str:
    return ", ".join(filter(None, types)) or "of one type"


def require_columns(node: Node, field: str = "") -> None:
    """Check that values become columns without a definition.

    Args:
        node: type of the values.
        field: the path of the field, for messages.

    Raises:
        SchemaError: a part of them does not.
    """
    if isinstance(node, Nullable):
        require_columns(node.node, field)
    elif isinstance(node, Struct):
        for name, part in node.fields:
            if part is not None:
                require_columns(part, f"{field}.{name}" if field else name)
    elif isinstance(node, Items):
        require_columns(node.node, f"{field}.{'value' if node.is_map else 'element'}")
    elif node.refused:
        raise SchemaError(
            f"has `{field}` as {node.refused}, for which no column has a type. Set the source's "
            f"`columns`, without the field or with it as {type_name(node.column)}"
        )


def require_castable(node: Node, target: pa.DataType, field: str = "") -> None:
    """Check that values can be cast to a column's type, though maybe not each of them.

    Args:
        node: type of the values.
        target: the column's type.
        field: the path of the field, for messages.

    Raises:
        SchemaError: they cannot.
    """
    node = unwrap(node) or node
    if isinstance(node, Struct) and isinstance(target, pa.StructType):
        for wanted in target:
            if member := node.members.get(wanted.name.lower()):
                path = f"{field}.{wanted.name}" if field else wanted.name
                require_castable(member[1], wanted.type, path)
    elif isinstance(node, Items) and _is_alike(node, target):
        assert isinstance(target, pa.ListType | pa.MapType)
        part = target.item_type if isinstance(target, pa.MapType) else target.value_type
        require_castable(node.node, part, f"{field}.{'value' if node.is_map else 'element'}")
    elif not pa.types.is_string(target) and not (
        isinstance(node, Scalar) and _is_castable(node.column, target)
    ):
        raise SchemaError(
            f"has `{field}` as {type_name(node.column)}, which cannot be cast to "
            f"{type_name(target)}. Correct the source's `columns`"
        )


def _is_alike(node: Items, target: pa.DataType) -> bool:
    """Return whether both are arrays, or maps with the same type of keys."""
    if isinstance(target, pa.MapType):
        return node.key == target.key_type
    return isinstance(target, pa.ListType) and not node.is_map


def _is_castable(kind: pa.DataType, target: pa.DataType) -> bool:
    if kind == target or pa.types.is_string(kind):
        return not pa.types.is_nested(target)
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    times = (pa.types.is_date, pa.types.is_timestamp)
    return any(
        any(test(kind) for test in group) and any(test(target) for test in group)
        for group in (numbers, times)
    )
