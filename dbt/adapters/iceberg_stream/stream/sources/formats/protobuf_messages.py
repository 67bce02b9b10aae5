"""Decode messages of Protobuf behind the id of their schema and the index of their message.

Spark's own function for Protobuf is in a package of its own, reads one message of a schema, and
gives intervals for durations, which Iceberg cannot store. Protobuf's classes, which Spark's client
needs anyway, decode a message in about a microsecond; see protobuf_decoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from dbt.adapters.iceberg_stream.stream.sources.formats import protobuf_decoder
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_decoder import (
    OTHER,
    PROBLEM,
    MessageDecoder,
    MessageLayout,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    compiled_files,
    message_indexes,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_types import record_type
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_format import FRAMED, Writer
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    SchemaError,
    Struct,
    read_type,
)
from dbt.adapters.iceberg_stream.stream.sources.source import SKIPPED

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame


class ProtobufFormat:
    """Protobuf, which Python workers of Spark decode; see SchemaFormat.

    Attributes:
        message: full name of the message that is read; None for the first of a schema.
        record: full name of the message that is read; messages of others are skipped.
        key_record: as `record`, of keys.
        metadata: the field METADATA of frames, if there is one.
    """

    kind = "PROTOBUF"

    def __init__(
        self,
        message: str | None = None,
        record: str | None = None,
        key_record: str | None = None,
        metadata: Sequence[t.StructField] = (),
    ) -> None:
        self.message, self.record, self.key_record = message, record, key_record
        self.metadata = metadata

    def parse(self, schema: RegisteredSchema, is_key: bool) -> tuple[Struct, MessageLayout]:
        files = compiled_files(schema.text, schema.references)
        file, pool = read_files(files)
        indexes = message_indexes(file)
        wanted = self.key_record if is_key else self.record
        name = _message_name(list(indexes), wanted or (None if is_key else self.message))
        record = record_type(pool.FindMessageTypeByName(name))
        return record, MessageLayout(files, indexes[name], wanted is not None)

    def decode(self, framed: DataFrame, writers: Sequence[Writer]) -> DataFrame:
        from pyspark import cloudpickle
        from pyspark.sql.pandas.types import to_arrow_schema

        records = [t.StructField(w.message, read_type(w.record)) for w in writers]
        problems = [t.StructField(PROBLEM, t.StringType()), t.StructField(OTHER, t.BooleanType())]
        framed_fields = [*FRAMED.fields, *self.metadata]
        schema = t.StructType([*framed_fields, *problems, *records])
        layouts = {w.message: (w.ids, w.layout) for w in writers}
        decoder = MessageDecoder(layouts, to_arrow_schema(schema))  # type: ignore[arg-type]
        cloudpickle.register_pickle_by_value(protobuf_decoder)
        # Workers need not see the bytes of messages that are skipped.
        sent = framed.selectExpr(
            "* except (value)", f"if({SKIPPED}, null, value) as value"
        ).selectExpr(*(field.name for field in framed_fields))
        decoded = sent.mapInArrow(decoder.run, schema)
        return decoded.selectExpr(f"* except ({SKIPPED})", f"{SKIPPED} or {OTHER} as {SKIPPED}")

    def null_messages(self, writers: Sequence[Writer]) -> Sequence[bytes]:
        return ()

    def problems(self, writers: Sequence[Writer]) -> Iterator[tuple[str, str]]:
        yield f"{PROBLEM} is not null", PROBLEM

    def message_text(self) -> str:
        return "hex(value)"


def _message_name(names: Sequence[str], message: str | None) -> str:
    """Return the name of the message to read: of the first of a schema by default."""
    if not names:
        raise SchemaError("has no message, so it has no columns")
    if message is None:
        return names[0]
    if message not in names:
        raise SchemaError(
            f"has no message `{message}`. Set the source's `message` to one of: {', '.join(names)}"
        )
    return message
