"""Columns that the records of several schemas become, and SQL of their values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Nullable,
    Scalar,
    SchemaError,
    Struct,
    unwrap,
)
from dbt.adapters.iceberg_stream.stream.sources.type_sql import type_sql

WIDER = {
    (t.IntegerType(), t.LongType()): t.LongType(),
    (t.FloatType(), t.DoubleType()): t.DoubleType(),
}
# Kinds of types that Spark can cast to each other; to text it can cast all.
NUMBERS = (t.NumericType, t.BooleanType)
TIMES = (t.DateType, t.TimestampType, t.TimestampNTZType)
# Metadata of a field that is a member of a union: the name of its type.
MEMBER = "member"
NULL = "cast(null as {})"


def widened(old: t.DataType, new: t.DataType, field: str = "") -> t.DataType:
    """Return a type that takes the values of two, as Iceberg widens columns.

    Args:
        old: the type of the columns so far.
        new: another type; its new fields come last.
        field: the path of the field, for messages.

    Raises:
        SchemaError: there is no such type.
    """
    if isinstance(old, t.StructType) and isinstance(new, t.StructType):
        return _widened_struct(old, new, field)
    if isinstance(old, t.ArrayType) and isinstance(new, t.ArrayType):
        return t.ArrayType(widened(old.elementType, new.elementType, f"{field}.element"))
    if isinstance(old, t.MapType) and isinstance(new, t.MapType) and old.keyType == new.keyType:
        values = widened(old.valueType, new.valueType, f"{field}.value")
        return t.MapType(old.keyType, values)
    if isinstance(old, t.DecimalType) and isinstance(new, t.DecimalType) and old.scale == new.scale:
        return old if old.precision >= new.precision else new
    wider = old if old == new else WIDER.get((old, new)) or WIDER.get((new, old))
    if wider is None:
        raise SchemaError(
            f"has `{field}` as {new.simpleString()}, which is {old.simpleString()} in the other "
            "schemas. Set the source's `columns` to choose its type"
        )
    return wider


def member_field(name: str, kind: t.DataType, type_name: str) -> t.StructField:
    """Return the field of a member of a union.

    Args:
        name: by the member's position.
        kind: of its values.
        type_name: the name by which Avro matches members of two unions.
    """
    return t.StructField(name, kind, metadata={MEMBER: type_name})


def require_same_members(old: t.DataType, new: t.DataType, target: t.DataType, field: str) -> None:
    """Check that a column takes the members of a union from the same types of two schemas.

    Args:
        old: the column's type in a schema.
        new: its type in another one.
        target: its type in the source's definition.
        field: the path of the column, for messages.

    Raises:
        SchemaError: the types of a union have other positions.
    """
    if isinstance(target, t.StringType):
        target = new  # the value's JSON has the names of all members
    if isinstance(old, t.StructType) and isinstance(new, t.StructType):
        _require_prefix(old, new, field)
        assert isinstance(target, t.StructType)
        by_names = [{f.name.lower(): f.dataType for f in own.fields} for own in (old, new)]
        for wanted in target.fields:
            kinds = [own.get(wanted.name.lower()) for own in by_names]
            if kinds[0] is not None and kinds[1] is not None:
                path = f"{field}.{wanted.name}" if field else wanted.name
                require_same_members(kinds[0], kinds[1], wanted.dataType, path)
    elif isinstance(old, t.ArrayType) and isinstance(new, t.ArrayType):
        assert isinstance(target, t.ArrayType)
        parts = old.elementType, new.elementType, target.elementType
        require_same_members(*parts, f"{field}.element")
    elif isinstance(old, t.MapType) and isinstance(new, t.MapType):
        assert isinstance(target, t.MapType)
        parts = old.valueType, new.valueType, target.valueType
        require_same_members(*parts, f"{field}.value")


def _require_prefix(old: t.StructType, new: t.StructType, field: str) -> None:
    """Check that one of two unions begins with the other; structs that are none are let pass."""
    old_members, new_members = (
        [own.metadata.get(MEMBER) for own in struct.fields] for struct in (old, new)
    )
    pairs = zip(old_members, new_members, strict=False)
    is_prefix = all(a == b or _is_moved(a, b, old_members, new_members) for a, b in pairs)
    if any((*old_members, *new_members)) and not (is_prefix and all((*old_members, *new_members))):
        raise SchemaError(
            f"has the union `{field}` of {_members(new_members)}, which is {_members(old_members)} "
            "in the other schemas. Members have columns by their positions: add new ones last"
        )


def _widened_struct(old: t.StructType, new: t.StructType, field: str) -> t.StructType:
    _require_prefix(old, new, field)
    by_name = {other.name.lower(): other for other in new.fields}
    prefix = f"{field}." if field else ""
    fields = []
    for own in old.fields:
        other = by_name.pop(own.name.lower(), None)
        kind = own.dataType
        if other is not None:
            kind = widened(kind, other.dataType, f"{prefix}{own.name}")
        fields.append(t.StructField(own.name, kind, metadata=own.metadata))
    return t.StructType([*fields, *by_name.values()])


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
            f"`columns`, without the field or with it as {node.column.simpleString()}"
        )


def require_castable(node: Node, target: t.DataType, field: str = "") -> None:
    """Check that values can be cast to a column's type, though maybe not each of them.

    Args:
        node: type of the values.
        target: the column's type.
        field: the path of the field, for messages.

    Raises:
        SchemaError: they cannot.
    """
    node = unwrap(node) or node
    if isinstance(node, Struct) and isinstance(target, t.StructType):
        for wanted in target.fields:
            if member := node.members.get(wanted.name.lower()):
                path = f"{field}.{wanted.name}" if field else wanted.name
                require_castable(member[1], wanted.dataType, path)
    elif isinstance(node, Items) and _is_alike(node, target):
        assert isinstance(target, t.ArrayType | t.MapType)
        part = target.valueType if isinstance(target, t.MapType) else target.elementType
        require_castable(node.node, part, f"{field}.{'value' if node.is_map else 'element'}")
    elif not isinstance(target, t.StringType) and not (
        isinstance(node, Scalar) and _is_castable(node.column, target)
    ):
        raise SchemaError(
            f"has `{field}` as {node.column.simpleString()}, which cannot be cast to "
            f"{target.simpleString()}. Correct the source's `columns`"
        )


def _is_alike(node: Items, target: t.DataType) -> bool:
    """Return whether both are arrays, or maps with the same type of keys."""
    if isinstance(target, t.MapType):
        return node.key == target.keyType
    return isinstance(target, t.ArrayType) and not node.is_map


def _is_castable(kind: t.DataType, target: t.DataType) -> bool:
    if kind == target or isinstance(kind, t.StringType):
        return not isinstance(target, (t.StructType, t.ArrayType, t.MapType))
    groups = (NUMBERS, TIMES)
    return any(isinstance(kind, group) and isinstance(target, group) for group in groups)


def value_sql(node: Node, value: str, target: t.DataType, depth: int = 0) -> str:
    """Return SQL of a column's value; null where it cannot be cast.

    Args:
        node: type of the value.
        value: SQL of the value as it is read.
        target: the column's type, which the type can be cast to.
        depth: of nested arrays and maps, for the names of variables.
    """
    if isinstance(node, Nullable):
        return value_sql(node.node, value, target, depth)
    if isinstance(node, Scalar):
        converted = node.sql.replace("{x}", value)
        if node.column == target:
            return converted
        return f"try_cast({converted} as {type_sql(target)})"
    if isinstance(target, t.StringType):
        return f"to_json({value_sql(node, value, node.column, depth)})"
    if isinstance(node, Struct):
        assert isinstance(target, t.StructType)
        pairs = field_values(node, value, target, depth)
        fields = ", ".join(f"{sql} as {quote(name)}" for name, sql in pairs)
        return f"if({value} is null, null, struct({fields}))"
    item = f"x{depth}"
    if isinstance(target, t.MapType):
        inner = value_sql(node.node, item, target.valueType, depth + 1)
        mapped = f"transform_values({value}, (k{depth}, {item}) -> {inner})"
    else:
        assert isinstance(target, t.ArrayType)
        inner = value_sql(node.node, item, target.elementType, depth + 1)
        mapped = f"transform({value}, {item} -> {inner})"
    return value if inner == item else mapped


def field_values(
    record: Struct, value: str, target: t.StructType, depth: int = 0
) -> list[tuple[str, str]]:
    """Return names and SQL of the fields of a struct.

    Args:
        record: type of the value.
        value: SQL of the value as it is read.
        target: the struct's type; fields that the record lacks are null.
        depth: of nested arrays and maps.
    """
    values = []
    for wanted in target.fields:
        member = record.members.get(wanted.name.lower())
        if member is None:
            sql = NULL.format(type_sql(wanted.dataType))
        else:
            sql = value_sql(member[1], f"{value}.{member[0]}", wanted.dataType, depth)
        values.append((wanted.name, sql))
    return values


def failed_sql(node: Node, value: str, target: t.DataType, depth: int = 0) -> str | None:
    """Return a condition: whether a value, or a part of it, cannot be cast to a column's type.

    Args:
        node: type of the value.
        value: SQL of the value as it is read.
        target: the column's type.
        depth: of nested arrays and maps.

    Returns:
        The condition; None if every value fits.
    """
    if isinstance(node, Nullable):
        return failed_sql(node.node, value, target, depth)
    if isinstance(node, Scalar):
        if _always_fits(node, target):
            return None
        converted = value_sql(node, value, target)
        if node.column != target and isinstance(node.column, t.DecimalType):
            # A cast rounds.
            back = f"try_cast({converted} as {type_sql(node.column)})"
            return f"not ({back} <=> {value_sql(node, value, node.column)})"
        return f"({value} is not null and {converted} is null)"
    if isinstance(target, t.StringType):
        target = node.column
    if isinstance(node, Struct):
        assert isinstance(target, t.StructType)
        return _any(
            failed_sql(member[1], f"{value}.{member[0]}", wanted.dataType, depth)
            for wanted in target.fields
            if (member := node.members.get(wanted.name.lower()))
        )
    item = f"x{depth}"
    is_map = isinstance(target, t.MapType)
    assert isinstance(target, t.MapType | t.ArrayType)
    part = target.valueType if isinstance(target, t.MapType) else target.elementType
    inner = failed_sql(node.node, item, part, depth + 1)
    items = f"map_values({value})" if is_map else value
    return None if inner is None else f"exists({items}, {item} -> {inner})"


def _always_fits(node: Scalar, target: t.DataType) -> bool:
    if "try_" in node.sql:
        return False
    if node.column == target or isinstance(target, t.StringType):
        return True
    try:
        return widened(node.column, target) == target
    except SchemaError:
        return False


def _any(conditions: Iterable[str | None]) -> str | None:
    some = [condition for condition in conditions if condition is not None]
    return f"({' or '.join(some)})" if some else None
