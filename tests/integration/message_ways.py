"""What messages become, as values of rows or as bad records, on each way that they are decoded.

`alone` decodes each message in this process, and by Spark where that is left to it, as a batch of
one message is; `spark` decodes all of them by Spark, as a batch that has one of Spark's is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.avro import avro_decoder
from dbt.adapters.iceberg_stream.stream.sources.arrow.debezium import decode_debezium
from dbt.adapters.iceberg_stream.stream.sources.arrow.json import decode_messages
from dbt.adapters.iceberg_stream.stream.sources.arrow.json_schema import json_decoder
from dbt.adapters.iceberg_stream.stream.sources.arrow.json_types import json_arrow_schema
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import (
    SchemaMessages,
    message_schemas,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.source import (
    MINOR,
    REASON,
    ROW_DELETED,
    WHERE,
)
from tests.unit.stream.sources.formats.avro_rows import numbered

WAYS = ("alone", "spark")
# Rows as text, which tells NaN and types of numbers apart; or why the message is bad.
Outcome = list[str] | str


def decode(
    spark: Session,
    way: str,
    envelope: Envelope,
    values: Sequence[bytes],
    schemas: Sequence[RegisteredSchema] = (),
) -> list[Outcome]:
    """Return what each message becomes."""
    by_spark = _spark(spark, envelope, values, schemas)
    if way == "spark":
        return by_spark
    alone = (in_process(spark, envelope, [value], schemas) for value in values)
    return [left if own is None else own[0] for own, left in zip(alone, by_spark, strict=True)]


def in_process(
    spark: Session,
    envelope: Envelope,
    values: Sequence[bytes],
    schemas: Sequence[RegisteredSchema] = (),
) -> list[Outcome] | None:
    """Return what the messages of a batch become without Spark; None if it is left to Spark."""
    declared = pa.table({"value": pa.array(values, pa.binary()), "offset": range(len(values))})
    batches = declared.to_batches()
    try:
        if schemas:
            found = message_schemas(schemas, envelope, _declared(spark, envelope))
            decoder = (
                json_decoder(found, envelope.required, "UTC")
                if envelope.schema_format == "json"
                else avro_decoder(found)
            )
            if decoder is None:
                return None
            columns = {name: name for name in decoder.schema.names}
            decoded = list(decoder.decode(batches, columns))
        else:
            schema = json_arrow_schema(envelope.fields(spark.spark))
            if schema is None or not (envelope.has_only_records or envelope.has_only_rows):
                return None
            columns = {name: name for name in schema.names}
            required = envelope.required_columns(schema.names)
            if envelope.name == "debezium":
                key = envelope.key_columns(schema.names)
                decoded = list(decode_debezium(batches, schema, columns, key))
            else:
                decoded = list(decode_messages(batches, schema, columns, required))
    except ArrowFallback:
        return None
    outcomes: list[Outcome] = [[] for _ in values]
    for batch in decoded:
        table = pa.Table.from_batches([batch])
        if ROW_DELETED not in table.schema.names:
            table = table.append_column(ROW_DELETED, pa.repeat(False, len(table)))
        rows = table.select([*columns, ROW_DELETED]).rename_columns([*columns, "deleted"])
        for place, row in zip(table[MINOR].to_pylist(), numbered(rows), strict=True):
            _add(outcomes, place, row)
    return outcomes


def _spark(
    spark: Session,
    envelope: Envelope,
    values: Sequence[bytes],
    schemas: Sequence[RegisteredSchema],
) -> list[Outcome]:
    messages = {
        "key": pa.nulls(len(values), pa.binary()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array([0] * len(values), pa.int32()),
        "offset": pa.array(range(len(values)), pa.int64()),
    }
    frame = spark.spark.createDataFrame(pa.table(messages))
    if schemas:
        found = message_schemas(schemas, envelope, _declared(spark, envelope))
        names, rows = found.columns.names, SchemaMessages(envelope, found).unpack(frame)
    else:
        names = [field.name for field in envelope.fields(spark.spark)]
        rows = envelope.unpack(spark.spark, frame)
    columns = ", ".join(map(quote, names))
    place = f"cast(regexp_extract({WHERE}, 'offset ([0-9]+)', 1) as int)"
    sql = (
        f"select {columns}, __stream.deleted as deleted, {REASON}, {place} as place from v "
        "order by place, deleted desc"
    )
    decoded = spark.rows(sql, v=rows)
    reasons, places = decoded[REASON].to_pylist(), decoded["place"].to_pylist()
    outcomes: list[Outcome] = [[] for _ in values]
    texts = numbered(decoded.drop_columns([REASON, "place"]))
    for reason, place, row in zip(reasons, places, texts, strict=True):
        if reason is None:
            _add(outcomes, place, row)
        else:
            outcomes[place] = reason
    return outcomes


def _add(outcomes: list[Outcome], place: int, row: str) -> None:
    rows = outcomes[place]
    assert isinstance(rows, list), "a bad record has no rows"
    rows.append(row)


def _declared(spark: Session, envelope: Envelope) -> Any:
    from pyspark.sql.types import StructType

    return StructType(envelope.fields(spark.spark)) if envelope.columns else None
