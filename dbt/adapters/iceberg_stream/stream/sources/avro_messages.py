"""Decode messages of Avro behind the id of their schema.

Spark reads each message with the schema that it was written with, and its fields go to columns
that take the fields of all schemas. Avro's own resolution to one schema would drop fields that a
newer schema lacks, and fill others with defaults in those rows only that are read late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.sql.quoting import literal
from dbt.adapters.iceberg_stream.stream.sources.avro_types import (
    END,
    parse_avro,
    schema_for_spark,
)
from dbt.adapters.iceberg_stream.stream.sources.schema_format import Writer
from dbt.adapters.iceberg_stream.stream.sources.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.schema_types import Struct
from dbt.adapters.iceberg_stream.stream.sources.wire_format import body_sql

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

OPTIONS = "map('mode', 'PERMISSIVE', 'datetimeRebaseMode', 'CORRECTED')"


class AvroFormat:
    """Avro, which Spark decodes; see SchemaFormat."""

    kind = "AVRO"

    def parse(self, schema: RegisteredSchema, is_key: bool) -> tuple[Struct, None]:
        texts = tuple(reference.text for reference in schema.references)
        return parse_avro(schema.text, texts), None

    def decode(self, framed: DataFrame, writers: Sequence[Writer]) -> DataFrame:
        decoded = framed.selectExpr("*", *map(_decoded, writers))
        return decoded.selectExpr("*", *map(_complete, writers))

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from ()


def _decoded(writer: Writer) -> str:
    ids = ", ".join(map(str, writer.ids))
    schema = literal(schema_for_spark(writer.record))
    message = f"from_avro(concat({body_sql('value')}, X'{END}'), {schema}, {OPTIONS})"
    return f"case when id in ({ids}) then {message} end as {writer.decoded}"


def _complete(writer: Writer) -> str:
    decoded = writer.decoded
    return f"if({decoded}.end = X'{END}', {decoded}.r, null) as {writer.message}"
