"""Random Avro schemas of the types that are decoded without Spark, their rows, and damage."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from dbt.adapters.iceberg_stream.stream.sources.arrow.avro import avro_decoder
from dbt.adapters.iceberg_stream.stream.sources.arrow.records import (
    IsOther,
    RecordDecoder,
    never,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_messages import (
    MessageSchemas,
    message_schemas,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR

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


@st.composite
def kinds(draw: DrawFn, name: str, depth: int = 2) -> tuple[Any, SearchStrategy[Any]]:
    """A type, whose own types have names that begin with a name, and its values."""
    nested = ["array", "map", "record"] if depth else []
    form = draw(st.sampled_from(["scalar"] * 4 + ["decimal", "enum", "fixed", *nested]))
    if form == "enum":
        kind = {"type": "enum", "name": f"{name}_enum", "symbols": SYMBOLS}
        return kind, st.sampled_from(SYMBOLS)
    if form == "decimal":
        return draw(decimal_kinds())
    if form == "fixed":
        return draw(fixed_kinds(name))
    if form in ("array", "map"):
        items, values = draw(nullable(f"{name}_item", depth - 1).filter(_is_small))
        if form == "map":
            return {"type": "map", "values": items}, st.dictionaries(TEXT, values, max_size=3)
        return {"type": "array", "items": items}, st.lists(values, max_size=3)
    if form == "record":
        return draw(records(name, depth - 1))
    return draw(st.sampled_from(SCALARS))


def _is_small(typed: tuple[Any, SearchStrategy[Any]]) -> bool:
    """Whether no enum, no record or `fixed` that may be null, and no odd `fixed` is in a type."""
    text = json.dumps(typed[0])
    begins = (f'["null", {{"type": "{kind}"' for kind in ("record", "fixed"))
    sizes = (f'"size": {size}' + end for size in (1, 2, 3, 5, 7, 13, 18) for end in ",}")
    parts = ('"enum"', *begins, '}, "null"]', *sizes)
    return not any(part in text for part in parts)


@st.composite
def nullable(draw: DrawFn, name: str, depth: int = 2) -> tuple[Any, SearchStrategy[Any]]:
    kind, values = draw(kinds(name, depth))
    null_at = draw(st.sampled_from([None, 0, 1]))
    if null_at is None:
        return kind, values
    return ["null", kind] if null_at == 0 else [kind, "null"], st.none() | values


@st.composite
def records(draw: DrawFn, name: str = "Row", depth: int = 2) -> tuple[Any, SearchStrategy[Any]]:
    fields = [draw(nullable(f"{name}_{number}", depth)) for number in range(draw(COUNT))]
    named = [{"name": f"c{number}", "type": kind} for number, (kind, _) in enumerate(fields)]
    values = st.fixed_dictionaries({f"c{n}": own for n, (_, own) in enumerate(fields)})
    return {"type": "record", "name": name, "fields": named}, values


COUNT = st.integers(1, 4)
AVRO = Envelope("avro", "")
DEBEZIUM = Envelope("debezium", "", encoding="avro")


@st.composite
def topics(draw: DrawFn, count: int = 6) -> tuple[Any, list[Any]]:
    """A schema, and rows of it."""
    schema, rows = draw(records())
    return schema, draw(st.lists(rows, min_size=1, max_size=count))


@st.composite
def changes(draw: DrawFn, count: int = 6) -> tuple[Any, list[Any]]:
    """The schema of Debezium's messages, and messages of it."""
    row, values = draw(records("Value"))
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
            "op": st.sampled_from("cccruuudddm"),
            "ts_ms": st.none() | LONG,
        }
    )
    of_rows = messages.filter(_has_row)
    return schema, draw(st.lists(of_rows, min_size=1, max_size=count))


def _has_row(message: dict[str, Any]) -> bool:
    image = {"m": "op", "d": "before"}.get(message["op"], "after")
    return message[image] is not None


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
    *schemas: Any, columns: Any = None, is_other: IsOther = never, **options: Any
) -> RecordDecoder:
    decoder = avro_decoder(schemas_of(*schemas, columns=columns, **options), is_other)
    assert decoder is not None
    return decoder


def rows_of(decoder: RecordDecoder, values: Sequence[bytes]) -> pa.Table:
    """All columns of messages, in their order."""
    offsets = pa.array(range(len(values)), pa.int64())
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": offsets})
    names = {name: name for name in decoder.columns.names}
    decoded = pa.Table.from_batches(decoder.decode([batch], names))
    assert decoded[MAJOR].to_pylist() == [0] * len(values)
    assert decoded[MINOR].to_pylist() == list(range(len(values)))
    return decoded.drop_columns([MAJOR, MINOR])


def numbered(table: pa.Table) -> list[str]:
    """Rows as text, with microseconds and days for times, which Python could not hold."""
    schema = pa.schema([(f.name, _number_type(f.type)) for f in table.schema])
    rows = table.cast(schema).to_pylist(maps_as_pydicts="strict")
    return [as_text(row) for row in rows]


def as_text(row: Any) -> str:
    # NaN is not equal to itself. Entries of maps have no order.
    return json.dumps(_with_text_keys(row), default=str, sort_keys=True)


def _with_text_keys(value: Any) -> Any:
    """A value whose keys of maps are text, as JSON needs them."""
    if isinstance(value, dict):
        return {str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def expected(schema: Any, value: Any) -> Any:
    """A value that fastavro has read, with microseconds for times."""
    if isinstance(schema, list):
        members = [kind for kind in schema if kind != "null"]
        return None if value is None else expected(members[0], value)
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


def _number_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _number_type(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _number_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_number_type(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date(kind) else kind
