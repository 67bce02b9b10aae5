"""Types of messages whose schemas are in a registry, and the columns that they become.

The fields of a record are read under names of their positions: names that Spark would take for
equal cannot disturb it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import types as t


class SchemaError(Exception):
    """A schema cannot be read, or does not fit; the message follows `the schema 7 `."""


@dataclass(frozen=True)
class Scalar:
    """A type without parts.

    Attributes:
        column: the column's type.
        sql: of the column's value, with `{x}` for the value that is read.
        refused: what the values are, if only a definition makes them a column; empty otherwise.
    """

    column: t.DataType
    sql: str = "{x}"
    refused: str = ""


@dataclass(frozen=True)
class Struct:
    """A record.

    Attributes:
        fields: names and types; None for a field without values, which becomes no column.
    """

    fields: tuple[tuple[str, Node | None], ...]
    prefix: ClassVar[str] = "f"

    @property
    def column(self) -> t.StructType:
        """The column's type."""
        columns = [(name, node.column) for name, node in self.fields if node is not None]
        return t.StructType([t.StructField(*column) for column in columns])

    @property
    def members(self) -> dict[str, tuple[str, Node]]:
        """The name under which each column is read and its type, by its name in lower case."""
        return {
            name.lower(): (f"{self.prefix}{position}", node)
            for position, (name, node) in enumerate(self.fields)
            if node is not None
        }


@dataclass(frozen=True)
class Nullable:
    """A type whose values may be null.

    Attributes:
        node: the type.
    """

    node: Node

    @property
    def column(self) -> t.DataType:
        """The column's type."""
        return self.node.column


@dataclass(frozen=True)
class Items:
    """An array, or a map.

    Attributes:
        node: type of the items, or of the map's values.
        key: type of the map's keys; None for an array.
    """

    node: Node
    key: t.DataType | None = None

    @property
    def is_map(self) -> bool:
        """Return whether it is a map."""
        return self.key is not None

    @property
    def column(self) -> t.DataType:
        """The column's type."""
        if self.key is not None:
            return t.MapType(self.key, self.node.column)
        return t.ArrayType(self.node.column)


Node = Scalar | Struct | Nullable | Items


def unwrap(node: Node | None) -> Node | None:
    """Return the type of a nullable one."""
    return node.node if isinstance(node, Nullable) else node


def require_distinct(names: list[str]) -> None:
    """Check that the names of a record's columns differ for Spark.

    Raises:
        SchemaError: two are equal but for their case.
    """
    lowered = [name.lower() for name in names]
    if twice := sorted({name for name in lowered if lowered.count(name) > 1}):
        raise SchemaError(f"has fields that differ only in their case: `{twice[0]}`")


def read_type(node: Node) -> t.DataType:
    """Return the type of values as they are read: fields have names of their positions."""
    if isinstance(node, Struct):
        members = node.members.values()
        return t.StructType([t.StructField(name, read_type(kind)) for name, kind in members])
    if isinstance(node, Items):
        part = read_type(node.node)
        return t.ArrayType(part) if node.key is None else t.MapType(node.key, part)
    return node.column
