"""Topics of several record types, with newer schemas and bad messages, against what was sent."""

from __future__ import annotations

import io
import json
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from google.protobuf.message_factory import GetMessageClass

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.batches.arrow_batches import Fallbacks
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.batches.runners import in_process
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    compiled_files,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    Reference,
    RegisteredSchema,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from dbt.adapters.iceberg_stream.stream.sources.kafka.topic_schemas import TopicSchemas
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from tests.servers.producer import CheckedProducer

PARTITIONS = 2
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("note", pa.string())])
# Fields of the schemas, by their ids and the names of their records.
SCHEMAS = {
    1: ("Order", {"id": "int", "name": "string"}),
    2: ("Order", {"id": "long", "note": "string", "name": "string"}),
    3: ("Payment", {"id": "long", "amount": "double"}),
    4: ("Refund", {"reason": "string"}),
    # The same record type under a subject that no model reads.
    5: ("Order", {"id": "long"}),
}
SUBJECTS = {"shop.Order": [1, 2], "shop.Payment": [3], "shop.Refund": [4], "custom": [5]}
MISSING = 99


class Avro:
    kind, format, columns = "AVRO", "avro", ""

    def registered(self, number: int) -> RegisteredSchema:
        return RegisteredSchema(number, self.schema(*SCHEMAS[number]), self.kind)

    def schema(self, name: str, fields: Mapping[str, str]) -> str:
        named = [{"name": field, "type": kind} for field, kind in fields.items()]
        return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": named})

    def encode(self, number: int, value: Mapping[str, Any]) -> bytes:
        written = io.BytesIO()
        schema = fastavro.parse_schema(json.loads(self.schema(*SCHEMAS[number])))
        fastavro.schemaless_writer(written, schema, value)
        return written.getvalue()

    def special(self, number: int, chance: random.Random, spoils: bool) -> tuple[bytes, str] | None:
        """Return a random message that is not the record of a schema, and what becomes of it."""
        return None


class Unions(Avro):
    """Each schema is a union, whose records are those of its references."""

    members: Mapping[int, list[Any]] = {
        1: ["null", 1, 3],
        2: ["long", 3, "null", 2, 4],
        3: [3, "string"],
        4: ["null", 4],
        5: [5],
    }

    def registered(self, number: int) -> RegisteredSchema:
        members = self.members[number]
        names = [f"shop.{SCHEMAS[m][0]}" if isinstance(m, int) else m for m in members]
        references = tuple(
            Reference(f"shop.{SCHEMAS[m][0]}", self.schema(*SCHEMAS[m]))
            for m in members
            if isinstance(m, int)
        )
        return RegisteredSchema(number, json.dumps(names), self.kind, references)

    def encode(self, number: int, value: Mapping[str, Any]) -> bytes:
        return self._index(number, number) + super().encode(number, value)

    def _index(self, number: int, member: Any) -> bytes:
        return bytes([2 * self.members[number].index(member)])

    def special(self, number: int, chance: random.Random, spoils: bool) -> tuple[bytes, str] | None:
        if number not in (1, 2) or chance.random() < 0.7:
            return None
        null, payment = self._index(number, "null"), self._index(number, 3)
        specials = [(null, "null"), (payment + b"any", "skipped")]
        if "long" in self.members[number]:
            specials.append((self._index(number, "long") + b"\2", "skipped"))
        if spoils:
            specials += [(body, "bad") for body in (null + b"\0", b"", b"\x0a\2", b"\1", b"\x82\0")]
        return chance.choice(specials)


class Protobuf:
    """Each schema has a second message, `Other`, which is a record type, too."""

    kind, format, columns = "PROTOBUF", "protobuf", ""

    def registered(self, number: int) -> RegisteredSchema:
        return RegisteredSchema(number, self.schema(*SCHEMAS[number]), self.kind)

    def schema(self, name: str, fields: Mapping[str, str]) -> str:
        kinds = {"int": "int32", "long": "int64"}
        declared = (f"{kinds.get(k, k)} {f} = {n};" for n, (f, k) in enumerate(fields.items(), 1))
        rest = "message Other { int32 x = 1; }"
        return f'syntax = "proto3"; package shop; message {name} {{ {" ".join(declared)} }} {rest}'

    def encode(self, number: int, value: Mapping[str, Any]) -> bytes:
        name, fields = SCHEMAS[number]
        _, pool = read_files(compiled_files(self.schema(name, fields)))
        message = GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))(**value)
        return b"\0" + message.SerializeToString()

    def special(self, number: int, chance: random.Random, spoils: bool) -> tuple[bytes, str] | None:
        return (b"\2\2\x08\1", "skipped") if number != 5 and chance.random() < 0.1 else None


class Json:
    """A record type is the title of a schema, or of those that it is a union of."""

    kind, format, columns = "JSON", "json", "id bigint, name string, note string"
    unions: Mapping[int, list[int]] = {4: [4, 3], 5: [4, 5]}

    def registered(self, number: int) -> RegisteredSchema:
        if number not in self.unions:
            return RegisteredSchema(number, self._schema(number), self.kind)
        members = [{"$ref": f"{member}.json"} for member in self.unions[number]]
        references = [Reference(f"{m}.json", self._schema(m)) for m in self.unions[number]]
        text = json.dumps({"oneOf": members})
        return RegisteredSchema(number, text, self.kind, tuple(references))

    def _schema(self, number: int) -> str:
        return json.dumps({"type": "object", "title": f"shop.{SCHEMAS[number][0]}"})

    def encode(self, number: int, value: Mapping[str, Any]) -> bytes:
        return json.dumps(value).encode()

    def special(self, number: int, chance: random.Random, spoils: bool) -> None:
        return None


# How the messages of a topic are encoded.
Encoding = Avro | Protobuf | Json


class Registry:
    """A registry without a server."""

    address = "registry"

    def __init__(self, encoding: Encoding) -> None:
        self.schemas = {number: encoding.registered(number) for number in SCHEMAS}

    def versions(self, subject: str) -> list[RegisteredSchema]:
        return [self.schemas[number] for number in SUBJECTS.get(subject, ())]

    def by_id(self, number: int) -> RegisteredSchema:
        return self.schemas[number]

    def find(self, number: int) -> RegisteredSchema | None:
        return self.schemas.get(number)


@dataclass
class Sent:
    """What was sent, and what it has to become."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    skipped: int = 0
    bad: int = 0

    def message(self, encoding: Encoding, chance: random.Random, spoils: bool) -> Any:
        """Return a random message, and count it."""
        number = chance.choice([1, 1, 2, 2, 3, 4, *[5, MISSING, None] * spoils])
        if number is None:
            self.bad += 1
            return chance.choice([b"", b"{}", b"\0\0", b"text"])
        header = b"\0" + number.to_bytes(4, "big")
        own = {"id": chance.randrange(1, 2**30), "name": chance.choice(["", "a", "é"])}
        if number == MISSING:
            self.bad += 1
            return header + encoding.encode(1, own)
        values = {**own, "note": "new", "amount": 0.5, "reason": "broken"}
        body = encoding.encode(number, {name: values[name] for name in SCHEMAS[number][1]})
        if special := encoding.special(number, chance, spoils):
            body, outcome = special
            self.skipped += outcome == "skipped"
            self.bad += outcome == "bad"
        elif number == 5:
            self.bad += 1
        elif number in (3, 4):
            self.skipped += 1
        elif spoils and chance.random() < 0.1:
            self.bad += 1
            body = body[:-1] if own["name"] else body + b"\xff"
        else:
            self.rows.append((own["id"], own["name"], "new" if number == 2 else None))
        return header + body


@pytest.mark.parametrize("by_spark", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "encoding",
    [Avro(), Unions(), Protobuf(), Json()],
    ids=["avro", "unions", "protobuf", "json"],
)
@pytest.mark.variants(2)
def test_random_topics(
    bootstrap: str,
    lake: IcebergCatalog,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    encoding: Encoding,
    by_spark: bool,
) -> None:
    if by_spark:
        monkeypatch.setattr(Fallbacks, "allow_arrow", lambda fallbacks: False)
    topic, chance, sent = f"t{uuid.uuid4().hex[:8]}", random.Random(type(encoding).__name__), Sent()
    admin, producer = (
        kind({"bootstrap.servers": bootstrap}) for kind in (AdminClient, CheckedProducer)
    )
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    for part in range(4):
        for _ in range(chance.randint(20, 120)):
            value = sent.message(encoding, chance, spoils=part % 2 == 1)
            producer.produce(topic, value, partition=chance.randrange(PARTITIONS))
        producer.produce(topic, None, key=b"tombstone", partition=0)
    producer.deliver()
    rows, bad, status = drained(bootstrap, topic, lake, spark, encoding)
    assert rows == sorted(sent.rows, key=str)
    assert (len(bad), status.bad_records, status.skipped_records) == (
        sent.bad,
        sent.bad,
        sent.skipped,
    )
    assert any("is not under the subjects" in reason for reason in bad)
    assert any(f"id {MISSING}, which the registry does not have" in reason for reason in bad)


def drained(
    bootstrap: str,
    topic: str,
    lake: IcebergCatalog,
    spark: Session,
    encoding: Encoding,
) -> tuple[list[Any], list[str], StreamStatus]:
    """The rows of a table that a stream has written, why others are bad, and the status."""
    name, bad = f"t{uuid.uuid4().hex[:8]}", list[str]()
    spark.run(f"create table s.{name} (id bigint, name string, note string) using iceberg")
    options = StreamOptions(f"sink.{name}", batch_rows=90)
    query = StreamQuery(
        get_change_sql("select id, name, note from v", "v"),
        "v",
        f"s.{name}",
        COLUMNS.names,
        options,
    )
    keys = {"encoding": encoding.format, "record": "shop.Order"}
    envelope = Envelope(encoding.format, encoding.columns, **keys)
    registry: Any = Registry(encoding)
    servers = {"bootstrap.servers": bootstrap}
    source = KafkaSource(topic, servers, envelope, schemas=TopicSchemas(registry, envelope))
    writer = BatchWriter(
        source=source,
        query=query,
        sink=Sink(lake, ("s", name), Progress(options.sink_id), query.keys),
        options=options,
        runner=in_process,
        bad_records=BadRecords(lambda rows: bad.extend(rows["reason"].to_pylist()), "", 10**6),
        schema=COLUMNS,
    )
    table = TableStream(writer, StreamStatus(name), schema_id=source.schema_id(None))
    Stream(lambda: spark, [table], window=2).drain()
    rows = as_rows(spark.query(f"select * from s.{name}"))
    return sorted(rows, key=str), bad, table.status
