"""Decode messages of Avro behind the id of their schema.

Spark reads each message with the schema that it was written with, and its fields go to columns
that take the fields of all schemas. Avro's own resolution to one schema would drop fields that a
newer schema lacks, and fill others with defaults in those rows only that are read late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.sql.quoting import literal
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import (
    END,
    parse_avro,
    schema_for_spark,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_unions import (
    UnionMember,
    null_messages,
    union_member,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_format import Writer
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import Struct
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import body_sql
from dbt.adapters.iceberg_stream.stream.sources.source import SKIPPED

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

NO_INDEX = (
    ", whose union has no record with the index of the message. Check that its producer sends the "
    "id of the schema that it encodes messages with"
)
OPTIONS = "map('mode', 'PERMISSIVE', 'datetimeRebaseMode', 'CORRECTED')"


class AvroFormat:
    """Avro, which Spark decodes; see SchemaFormat.

    Attributes:
        record: full name of the record that is read of a union; messages of others are skipped.
        key_record: as `record`, of keys.
    """

    kind = "AVRO"

    def __init__(self, record: str | None = None, key_record: str | None = None) -> None:
        self.record, self.key_record = record, key_record

    def parse(self, schema: RegisteredSchema, is_key: bool) -> tuple[Struct, UnionMember | None]:
        record, key = (self.key_record, "key_record") if is_key else (self.record, "record")
        member = union_member(schema, record, key)
        texts = tuple(reference.text for reference in schema.references)
        return parse_avro(schema.text, texts, None if member is None else member.index), member

    def decode(self, framed: DataFrame, writers: Sequence[Writer]) -> DataFrame:
        if others := [sql for writer in writers for sql in _others(writer)]:
            skipped = f"{SKIPPED} or coalesce({' or '.join(others)}, false) as {SKIPPED}"
            framed = framed.selectExpr(f"* except ({SKIPPED})", skipped)
        decoded = framed.selectExpr("*", *map(_decoded, writers))
        return decoded.selectExpr("*", *map(_complete, writers))

    def null_messages(self, writers: Sequence[Writer]) -> Sequence[bytes]:
        return null_messages(writers)

    def problems(self, writers: Sequence[Writer]) -> Iterator[tuple[str, str]]:
        for writer in writers:
            if prefix := _prefix(writer):
                condition = f"{_is_of(writer)} and not {_begins(prefix)}"
                yield condition, f"concat('has the schema ', id, {literal(NO_INDEX)})"

    def message_text(self) -> str:
        return "hex(value)"


def _is_of(writer: Writer) -> str:
    return f"id in ({', '.join(map(str, writer.ids))})"


def _prefix(writer: Writer) -> bytes:
    """Return what is between the header of a message and its record."""
    return writer.layout.prefix if isinstance(writer.layout, UnionMember) else b""


def _begins(prefix: bytes) -> str:
    return f"startswith({body_sql('value')}, X'{prefix.hex()}')"


def _others(writer: Writer) -> Iterator[str]:
    """Yield conditions of messages that are skipped."""
    if isinstance(writer.layout, UnionMember):
        for prefix in writer.layout.other_prefixes:
            yield f"({_is_of(writer)} and {_begins(prefix)})"


def _decoded(writer: Writer) -> str:
    prefix, schema = _prefix(writer), literal(schema_for_spark(writer.record))
    body = body_sql("value", prefix)
    message = f"from_avro(concat({body}, X'{END}'), {schema}, {OPTIONS})"
    condition = f"{_is_of(writer)} and {_begins(prefix)}" if prefix else _is_of(writer)
    return f"case when {condition} then {message} end as {writer.decoded}"


def _complete(writer: Writer) -> str:
    decoded = writer.decoded
    return f"if({decoded}.end = X'{END}', {decoded}.r, null) as {writer.message}"
