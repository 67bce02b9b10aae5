"""Stream models with Kafka's metadata in columns, and with Avro whose schema is in the project."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from dbt.tests.util import run_dbt

from tests.functional.lake import rows, table
from tests.servers.producer import CheckedProducer
from tests.unit.stream.sources.formats.encoded_changes import optional, record

TOPICS = {
    "events": "columns: 'id bigint, note string', metadata_columns: [key, offset, headers]",
    "orders": "format: avro, schema_file: schemas/order.avsc, metadata_columns: {sent_at: timestamp}",
    "changes": "format: debezium, encoding: avro, schema_file: schemas/envelope.avsc",
}
SENT_AT = datetime(2026, 11, 26, 10, 11, 12, 131000, timezone.utc)
# PyArrow decodes the messages, and Spark computes the key.
EVENTS = """
{{ config(materialized='stream', unique_key=['message_key']) }}
select cast(key as string) as message_key, id, note, "offset" as at,
  headers[0].key as first_header, bit_count(id) as bits
from {{ stream(source('kafka', 'events')) }}
""".replace('"', "`")
DAY = {"type": "int", "logicalType": "date"}
ORDER = record("Order", id="long", status=optional("string"), day=DAY)
ENVELOPE = record("Envelope", before=optional(ORDER), after=optional("shop.Order"), op="string")


def encoded(schema: Mapping[str, Any], value: Mapping[str, Any]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(dict(schema)), value)
    return written.getvalue()


def order(number: int, status: str | None) -> dict[str, Any]:
    return {"id": number, "status": status, "day": 20_000 + number}


class Kafka:
    """A broker with the topics."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def send(self, topic: str, value: bytes, key: str | None = None, **options: Any) -> None:
        producer = CheckedProducer({"bootstrap.servers": self.bootstrap})
        milliseconds = int(SENT_AT.timestamp() * 1000)
        producer.produce(topic, value, key=key, timestamp=milliseconds, **options)
        producer.deliver()


@pytest.fixture(scope="module")
def kafka(bootstrap: str) -> Kafka:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # The messages have a fixed time, and must be kept all the same.
    config = {"retention.ms": "-1"}
    topics = [NewTopic(topic, 1, 1, config=config) for topic in TOPICS]
    for made in admin.create_topics(topics).values():
        made.result()
    return Kafka(bootstrap)


def model(name: str, **config: Any) -> str:
    said = ", ".join(f"{k}={v!r}" for k, v in {"materialized": "stream", **config}.items())
    return f"{{{{ config({said}) }}}}\nselect * from {{{{ stream(source('kafka', '{name}')) }}}}"


@pytest.fixture(scope="class")
def models(kafka: Kafka) -> dict[str, str]:
    tables = "".join(
        f"      - {{name: {topic}, config: {{meta: {{stream: {{topic: {topic}, {keys}}}}}}}}}\n"
        for topic, keys in TOPICS.items()
    )
    server = f"{{type: kafka, bootstrap_servers: '{kafka.bootstrap}'}}"
    return {
        "sources.yml": f"sources:\n  - name: kafka\n    config: {{meta: {{stream: {server}}}}}\n"
        f"    tables:\n{tables}",
        "events.sql": EVENTS,
        "orders.sql": model("orders", unique_key="id", on_bad_record="dead_letters"),
        "changes.sql": model("changes", unique_key="id"),
    }


class TestMetadata:
    def test_a_query_uses_them(self, project: Any, kafka: Kafka) -> None:
        kafka.send("events", b'{"id": 1, "note": "a"}', "k1", headers=[("trace", b"t")])
        kafka.send("events", b'{"id": 3, "note": "b"}', "k2")
        run_dbt(["run", "-s", "events"])
        kafka.send("events", b'{"id": 7, "note": "c"}', "k1", headers=[("x", b""), ("y", None)])
        kafka.send("events", b'{"id": 8, "note": "d"}')
        run_dbt(["run", "-s", "events"])
        names = "message_key, id, note, at, first_header, bits"
        assert rows(project, f"select {names} from {{schema}}.events order by at") == [
            ("k2", 3, "b", 1, None, 2),
            ("k1", 7, "c", 2, "x", 3),
            (None, 8, "d", 3, None, 1),
        ]


class TestPlainAvro:
    @pytest.fixture(scope="class", autouse=True)
    def schemas(self, project: Any) -> Path:
        folder = Path(project.project_root) / "schemas"
        folder.mkdir()
        (folder / "order.avsc").write_text(json.dumps(ORDER))
        (folder / "envelope.avsc").write_text(json.dumps(ENVELOPE))
        return folder

    def test_columns_are_of_the_schema(self, project: Any, kafka: Kafka, schemas: Path) -> None:
        """Bad messages are dead letters, and a newer schema adds columns when a run starts."""
        kafka.send("orders", encoded(ORDER, order(1, "new")))
        kafka.send("orders", b"\x02\x07spoiled")
        kafka.send("orders", encoded(ORDER, order(2, None)))
        run_dbt(["run", "-s", "orders"])
        read = "select id, status, cast(day as string), sent_at from {schema}.orders order by id"
        first = [
            (1, "new", "2024-10-05", SENT_AT),
            (2, None, "2024-10-06", SENT_AT),
        ]
        assert [(*row[:3], row[3].astimezone(timezone.utc)) for row in rows(project, read)] == first
        letters = rows(project, "select record, reason from {schema}.orders__dead_letters")
        spoiled = (b"\x02\x07spoiled".hex().upper(), "is not Avro of the schema of the source")
        assert letters == [spoiled]
        newer = record("Order", id="long", status=optional("string"), day=DAY, note="string")
        (schemas / "order.avsc").write_text(json.dumps(newer))
        kafka.send("orders", encoded(newer, {**order(2, "paid"), "note": "n"}))
        run_dbt(["run", "-s", "orders"])
        read = table(project, "orders").scan().to_arrow().sort_by("id").to_pylist()
        assert [(row["id"], row["status"], row["note"]) for row in read] == [
            (1, "new", None),
            (2, "paid", "n"),
        ]

    def test_changes_of_rows(self, project: Any, kafka: Kafka) -> None:
        for op, before, after in (("c", None, 1), ("c", None, 2), ("u", 2, 2), ("d", 1, None)):
            images = {
                "before": None if before is None else order(before, "old"),
                "after": None if after is None else order(after, op),
            }
            kafka.send("changes", encoded(ENVELOPE, {**images, "op": op}))
        run_dbt(["run", "-s", "changes"])
        assert rows(project, "select id, status from {schema}.changes") == [(2, "u")]
