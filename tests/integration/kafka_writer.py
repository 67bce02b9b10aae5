"""A stream of a Kafka topic in a process of its own, which may be killed at any moment."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.batches.runners import in_process
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sources.formats import envelopes
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import SchemaRegistry
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from dbt.adapters.iceberg_stream.stream.sources.kafka.topic_schemas import TopicSchemas
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from tests.integration.streams import NAME, SINK
from tests.integration.writers import open_catalog

DDL = "id bigint, part string, value string"
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "part", "type": "string"},
        {"name": "value", "type": "string"},
    ],
}
CHANGES: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", AVRO]},
        {"name": "after", "type": ["null", "Row"]},
        {"name": "op", "type": "string"},
    ],
}
# What the messages are encoded with, by the formats that have a schema.
SCHEMAS = {"avro": AVRO, "debezium": CHANGES}
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.string())])


@dataclass(frozen=True)
class Messages:
    """Where the messages of a stream are.

    Attributes:
        topic: the topic.
        bootstrap: address of Kafka.
        format: json, avro or, in Avro, debezium.
        registry: address of the schema registry of messages in Avro.
        schema_id: the id of their schema.
    """

    topic: str
    bootstrap: str
    format: str = "json"
    registry: str = ""
    schema_id: int = 0

    def encode(self, row: dict[str, Any], deletes: bool = False) -> bytes:
        """Return the message with a row, or with its delete."""
        if self.format == "json":
            return json.dumps(row).encode()
        value: Any = row
        if self.format == "debezium":
            images = {"before": row, "after": None} if deletes else {"before": None, "after": row}
            value = {**images, "op": "d" if deletes else "c"}
        body = io.BytesIO(b"\0" + self.schema_id.to_bytes(4, "big"))
        body.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMAS[self.format]), value)
        return body.getvalue()

    def source(self) -> KafkaSource:
        servers = {"bootstrap.servers": self.bootstrap}
        if self.format == "json":
            return KafkaSource(self.topic, servers, Envelope("json", DDL))
        envelope = Envelope(self.format, "", encoding="avro")
        schemas = TopicSchemas(SchemaRegistry({"url": self.registry}), envelope)
        return KafkaSource(self.topic, servers, envelope, schemas=schemas)


def drain(
    place: dict[str, str], messages: Messages, keys: tuple[str, ...], outcome: Any = None
) -> None:
    """Write what the topic has, in a commit for each small batch.

    Args:
        place: of the catalog.
        messages: where they are.
        keys: columns that identify a row; none to append each message.
        outcome: a queue for the word done, or for the name of the error; None to raise it.
    """
    # No process has a session of Spark: messages must be read without it.
    envelopes._declared[DDL] = SCHEMA
    lake, source = open_catalog(place), messages.source()
    options = StreamOptions(SINK, keys, batch_rows=50, commit_interval=0.0)
    sql = get_change_sql("select * from v", "v", source.of_rows)
    query = StreamQuery(sql, "v", "t", SCHEMA.names, options)
    writer = BatchWriter(
        source=source,
        query=query,
        sink=Sink(lake, NAME, Progress(SINK), query.keys),
        options=options,
        runner=in_process,
        bad_records=BadRecords(None, "", 0),
        schema=SCHEMA,
    )
    table = TableStream(writer, StreamStatus("t"), schema_id=source.schema_id(None))
    no_spark: Any = SimpleNamespace(spark=None, setting=lambda name: "UTC")
    try:
        Stream(lambda: no_spark, [table], window=2).drain()
    except StreamError as error:
        if outcome is None:
            raise
        outcome.put(type(error).__name__)
    else:
        if outcome is not None:
            outcome.put("done")
    finally:
        lake.close()
