"""Random Avro schemas, their rows, and damage."""

from __future__ import annotations

import io
import json
import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import (
    MessageSchemas,
    message_schemas,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema

# Up to the year 9999, which Python's types have, too.
MICROS = 253_402_300_799_999_999
INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS: list[tuple[Any, SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", INT),
    ("long", LONG),
    ("float", st.floats(width=32)),
    ("double", st.floats()),
    ("string", TEXT),
    ({"type": "string", "logicalType": "uuid"}, TEXT),
    ({"type": "int", "logicalType": "date"}, st.integers(-700_000, 2_900_000)),
    *(
        ({"type": "long", "logicalType": f"{prefix}timestamp-{unit}"}, st.integers(-most, most))
        for prefix in ("", "local-")
        for unit, most in (("millis", MICROS // 1000), ("micros", MICROS))
    ),
]
SYMBOLS = ["red", "green", "blue"]
NANOS = [
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"},
]
ZONED = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _zoned(moment: datetime) -> str:
    """A time as Debezium writes it."""
    text = moment.isoformat()
    return f"{text.rstrip('0') if moment.microsecond else text}Z"


SCALARS += [
    ("bytes", st.binary(max_size=4)),
    *((kind, LONG) for kind in NANOS),
    (ZONED, st.datetimes().map(_zoned)),
]


@st.composite
def decimal_kinds(draw: DrawFn) -> tuple[Any, SearchStrategy[Any]]:
    """A decimal of any precision, and the bytes of its values."""
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    most = 10**precision - 1
    kind = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return kind, st.integers(-most, most).map(twos_complement)


def twos_complement(number: int) -> bytes:
    """A number as Java's BigInteger writes it."""
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


@st.composite
def fixed_kinds(draw: DrawFn, name: str) -> tuple[Any, SearchStrategy[Any]]:
    """A `fixed`, also as a UUID or a decimal, and the bytes of its values."""
    size = draw(st.sampled_from([4, 8, 12, 16, 20, 1, 2, 3, 5, 7, 13, 18]))
    kind: dict[str, Any] = {"type": "fixed", "name": f"{name}_fixed", "size": size}
    form = draw(st.sampled_from(["bytes", "uuid", "decimal"]))
    if form == "uuid" and size == 16:
        kind["logicalType"] = "uuid"
    if form == "decimal" and size <= 16:
        precision = draw(st.integers(1, min(38, len(str(2 ** (8 * size - 1))) - 1)))
        scale, most = draw(st.integers(0, precision)), 10**precision - 1
        kind |= {"logicalType": "decimal", "precision": precision, "scale": scale}
        numbers = st.integers(-most, most)
        return kind, numbers.map(lambda number: number.to_bytes(size, "big", signed=True))
    return kind, st.binary(min_size=size, max_size=size)


@dataclass(frozen=True)
class Types:
    """Which types a schema has: those only that pyruhvro reads, or all; and whether in items."""

    are_fast: bool = False
    in_items: bool = False

    def forms(self, depth: int) -> list[str]:
        nested = ["array", "map", "record"] if depth else []
        slow = [] if self.are_fast else ["fixed", "union"]
        enum = [] if self.are_fast and self.in_items else ["enum"]
        return ["scalar"] * 4 + ["decimal", *enum, *slow, *nested]


ALL, FAST = Types(), Types(are_fast=True)


@st.composite
def kinds(
    draw: DrawFn, name: str, types: Types = ALL, depth: int = 2
) -> tuple[Any, SearchStrategy[Any]]:
    """A type, whose own types have names that begin with a name, and its values."""
    form = draw(st.sampled_from(types.forms(depth)))
    if form == "enum":
        kind = {"type": "enum", "name": f"{name}_enum", "symbols": SYMBOLS}
        return kind, st.sampled_from(SYMBOLS)
    if form == "decimal":
        return draw(decimal_kinds())
    if form == "fixed":
        return draw(fixed_kinds(name))
    if form == "union":
        return draw(unions(name, types))
    if form in ("array", "map"):
        inner = replace(types, in_items=True)
        items, values = draw(nullable(f"{name}_item", inner, depth - 1))
        if form == "map":
            return {"type": "map", "values": items}, st.dictionaries(TEXT, values, max_size=3)
        return {"type": "array", "items": items}, st.lists(values, max_size=3)
    if form == "record":
        return draw(records(name, types, depth - 1))
    return draw(st.sampled_from(SCALARS))


@st.composite
def unions(draw: DrawFn, name: str, types: Types) -> tuple[Any, SearchStrategy[Any]]:
    """A union of types of which each has other values in Python; or of two numbers."""
    if draw(st.booleans()):
        return draw(st.sampled_from([(["int", "long"], INT), (["double", "float"], st.floats())]))
    record, rows = draw(records(name, types, 0))
    members = [("boolean", st.booleans()), ("long", LONG), ("string", TEXT), (record, rows)]
    chosen = draw(st.permutations(members))[: draw(st.integers(2, 4))]
    return [kind for kind, _ in chosen], st.one_of(*(values for _, values in chosen))


@st.composite
def nullable(
    draw: DrawFn, name: str, types: Types = ALL, depth: int = 2
) -> tuple[Any, SearchStrategy[Any]]:
    kind, values = draw(kinds(name, types, depth))
    # pyruhvro does not read records that are null in arrays.
    is_record = types.are_fast and types.in_items and "fields" in kind
    null_at = None if is_record else draw(st.sampled_from([None, 0, 1]))
    if null_at is None:
        return kind, values
    others = kind if isinstance(kind, list) else [kind]
    return [*others[:null_at], "null", *others[null_at:]], st.none() | values


@st.composite
def records(
    draw: DrawFn, name: str = "Row", types: Types = ALL, depth: int = 2
) -> tuple[Any, SearchStrategy[Any]]:
    fields = [draw(nullable(f"{name}_{number}", types, depth)) for number in range(draw(COUNT))]
    named = [{"name": f"c{number}", "type": kind} for number, (kind, _) in enumerate(fields)]
    values = st.fixed_dictionaries({f"c{n}": own for n, (_, own) in enumerate(fields)})
    return {"type": "record", "name": name, "fields": named}, values


COUNT = st.integers(1, 4)
AVRO = Envelope("avro", "")
DEBEZIUM = Envelope("debezium", "", encoding="avro")


@st.composite
def topics(draw: DrawFn, types: Types = ALL, count: int = 6) -> tuple[Any, list[Any]]:
    """A schema, and rows of it."""
    schema, rows = draw(records(types=types))
    return schema, draw(st.lists(rows, min_size=1, max_size=count))


@st.composite
def changes(draw: DrawFn, count: int = 6) -> tuple[Any, list[Any]]:
    """The schema of Debezium's messages, and messages of it, of which some have no row."""
    row, values = draw(records("Value", draw(st.sampled_from([ALL, FAST]))))
    source = {
        "type": "record",
        "name": "Source",
        "fields": [{"name": "table", "type": "string"}, {"name": "lsn", "type": ["null", "long"]}],
    }
    schema = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"]},
        ],
    }
    messages = st.fixed_dictionaries(
        {
            "before": st.none() | values,
            "after": st.none() | values,
            "source": st.fixed_dictionaries({"table": TEXT, "lsn": st.none() | LONG}),
            "op": st.sampled_from("cccruuudddmtx"),
            "ts_ms": st.none() | LONG,
        }
    )
    return schema, draw(st.lists(messages, min_size=1, max_size=count))


@st.composite
def damaged(draw: DrawFn, body: bytes) -> bytes:
    """Bytes of a message, of which some are changed, missing or added."""
    spoiled = bytearray(body)
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, len(spoiled)))
        part = draw(st.binary(max_size=3) | st.sampled_from([b"\xff" * 9 + b"\1", b"\x80" * 4]))
        spoiled[place : place + draw(st.integers(0, 3))] = part
    return bytes(spoiled)


def physical(schema: Any) -> Any:
    """A schema without logical types."""
    if isinstance(schema, list):
        return [physical(kind) for kind in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != "logicalType"}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = physical(kept[name])
    if "fields" in kept:
        kept["fields"] = [physical(field) for field in kept["fields"]]
    return kept


def encode(schema: Any, value: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(physical(schema)), value)
    return written.getvalue()


def decode(schema: Any, body: bytes) -> Any:
    """The value of a message, as fastavro reads it; ValueError if it is none of the schema."""
    stream = io.BytesIO(body)
    try:
        value = fastavro.schemaless_reader(stream, fastavro.parse_schema(physical(schema)), None)
    except (EOFError, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if stream.tell() != len(body):
        raise ValueError("bytes are left")
    return value


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def schemas_of(*schemas: Any, columns: Any = None, envelope: Envelope = AVRO) -> MessageSchemas:
    """Schemas with the ids 1, 2, …"""
    registered = [RegisteredSchema(n, json.dumps(s)) for n, s in enumerate(schemas, 1)]
    return message_schemas(registered, envelope, columns)


def decoder_of(
    *schemas: Any, columns: Any = None, envelope: Envelope = AVRO, **options: Any
) -> MessageDecoder:
    own = schemas_of(*schemas, columns=columns, envelope=envelope)
    return MessageDecoder(envelope, own.columns, schemas=own, **options)


def expected(schema: Any, value: Any) -> Any:
    """A value that fastavro has read, with microseconds for times."""
    if isinstance(schema, list):
        members = [kind for kind in schema if kind != "null"]
        if value is None or len(members) == 1 or "int" in members or "float" in members:
            return None if value is None else expected(members[0], value)
        types = {bool: "boolean", int: "long", str: "string"}
        return {
            f"member{place}": expected(kind, value)
            if (kind if isinstance(kind, str) else None) == types.get(type(value))
            else None
            for place, kind in enumerate(members)
        }
    if not isinstance(schema, dict):
        return value
    if "fields" in schema:
        return {f["name"]: expected(f["type"], value[f["name"]]) for f in schema["fields"]}
    if schema["type"] == "array":
        return [expected(schema["items"], item) for item in value]
    if schema["type"] == "map":
        return {key: expected(schema["values"], item) for key, item in value.items()}
    if schema == ZONED:
        return (datetime.fromisoformat(value) - EPOCH) // timedelta(microseconds=1)
    if schema in NANOS:
        return value // 1000
    logical = str(schema.get("logicalType"))
    if logical == "uuid" and schema["type"] == "fixed":
        return str(uuid.UUID(bytes=value))
    if logical == "decimal":
        number = int.from_bytes(value, "big", signed=True)
        return Decimal(f"{number}e-{schema['scale']}")
    return value * 1000 if logical.endswith("-millis") else value
