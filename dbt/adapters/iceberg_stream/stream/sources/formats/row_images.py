"""What the images of a row before and after a change must have, in SQL.

Debezium's and Maxwell's messages of all formats are checked, so that no image becomes a row whose
key or values are not those of the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.sql.quoting import literal, quote
from dbt.adapters.iceberg_stream.stream.sources.formats.json_numbers import MODE

# What Debezium writes for a large value of Postgres that an update leaves as it is.
PLACEHOLDER = "__debezium_unavailable_value"
# The type of an object's members, as texts.
MEMBERS = "map<string, string>"
# Operations of Debezium on one row.
OF_ROW = "op in ('c', 'r', 'u', 'd')"


def image_reasons(
    image: str, keys: Mapping[str, str], values: Iterable[tuple[str, str, t.DataType]]
) -> Iterator[tuple[str, str]]:
    """Yield conditions of Debezium's messages that are no change of a row, and the reasons.

    Args:
        image: SQL of the row, with the column `op`: before a delete, after other changes.
        keys: SQL conditions that the row has columns of the key, by their names.
        values: names, SQL and types of the row's columns.
    """
    for operations, name in (("op = 'd'", "before"), ("op in ('c', 'r', 'u')", "after")):
        yield f"{operations} and {image} is null", f"has no row in `{name}`"
    yield from missing_keys(OF_ROW, keys)
    for name, value, kind in values:
        if condition := _is_placeholder(value, kind):
            yield f"op <> 'd' and {condition}", unlogged(name)


def missing_keys(is_row: str, keys: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield conditions of messages that lack a column of the key, and the reasons.

    Args:
        is_row: SQL condition: the message has a row.
        keys: SQL conditions that the row has columns of the key, by their names.
    """
    for name, has_key in keys.items():
        yield f"{is_row} and not {has_key}", f"lacks the key `{name}`"


def member_names(text: str, *path: str) -> str:
    """Return SQL of the names of the members of an object in JSON; null if it is none.

    Args:
        text: SQL of the JSON.
        path: names of the members that the object is in.
    """
    kind = MEMBERS
    for name in reversed(path):
        kind = f"struct<{name}: {kind}>"
    # Of objects with NaN, or beyond the limits of their parser, Spark's functions of paths and keys
    # return null.
    object_sql = ".".join((f"from_json({text}, '{kind}', {MODE})", *path))
    return f"map_keys({object_sql})"


def has_members(members: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return SQL conditions that a JSON object has members, by their names.

    Args:
        members: SQL of the names of its members.
        values: SQL of the members' values, by their names: one that is not null is there.
    """
    return {
        name: f"({value} is not null or coalesce("
        f"array_contains({members}, {literal(name)}), false))"
        for name, value in values.items()
    }


def values_of(image: str, names: Iterable[str]) -> dict[str, str]:
    """Return SQL of the values of columns, by their names.

    Args:
        image: SQL of the row.
        names: the columns.
    """
    return {name: f"{image}.{quote(name)}" for name in names}


def moves(pairs: Iterable[tuple[str, str]]) -> str:
    """Return SQL: whether an update changes the key, so that the row of the old key goes.

    Args:
        pairs: SQL of each column of the key before and after the update. Values that are null
            before it were not logged.
    """
    # As text, because Spark compares no maps.
    changed = " or ".join(
        f"{old} is not null and not (cast({old} as string) <=> cast({new} as string))"
        for old, new in pairs
    )
    return f"coalesce(op = 'u' and ({changed}), false)" if changed else "false"


def unlogged(name: str) -> str:
    """Return why a message without a value of a column is bad."""
    return (
        f"has `{PLACEHOLDER}` in `{name}`: Postgres did not log the value. Set REPLICA IDENTITY "
        "FULL for the table, or leave the column out of the source's `columns`"
    )


def _is_placeholder(value: str, kind: t.DataType) -> str | None:
    """Return SQL: whether a value is missing; None if no value of the type can be."""
    if isinstance(kind, t.StringType):
        return f"{value} = {literal(PLACEHOLDER)}"
    if isinstance(kind, t.BinaryType):
        return f"{value} = X'{PLACEHOLDER.encode().hex()}'"
    if isinstance(kind, t.ArrayType) and isinstance(kind.elementType, t.StringType):
        return f"array_contains({value}, {literal(PLACEHOLDER)})"
    return None
