"""Debezium's messages as its converters for Avro and Protobuf write them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
import orjson
from google.protobuf.message_factory import GetMessageClass

from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_schemas import (
    compiled_files,
    read_files,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    """Return Avro's schema of a record."""
    named = [
        {"name": field, "type": kind} | ({"default": None} if isinstance(kind, list) else {})
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "namespace": "shop", "fields": named}


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
ROW = record(
    "Value",
    id="long",
    amount=optional("long"),
    price=optional(DECIMAL),
    kind=optional({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
    tags=optional({"type": "map", "values": optional("string")}),
    parts=optional({"type": "array", "items": record("Part", a="int", b=optional("float"))}),
    at=optional({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}),
)
SOURCE = record(
    "Source",
    version="string",
    name="string",
    ts_ms="long",
    snapshot=optional("string"),
    db="string",
    schema="string",
    table="string",
    lsn=optional("long"),
)
BLOCK = record("block", id="string", total_order="long", data_collection_order="long")
CHANGE = record(
    "Envelope",
    before=optional(ROW),
    after=optional("shop.Value"),
    source=optional(SOURCE),
    transaction=optional(BLOCK),
    op=optional("string"),
    ts_ms=optional("long"),
)
COUNT = record("collection", data_collection="string", event_count="long")
TRANSACTION = record(
    "TransactionMetadataValue",
    status="string",
    id="string",
    event_count=optional("long"),
    data_collections=optional({"type": "array", "items": COUNT}),
    ts_ms="long",
)
PROTOBUF_CHANGE = """syntax = "proto3"; package shop;
import "google/protobuf/wrappers.proto";
message Envelope {
  Value before = 1; Value after = 2; Source source = 3; block transaction = 4;
  optional string op = 5; optional int64 ts_ms = 6;
  message Value { int64 id = 1; optional int64 amount = 2; }
  message Source {
    string version = 1; string name = 2; int64 ts_ms = 3; google.protobuf.StringValue db = 4;
    optional string schema = 5; string table = 6;
  }
  message block { string id = 1; int64 total_order = 2; int64 data_collection_order = 3; }
}"""
PROTOBUF_TRANSACTION = """syntax = "proto3"; package shop;
message TransactionMetadataValue {
  string status = 1; string id = 2; optional int64 event_count = 3;
  repeated collection data_collections = 4; int64 ts_ms = 5;
  message collection { string data_collection = 1; int64 event_count = 2; }
}"""
# The schemas of changes and of the transaction topic, by kind.
SCHEMAS = {
    "AVRO": (json.dumps(CHANGE), json.dumps(TRANSACTION)),
    "PROTOBUF": (PROTOBUF_CHANGE, PROTOBUF_TRANSACTION),
}
# What a message has that a test does not set.
DEFAULTS = {
    "source": {"version": "3.0.0.Final", "ts_ms": 1, "db": "", "schema": "", "table": ""},
    "transaction": {"total_order": 1, "data_collection_order": 1},
}
# Encodes a message.
Encode = Callable[[Mapping[str, Any]], bytes]


class Registry:
    """The registry's schemas: with the id 1 of changes, with the id 2 of transactions."""

    def __init__(self, kind: str) -> None:
        schemas = enumerate(SCHEMAS[kind], 1)
        self.schemas = {number: RegisteredSchema(number, text, kind) for number, text in schemas}
        self.requests: list[int] = []

    def find(self, number: int) -> RegisteredSchema | None:
        self.requests.append(number)
        return self.schemas.get(number)


def encoder(kind: str | None, change_id: int = 1, transaction_id: int = 2) -> Encode:
    """Return what encodes messages; in JSON if the kind is None."""
    if kind is None:
        return orjson.dumps
    change, transaction = (
        (_avro if kind == "AVRO" else _protobuf)(text, number)
        for text, number in zip(SCHEMAS[kind], (change_id, transaction_id), strict=True)
    )

    def encode(message: Mapping[str, Any]) -> bytes:
        if "status" in message:
            return transaction({"ts_ms": 1, **message})
        return change(
            {
                name: DEFAULTS.get(name, {}) | value if isinstance(value, dict) else value
                for name, value in message.items()
            }
        )

    return encode


def header(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def _avro(text: str, number: int) -> Encode:
    schema = fastavro.parse_schema(json.loads(text))

    def encode(message: Mapping[str, Any]) -> bytes:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, schema, message)
        return header(number) + written.getvalue()

    return encode


def _protobuf(text: str, number: int) -> Encode:
    file, pool = read_files(compiled_files(text))
    name = f"{file.package}.{file.message_type[0].name}"
    kind = GetMessageClass(pool.FindMessageTypeByName(name))

    def encode(message: Mapping[str, Any]) -> bytes:
        fields = {name: value for name, value in message.items() if value is not None}
        if source := fields.get("source"):
            fields["source"] = {**source, "db": {"value": source["db"]}}
        return header(number) + b"\0" + kind(**fields).SerializeToString()

    return encode
