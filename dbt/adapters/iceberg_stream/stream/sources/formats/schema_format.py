"""What is specific to a format of messages whose schemas are in a registry."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.stream.sources.formats.message_metadata import (
    METADATA,
    MetadataColumns,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError, Struct
from dbt.adapters.iceberg_stream.stream.sources.source import SKIPPED, WHERE

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

# Names of the kinds of schemas, and the value of `format` or `encoding` that reads them.
KINDS = {
    "AVRO": ("Avro", "avro"),
    "PROTOBUF": ("Protobuf", "protobuf"),
    "JSON": ("JSON Schema", "json"),
}


# What is read of each message besides its record: the message or, without one, its key; whether it
# is a key; its position; the id of its schema, null if it has none; and whether it is skipped.
FRAMED = t.StructType(
    [
        t.StructField("value", t.BinaryType()),
        t.StructField("is_tombstone", t.BooleanType()),
        t.StructField("offset", t.LongType()),
        t.StructField(WHERE, t.StringType()),
        t.StructField("id", t.LongType()),
        t.StructField(SKIPPED, t.BooleanType()),
    ]
)
HEADER = t.StructType(
    [t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]
)
METADATA_TYPES: dict[str, t.DataType] = {
    "key": t.BinaryType(),
    "topic": t.StringType(),
    "partition": t.IntegerType(),
    "offset": t.LongType(),
    "timestamp": t.TimestampType(),
    "headers": t.ArrayType(HEADER),
}


def metadata_fields(columns: MetadataColumns) -> list[t.StructField]:
    """Return the field METADATA of frames, if there are columns that take it.

    Args:
        columns: the columns.
    """
    fields = [t.StructField(name, METADATA_TYPES[name]) for name in columns.fields]
    return [t.StructField(METADATA, t.StructType(fields))] if fields else []


@dataclass(frozen=True)
class Writer:
    """Schemas whose messages are read in the same way.

    Attributes:
        number: which one it is.
        ids: of the schemas.
        record: the message's type.
        row: the type of the rows in it.
        layout: what its format needs besides to read a message.
    """

    number: int
    ids: tuple[int, ...]
    record: Struct
    row: Struct
    layout: Hashable = None

    @property
    def decoded(self) -> str:
        """The column that Spark reads an Avro message and the bytes after it into."""
        return f"d{self.number}"

    @property
    def message(self) -> str:
        """The column with the message's record; null if the message is not of these schemas."""
        return f"m{self.number}"

    @property
    def image(self) -> str:
        """The column with the row in the message."""
        return f"i{self.number}"


class SchemaFormat(Protocol):
    """A format of messages.

    Attributes:
        kind: the registry's name of its schemas.
    """

    kind: str

    def parse(self, schema: RegisteredSchema, is_key: bool) -> tuple[Struct, Hashable]:
        """Return the type of a schema's messages, and the layout of a Writer.

        Args:
            schema: the schema.
            is_key: whether its messages are keys.

        Raises:
            SchemaError: it cannot be read.
        """
        ...

    def decode(self, framed: DataFrame, writers: Sequence[Writer]) -> DataFrame:
        """Add the column `message` of each writer; messages may turn out to be skipped.

        Args:
            framed: a frame with the columns of FRAMED, and METADATA if columns take it.
            writers: the schemas that can be read.
        """
        ...

    def null_messages(self, writers: Sequence[Writer]) -> Sequence[bytes]:
        """Return messages that are the same as those without a value.

        Args:
            writers: the schemas that can be read.
        """
        ...

    def problems(self, writers: Sequence[Writer]) -> Iterator[tuple[str, str]]:
        """Yield SQL conditions of messages that cannot be decoded, and SQL of the reasons.

        Args:
            writers: the schemas that can be read.
        """
        ...

    def message_text(self) -> str:
        """Return SQL of a message as text, for bad ones."""
        ...


def require_kind(schema: RegisteredSchema, kind: str, key: str) -> None:
    """Check that a schema is of the format that the source names.

    Args:
        schema: the schema.
        kind: the registry's name of the format.
        key: the key that names the format, `format` or `encoding`.

    Raises:
        SchemaError: it is of another one; the message names the right value of the key.
    """
    if schema.kind == kind:
        return
    name, value = KINDS.get(schema.kind, (schema.kind, ""))
    advice = f"Set `{key}: {value}`" if value else "Set `format: raw`"
    raise SchemaError(f"is {name} and not {KINDS[kind][0]}. {advice}")
