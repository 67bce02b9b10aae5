"""Decode JSON whose schemas are in a registry without Spark, if the query only picks columns."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.decimals import decimals
from dbt.adapters.iceberg_stream.stream.sources.arrow.json import decode_objects
from dbt.adapters.iceberg_stream.stream.sources.arrow.json_types import (
    has_times,
    json_arrow_schema,
)
from dbt.adapters.iceberg_stream.stream.sources.arrow.records import (
    IsOther,
    ReadableWriter,
    RecordDecoder,
    converted,
    has_text_operation,
    headers,
    micros_of_nanos,
    never,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import spelled_as
from dbt.adapters.iceberg_stream.stream.sources.formats.json_schema_types import (
    BINARY,
    LOCAL_NANOS,
    UNITS,
    JsonScalar,
    has_decimals,
    is_decimal,
    with_scalars,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_format import Writer
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import MessageSchemas
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import Node, Scalar, Struct
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import json_values


@dataclass(frozen=True)
class _JsonReader:
    """Reads messages of one schema; see RecordReader.

    Attributes:
        record: the type of the messages.
        schemas: what they are read with: decimals as the text of their bytes; or, if there are
            decimals, first as floats, which only numbers can be, and then as they are.
        required: the fields that no message may lack.
        zone: the time zone of times without one.
    """

    record: Struct
    schemas: tuple[pa.Schema, ...]
    required: tuple[str, ...]
    zone: str

    def read(self, messages: pa.BinaryArray) -> pa.StructArray:
        values = json_values(messages)
        of_bytes, *of_numbers = self.schemas
        try:
            records = decode_objects(values, of_bytes, self.zone)
        except ArrowFallback:
            if not of_numbers:
                raise
            for schema in of_numbers:
                records = decode_objects(values, schema, self.zone)
        if any(records[name].null_count for name in self.required):
            raise ArrowFallback
        arrays = [column.combine_chunks() for column in records.columns]
        return converted(
            pa.StructArray.from_arrays(arrays, records.column_names), self.record, _scalars
        )


def json_decoder(
    schemas: MessageSchemas,
    required: Sequence[str],
    zone: str | None,
    is_other: IsOther = never,
) -> RecordDecoder | None:
    """Return what decodes the messages of a batch.

    Args:
        schemas: the schemas of the messages.
        required: columns that each record must have.
        zone: the time zone of times without one; None if Spark has to read times.
        is_other: returns whether messages with the id of another schema are skipped.

    Returns:
        The decoder; None if a type cannot be decoded as Spark does.
    """
    writers: dict[bytes, ReadableWriter] = {}
    for writer in schemas.writers:
        reader = _reader(writer, required, zone)
        if reader is None or not has_text_operation(writer):
            return None
        readable = ReadableWriter(reader, writer.record, writer.row)
        writers |= dict.fromkeys(headers(writer), readable)
    return RecordDecoder(schemas.columns, writers, is_other, key=schemas.key) if writers else None


def _reader(writer: Writer, required: Sequence[str], zone: str | None) -> _JsonReader | None:
    decimal_types = (_text, _float, _number) if has_decimals(writer.record) else (_text,)
    read = [_arrow_schema(writer.record, kind) for kind in decimal_types]
    schemas = tuple(schema for schema in read if schema is not None)
    if len(schemas) < len(read) or (zone is None and any(map(has_times, schemas))):
        return None
    is_row = writer.record == writer.row
    names = spelled_as([name for name, _ in writer.row.fields], required) if is_row else ()
    return _JsonReader(writer.record, schemas, tuple(names), zone or "")


def _arrow_schema(record: Struct, decimal_type: Callable[[Scalar], Scalar]) -> pa.Schema | None:
    def read(node: JsonScalar) -> Scalar:
        if is_decimal(node):
            return decimal_type(node)
        return _text(node) if node.read == BINARY else Scalar(node.read)

    kind = with_scalars(record, read).column
    assert isinstance(kind, t.StructType)
    return json_arrow_schema(kind.fields)


def _text(node: Scalar) -> Scalar:
    return Scalar(t.StringType())


def _float(node: Scalar) -> Scalar:
    return Scalar(t.DoubleType())


def _number(node: Scalar) -> Scalar:
    return Scalar(node.column)


def _scalars(array: pa.Array, node: Node) -> pa.Array:
    """Return values that are not nested, with the types that Spark gives them."""
    assert isinstance(node, JsonScalar)
    kind = to_arrow_type(node.column)
    if node.read == BINARY and pa.types.is_string(array.type):
        octets = _octets(array)
        return decimals(octets, kind) if is_decimal(node) else octets
    if node.sql == LOCAL_NANOS:
        array = micros_of_nanos(array)
    elif node.sql in UNITS:
        array = array.cast(pa.timestamp(UNITS[node.sql], kind.tz))
    return array.cast(kind)


def _octets(texts: pa.StringArray) -> pa.BinaryArray:
    """Decode texts in base64."""
    encoded = texts.cast(pa.binary()).to_pylist()
    decoded = [None if own is None else base64.b64decode(own) for own in encoded]
    # Python's decoder accepts texts that Spark's refuses, such as some with too many `=`.
    if any(
        own is not None and base64.b64encode(own) != text
        for own, text in zip(decoded, encoded, strict=True)
    ):
        raise ArrowFallback
    return pa.array(decoded, pa.binary())
