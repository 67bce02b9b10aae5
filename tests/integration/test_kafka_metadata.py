"""Columns of Kafka's metadata in every format, for PyArrow and for Spark, against what was sent."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.message_records import MessageRecords
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_metadata import MetadataColumns
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import type_name
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import HEADER_BYTES
from dbt.adapters.iceberg_stream.stream.sources.kafka.plain_schema import PlainSchema
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from dbt.adapters.iceberg_stream.stream.sources.kafka.topic_schemas import TopicSchemas
from dbt.adapters.iceberg_stream.stream.sources.source import CHANGE, MINOR
from tests.servers.producer import CheckedProducer
from tests.unit.stream.sources.formats.encoded_changes import ROW, Registry, encoder, header

PARTITIONS = 3
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DDL = "id bigint, amount bigint"
METADATA = MetadataColumns.of(
    {
        "message_key": "key",
        "topic": "topic",
        "partition": "partition",
        "offset": "offset",
        "sent_at": "timestamp",
        "again": "offset",
        "headers": "headers",
    }
)
ALL_COLUMNS = ("id", *METADATA.names)


class SubjectRegistry(Registry):
    """A registry without a server, where each subject has the schema of changes, or of orders."""

    address = "registry"

    def __init__(self, kind: str) -> None:
        if kind != "JSON":
            super().__init__(kind)
        else:
            text = json.dumps({"type": "object", "title": "shop.Order"})
            self.schemas = {1: RegisteredSchema(1, text, "JSON")}

    def versions(self, subject: str) -> list[Any]:
        return [self.schemas[1]]

    def by_id(self, number: int) -> Any:
        return self.schemas[number]


def is_left_out(number: int) -> bool:
    """Return whether a message of Debezium is of no row."""
    return number % 7 == 3


def change(number: int) -> dict[str, Any]:
    """Return a message of Debezium."""
    return {
        "op": "m" if is_left_out(number) else "d" if number % 5 == 0 else "c",
        "before": {"id": number, "amount": 1},
        "after": {"id": number, "amount": 2},
        "source": {"name": "shop", "table": "orders"},
    }


def as_json(number: int) -> bytes:
    return json.dumps({"id": number, "amount": 2}).encode()


def as_debezium(number: int) -> bytes:
    return json.dumps(change(number)).encode()


def as_maxwell(number: int) -> bytes:
    data = {"id": number, "amount": 2}
    return json.dumps({"type": "insert", "table": "orders", "data": data}).encode()


AVRO = encoder("AVRO")
ENCODERS: Mapping[str, Any] = {
    "json": as_json,
    "record of json": lambda number: header(1) + as_json(number),
    "debezium": as_debezium,
    "maxwell": as_maxwell,
    "avro": lambda number: AVRO(change(number)),
    "protobuf": lambda number: encoder("PROTOBUF")(change(number)),
    "plain avro": lambda number: AVRO(change(number))[HEADER_BYTES:],
}
# Each message of these is a row.
OF_RECORDS = {"json", "record of json", "maxwell"}


def source_of(kind: str, bootstrap: str, topic: str) -> KafkaSource:
    servers = {"bootstrap.servers": bootstrap}
    if kind in ("json", "debezium", "maxwell"):
        return KafkaSource(topic, servers, Envelope(kind, DDL, metadata=METADATA))
    encoding = kind.removeprefix("plain ").removeprefix("record of ")
    envelope = (
        Envelope("json", DDL, record="shop.Order", metadata=METADATA)
        if encoding == "json"
        else Envelope("debezium", "", encoding=encoding, metadata=METADATA)
    )
    registry: Any = SubjectRegistry(encoding.upper())
    schemas: TopicSchemas | PlainSchema = TopicSchemas(registry, envelope)
    if kind.startswith("plain "):
        schemas = PlainSchema(envelope, "orders.avsc", registry.by_id(1).text)
    return KafkaSource(topic, servers, envelope, schemas=schemas)


@dataclass
class Sent:
    """Messages with random metadata, and the rows that they have to become."""

    topic: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def produce(
        self, producer: CheckedProducer, value: bytes | None, chance: random.Random
    ) -> None:
        key = chance.choice([None, b"", b"k\0\xff", b"key"])
        names = chance.choices(["a", "b", ""], k=chance.randrange(4))
        headers = [(name, chance.choice([None, b"", b"\xff", b"text"])) for name in names]
        milliseconds = chance.randrange(1, 2**40)
        row = {
            "message_key": key,
            "topic": self.topic,
            "sent_at": EPOCH + timedelta(milliseconds=milliseconds),
            "headers": [{"key": n, "value": v} for n, v in headers] or None,
        }

        def note(error: Any, message: Message) -> None:
            assert error is None
            row["partition"] = message.partition()
            row["offset"] = row["again"] = message.offset()

        if value is not None:
            self.rows.append(row)
        producer.produce(
            self.topic,
            value,
            key=key,
            partition=chance.randrange(PARTITIONS),
            timestamp=milliseconds,
            headers=headers,
            on_delivery=note,
        )


def new_topic(bootstrap: str, partitions: int) -> str:
    """Create a topic that keeps messages of any time."""
    name, admin = f"t{uuid.uuid4().hex[:8]}", AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, partitions, 1, config={"retention.ms": "-1"})
    admin.create_topics([topic])[name].result()
    return name


def send(bootstrap: str, kind: str) -> Sent:
    sent, chance = Sent(new_topic(bootstrap, PARTITIONS)), random.Random(kind)
    producer = CheckedProducer({"bootstrap.servers": bootstrap})
    for number in range(300):
        if chance.random() < 0.1:
            sent.produce(producer, None, chance)  # a tombstone
        sent.produce(producer, ENCODERS[kind](number), chance)
        sent.rows[-1]["id"] = number
        if is_left_out(number) and kind not in OF_RECORDS:
            sent.rows.pop()
    producer.deliver()
    return sent


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.variants(2)
def test_all_fields(bootstrap: str, spark: Session, kind: str) -> None:
    sent = send(bootstrap, kind)
    source = source_of(kind, bootstrap, sent.topic)
    # A batch that begins and ends within the partitions.
    first = source.plan_batch(None, 70)
    upper = source.plan_batch(first, 150)
    assert first is not None and upper is not None
    expected = [
        row
        for row in in_order(sent.rows)
        if first[str(row["partition"])] <= row["offset"] < upper[str(row["partition"])]
    ]
    bad_records = BadRecords(None, "", 0)
    records = MessageRecords(source, spark, BatchRange(first, upper), bad_records)
    decoded = pa.Table.from_batches(records.rows())
    assert in_order(decoded.select(ALL_COLUMNS).to_pylist()) == expected
    offsets = decoded["offset"].to_pylist()
    minors = offsets if kind in ("json", "record of json") else [2 * n + 1 for n in offsets]
    assert decoded[MINOR].to_pylist() == minors
    for is_remote in (False, True):
        with records.frame(is_remote) as frame:
            rows = spark.rows(f"select {', '.join(ALL_COLUMNS)}, {CHANGE}.minor from m", m=frame)
        assert in_order(rows.select(ALL_COLUMNS).to_pylist()) == expected
        assert sorted(rows["minor"].to_pylist()) == sorted(minors)
        assert decoded.schema.field("sent_at").type == rows.schema.field("sent_at").type
    source.close()


def test_bad_messages_of_a_plain_schema(bootstrap: str, spark: Session) -> None:
    """They are what was sent, without the header that they get to be decoded."""
    topic = new_topic(bootstrap, 1)
    producer = CheckedProducer({"bootstrap.servers": bootstrap})
    good = ENCODERS["plain avro"](1)
    for value in (good, b"", good[:-1], good + b"\0", AVRO(change(2))):
        producer.produce(topic, value)
    producer.deliver()
    source = source_of("plain avro", bootstrap, topic)
    upper = source.plan_batch(None, 10)
    assert upper is not None
    [records] = source.decode(spark, None, upper)
    assert records.rows["id"].to_pylist() == [1]
    assert [bytes.fromhex(own.record) for own in records.bad] == [
        b"",
        good[:-1],
        good + b"\0",
        AVRO(change(2)),
    ]
    assert [own.place for own in records.bad] == [
        f"{topic}, partition 0, offset {offset}" for offset in range(1, 5)
    ]
    assert {own.reason for own in records.bad} == {"is not Avro of the schema of the source"}
    source.close()


def test_a_plain_schema_has_the_columns(bootstrap: str, spark: Session) -> None:
    source = source_of("plain avro", bootstrap, "any")
    columns = [name for name in source.empty(spark.spark).columns if not name.startswith("__")]
    assert columns == [*(field["name"] for field in ROW["fields"]), *METADATA.names]
    schema = source.arrow_schema(spark, None, {})
    assert type_name(pa.struct(list(schema))).startswith("struct<id:bigint,amount:bigint,")
