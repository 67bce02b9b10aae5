"""What messages become, as values of rows or as bad records: alone, and in one batch with others.

The messages are of a source without a broker, whose batches PyArrow or Spark can compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.message_records import MessageRecords
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import (
    NO_RECORD,
    MessageDecoder,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import message_schemas
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.kafka.message_batch import MessageBatch
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from dbt.adapters.iceberg_stream.stream.sources.kafka.topic_schemas import TopicSchemas
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier
from tests.unit.stream.sources.formats.decoded_messages import numbered, require_sound

WAYS = ("alone", "together")
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
    decoder = decoder_of(spark, envelope, schemas)
    if way == "together":
        return outcomes(decoder, values)
    return [outcome for value in values for outcome in outcomes(decoder, [value])]


def decoder_of(
    spark: Session, envelope: Envelope, schemas: Sequence[RegisteredSchema] = ()
) -> MessageDecoder:
    declared = envelope.declared(spark.spark) if envelope.columns else None
    if not schemas:
        assert declared is not None
        return MessageDecoder(envelope, declared)
    found = message_schemas(schemas, envelope, declared)
    return MessageDecoder(envelope, found.columns, schemas=found)


def outcomes(decoder: MessageDecoder, values: Sequence[bytes]) -> list[Outcome]:
    """Return what the messages of a batch become."""
    decoded, found = decoder.decode(values), list[Outcome]([] for _ in values)
    require_sound(decoded, decoder, len(values))
    rows = decoded.rows.append_column("deleted", pa.array(decoded.deleted))
    for place, row in zip(decoded.of, numbered(pa.Table.from_batches([rows])), strict=True):
        of_message = found[place]
        assert isinstance(of_message, list)
        of_message.append(row)
    for bad in decoded.bad:
        assert found[bad.place] == [], "a bad record has no rows"
        found[bad.place] = bad.reason
    return found


def unfit(name: str) -> str:
    """Return why a message in JSON is bad whose value a declared column cannot take."""
    return f"has a value in `{name}` that {NO_RECORD}"


class Messages(KafkaSource):
    """Messages of one partition, without a broker; their schemas are under the topic's subject."""

    def __init__(
        self,
        envelope: Envelope,
        values: Sequence[bytes],
        schemas: Sequence[RegisteredSchema] = (),
    ) -> None:
        registry: Any = _Registry(schemas)
        own = TopicSchemas(registry, envelope) if schemas else None
        super().__init__("t", {}, envelope, schemas=own)
        self._values = values

    @property
    def end(self) -> Frontier:
        return self.pin(None, {"0": len(self._values)})

    def _messages(
        self, lower: Frontier | None, upper: Frontier, fields: Sequence[str]
    ) -> Iterator[MessageBatch]:
        batch = MessageBatch("t")
        batch.add(0, self._values, np.arange(len(self._values)))
        yield batch


class _Registry:
    """A registry without a server."""

    address = "registry"

    def __init__(self, schemas: Sequence[RegisteredSchema]) -> None:
        self._schemas = {schema.id: schema for schema in schemas}

    def versions(self, subject: str) -> list[RegisteredSchema]:
        return list(self._schemas.values())

    def by_id(self, number: int) -> RegisteredSchema:
        return self._schemas[number]

    def find(self, number: int) -> RegisteredSchema | None:
        return self._schemas.get(number)


def records_of(spark: Session, source: Messages) -> MessageRecords:
    """Return the records of a batch, whose bad ones are kept."""
    bad_records = BadRecords(lambda rows: None, "", 10**9)
    return MessageRecords(source, spark, BatchRange(None, source.end), bad_records)


@contextmanager
def spark_frame(spark: Session, source: Messages) -> Iterator[Any]:
    """The rows of messages as Spark gets them to compute a query."""
    with records_of(spark, source).frame(is_remote=False) as frame:
        yield frame


def decoded_rows(spark: Session, source: Messages) -> list[pa.RecordBatch]:
    """The rows of messages as PyArrow gets them to compute a query."""
    return list(records_of(spark, source).rows())
