"""Types of records, and the columns that they become.

The fields of a record are read under names of their positions: names that differ in their case only
cannot disturb each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

# The begin of the name of a flag: whether a record has the field before it. It is no column.
FLAG = "\0"


class SchemaError(Exception):
    """A schema cannot be read, or does not fit; the message follows `the schema 7 `."""


@dataclass(frozen=True)
class Scalar:
    """A type without parts.

    Attributes:
        column: the column's type.
        read: the type that values are read with; None for the column's.
        form: how they become values of the column; see `values.FORMS`.
        refused: what the values are, if only a definition makes them a column; empty otherwise.
    """

    column: pa.DataType
    read: pa.DataType | None = None
    form: str = ""
    refused: str = ""

    @property
    def read_type(self) -> pa.DataType:
        """The type that values are read with."""
        return self.read or self.column


@dataclass(frozen=True)
class Struct:
    """A record.

    Attributes:
        fields: names and types; None for a field without values, which becomes no column.
    """

    fields: tuple[tuple[str, Node | None], ...]

    @property
    def column(self) -> pa.StructType:
        """The column's type."""
        return pa.struct([(name, node.column) for name, node in self.fields if node is not None])

    @property
    def read_type(self) -> pa.StructType:
        """The type that values are read with."""
        return pa.struct([(name, node.read_type) for name, node in self.members.values()])

    @property
    def members(self) -> dict[str, tuple[str, Node]]:
        """The name under which each column is read and its type, by its name in lower case."""
        return {
            name.lower(): (f"f{position}", node)
            for position, (name, node) in enumerate(self.fields)
            if node is not None
        }

    @property
    def columns(self) -> pa.StructType:
        """The columns of a row, without flags."""
        return pa.struct([field for field in self.column if not field.name.startswith(FLAG)])

    @property
    def parts(self) -> list[tuple[str, Node]]:
        """Names and types of the fields that become columns."""
        return [(name, node) for name, node in self.fields if node is not None]


@dataclass(frozen=True)
class Nullable:
    """A type whose values may be null.

    Attributes:
        node: the type.
    """

    node: Node

    @property
    def column(self) -> pa.DataType:
        """The column's type."""
        return self.node.column

    @property
    def read_type(self) -> pa.DataType:
        """The type that values are read with."""
        return self.node.read_type


@dataclass(frozen=True)
class Items:
    """An array, or a map.

    Attributes:
        node: type of the items, or of the map's values.
        key: type of the map's keys; None for an array.
    """

    node: Node
    key: pa.DataType | None = None

    @property
    def is_map(self) -> bool:
        """Return whether it is a map."""
        return self.key is not None

    @property
    def column(self) -> pa.DataType:
        """The column's type."""
        return self._of(self.node.column)

    @property
    def read_type(self) -> pa.DataType:
        """The type that values are read with."""
        return self._of(self.node.read_type)

    def _of(self, part: pa.DataType) -> pa.DataType:
        return list_of(part) if self.key is None else pa.map_(self.key, part)


Node = Scalar | Struct | Nullable | Items


def list_of(kind: pa.DataType) -> pa.ListType:
    """Return the type of an array, as Spark names its items."""
    return pa.list_(pa.field("element", kind))


def unwrap(node: Node | None) -> Node | None:
    """Return the type of a nullable one."""
    return node.node if isinstance(node, Nullable) else node


def require_distinct(names: Iterable[str]) -> None:
    """Check that the names of a record's columns differ for Spark.

    Raises:
        SchemaError: two are equal but for their case.
    """
    lowered = [name.lower() for name in names]
    if twice := sorted({name for name in lowered if lowered.count(name) > 1}):
        raise SchemaError(f"has fields that differ only in their case: `{twice[0]}`")
