"""Encode the messages of a Debezium connector: in Avro behind a schema registry, or in JSON."""

from __future__ import annotations

import io
import json
from typing import Any, Protocol

import fastavro
import requests

Record = dict[str, Any]
TOPIC = "shop.public.{}"
DECIMAL = {
    "type": "bytes",
    "logicalType": "decimal",
    "precision": 10,
    "scale": 2,
    "connect.name": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
}
# The columns of the shop's tables, the key first.
COLUMNS: dict[str, dict[str, Any]] = {
    "customers": {"customer_id": "long", "name": "string", "city": "string"},
    "orders": {
        "order_id": "long",
        "customer_id": "long",
        "status": "string",
        "updated_at": "long",
    },
    "order_items": {
        "item_id": "long",
        "order_id": "long",
        "product": "string",
        "quantity": "int",
        "price": DECIMAL,
        "updated_at": "long",
    },
}


class Encoding(Protocol):
    """What makes bytes of the keys and values of messages."""

    def encode(self, table: str, part: str, record: Record) -> bytes:
        """Return a message's key or value.

        Args:
            table: the shop's table.
            part: `key` or `value`.
            record: what the key or value has.
        """
        ...


class Json:
    """Encodes records as JSON without schemas."""

    def encode(self, table: str, part: str, record: Record) -> bytes:
        return json.dumps(record, default=str).encode()


class Avro:
    """Encodes records as Avro, and registers the schemas of all tables.

    Args:
        registry: the address of the registry's Confluent interface.
    """

    def __init__(self, registry: str) -> None:
        self._schemas = {
            (table, part): _registered(registry, f"{TOPIC.format(table)}-{part}", schema)
            for table in COLUMNS
            for part, schema in (("key", key_schema(table)), ("value", value_schema(table)))
        }

    def encode(self, table: str, part: str, record: Record) -> bytes:
        header, schema = self._schemas[table, part]
        written = io.BytesIO()
        fastavro.schemaless_writer(written, schema, record)
        return header + written.getvalue()


def _registered(registry: str, subject: str, schema: Record) -> tuple[bytes, Any]:
    """Register a schema; return the header of its messages and the parsed schema."""
    body = {"schema": json.dumps(schema)}
    answer = requests.post(f"{registry}/subjects/{subject}/versions", json=body, timeout=30)
    answer.raise_for_status()
    return b"\0" + int(answer.json()["id"]).to_bytes(4, "big"), fastavro.parse_schema(schema)


def key_schema(table: str) -> Record:
    """Return the schema of a table's keys."""
    name, kind = next(iter(COLUMNS[table].items()))
    return _record("Key", TOPIC.format(table), {name: kind})


def value_schema(table: str) -> Record:
    """Return the schema of Debezium's envelope with a table's rows."""
    topic = TOPIC.format(table)
    source = {"db": "string", "schema": "string", "table": "string", "ts_ms": "long"}
    return _record(
        "Envelope",
        topic,
        {
            "before": ["null", _record("Value", topic, COLUMNS[table])],
            "after": ["null", f"{topic}.Value"],
            "source": _record("Source", topic, source),
            "op": "string",
            "ts_ms": ["null", "long"],
        },
    )


def _record(name: str, namespace: str, fields: Record) -> Record:
    named = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "namespace": namespace, "fields": named}
