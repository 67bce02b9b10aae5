"""Random JSON Schemas as producers write them, and messages with the rows that they become."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import MessageDecoder
from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import (
    MessageSchemas,
    message_schemas,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.values import Values
from tests.unit.stream.sources.formats.avro_rows import (
    INT,
    LONG,
    MICROS,
    TEXT,
    framed,
    twos_complement,
)

# A schema, and pairs of a value in JSON and that of its column, with numbers for times.
Kind = tuple[Any, SearchStrategy[tuple[Any, Any]]]
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
JSON = Envelope("json", "")
DEBEZIUM = Envelope("debezium", "")
NULL = {"type": "null"}


@dataclass(frozen=True)
class Style:
    """How messages are written: decimals as numbers instead of bytes; and with maps."""

    numeric: bool = False
    maps: bool = False


def same(schema: Any, values: SearchStrategy[Any]) -> Kind:
    return schema, values.map(lambda value: (value, value))


def _moment(moment: datetime) -> tuple[str, int]:
    text = moment.isoformat().replace("+00:00", "Z")
    return text, (moment - EPOCH) // timedelta(microseconds=1)


def connect(kind: str, title: str, type: str = "integer", **more: Any) -> dict[str, Any]:
    """Return a schema of Connect's converter."""
    return {"type": type, "title": title, "connect.type": kind, **more}


def floats(width: Literal[32, 64]) -> SearchStrategy[float]:
    """Floats, of which Python writes some as JSON does not."""
    return st.floats(width=width)


MOMENTS = st.datetimes(datetime(1900, 1, 1), timezones=st.just(timezone.utc)).map(_moment)
DAYS = st.dates().map(lambda day: (day.isoformat(), (day - EPOCH.date()).days))
MILLIS = st.integers(-MICROS // 1000, MICROS // 1000).map(lambda value: (value, value * 1000))
SCALARS: list[Kind] = [
    same({"type": "boolean"}, st.booleans()),
    same({"type": "integer"}, LONG),
    same({"type": "integer", "connect.type": "int16"}, st.integers(-(2**15), 2**15 - 1)),
    same({"type": "integer", "connect.type": "int32"}, INT),
    same({"type": "integer", "connect.type": "int64"}, LONG),
    same({"type": "number"}, floats(64)),
    same({"type": "number", "connect.type": "float32"}, floats(32)),
    same({"type": "string"}, TEXT),
    same({"type": "string", "format": "uuid"}, st.uuids().map(str)),
    same({"enum": ["red", "green"]}, st.sampled_from(["red", "green"])),
    ({"type": "string", "format": "date"}, DAYS),
    ({"type": "string", "format": "date-time"}, MOMENTS),
    (connect("", "io.debezium.time.ZonedTimestamp", "string"), MOMENTS),
    *(
        same(connect("int32", title), st.integers(-700_000, 2_900_000))
        for title in ("org.apache.kafka.connect.data.Date", "io.debezium.time.Date")
    ),
    *(
        (connect("int64", title), MILLIS)
        for title in ("org.apache.kafka.connect.data.Timestamp", "io.debezium.time.Timestamp")
    ),
    same(connect("int64", "io.debezium.time.MicroTimestamp"), st.integers(-MICROS, MICROS)),
    (
        connect("int64", "io.debezium.time.NanoTimestamp"),
        LONG.map(lambda value: (value, value // 1000)),
    ),
    same(connect("int64", "io.debezium.time.MicroTime"), LONG),
    (
        {"type": "string", "connect.type": "bytes"},
        st.binary(max_size=4).map(lambda value: (base64.b64encode(value).decode(), value)),
    ),
]


@st.composite
def decimal_kinds(draw: DrawFn, numeric: bool) -> Kind:
    """A decimal of Connect, as bytes or as a number."""
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    most = 10**precision - 1
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    title = "org.apache.kafka.connect.data.Decimal"
    schema = connect("bytes", title, "number", **{"connect.parameters": parameters})

    def pair(number: int) -> tuple[Any, Any]:
        # `scaleb` would round numbers of more than 28 digits.
        value = Decimal(f"{number}e-{scale}")
        octets = base64.b64encode(twos_complement(number)).decode()
        return Number(value) if numeric else octets, value

    return schema, st.integers(-most, most).map(pair)


class Number(float):
    """A number that is written with all of its digits."""

    def __new__(cls, value: Decimal) -> Number:
        number = super().__new__(cls, value)
        number.text = format(value, "f")
        return number

    text: str


@st.composite
def kinds(draw: DrawFn, definitions: dict[str, Any], style: Style, depth: int = 2) -> Kind:
    """A type, which may be null; objects may be in the definitions of the schema."""
    nested = ["array", "object", *(["map"] if style.maps else [])] if depth else []
    form = draw(st.sampled_from(["scalar"] * 4 + ["decimal", *nested]))
    if form == "array":
        items, values = draw(kinds(definitions, style, depth - 1))
        pairs = st.lists(values, max_size=3).map(
            lambda own: ([value for value, _ in own], [column for _, column in own])
        )
        schema: Any = {"type": "array", "items": items}
    elif form == "map":
        items, values = draw(kinds(definitions, style, depth - 1))
        pairs = st.dictionaries(TEXT, values, max_size=3).map(
            lambda own: tuple({key: pair[part] for key, pair in own.items()} for part in (0, 1))
        )
        schema = {"type": "object", "additionalProperties": items}
    elif form == "object":
        schema, pairs = draw(objects(definitions, style, depth - 1))
    elif form == "decimal":
        schema, pairs = draw(decimal_kinds(style.numeric))
    else:
        schema, pairs = draw(st.sampled_from(SCALARS))
    if form == "object" and draw(st.booleans()):
        name = f"Type{len(definitions)}"
        definitions[name] = schema
        schema = {"$ref": f"#/definitions/{name}"}
    union = draw(st.sampled_from([None, "oneOf", "anyOf"]))
    if union is None:
        if "$ref" in schema or "enum" in schema or draw(st.booleans()):
            return schema, pairs
        return {**schema, "type": ["null", schema["type"]]}, st.just((None, None)) | pairs
    members = [NULL, schema] if draw(st.booleans()) else [schema, NULL]
    return {union: members}, st.just((None, None)) | pairs


@st.composite
def objects(draw: DrawFn, definitions: dict[str, Any], style: Style, depth: int = 2) -> Kind:
    """An object, whose members may be absent."""
    fields = [draw(kinds(definitions, style, depth)) for _ in range(draw(st.integers(1, 4)))]
    names = [f"c-{number}" for number in range(len(fields))]
    properties = dict(zip(names, (schema for schema, _ in fields), strict=True))
    values = {name: values | st.none() for name, (_, values) in zip(names, fields, strict=True)}

    def pair(own: Mapping[str, Any]) -> tuple[Any, Any]:
        present = {name: value[0] for name, value in own.items() if value is not None}
        return present, {name: value and value[1] for name, value in own.items()}

    return {"type": "object", "properties": properties}, st.fixed_dictionaries(values).map(pair)


@st.composite
def topics(draw: DrawFn, style: Style, count: int = 6) -> tuple[Any, list[str], list[Any]]:
    """A schema, messages of it, and their rows."""
    definitions: dict[str, Any] = {}
    schema, pairs = draw(objects(definitions, style))
    values = draw(st.lists(pairs, min_size=1, max_size=count))
    schema = {**schema, "definitions": definitions}
    return schema, [text_of(value) for value, _ in values], [row for _, row in values]


def text_of(value: Any) -> str:
    """Return a value as JSON."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, dict):
        return (
            f"{{{', '.join(f'{json.dumps(key)}: {text_of(own)}' for key, own in value.items())}}}"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    return json.dumps(value)


def schemas_of(*schemas: Any, envelope: Envelope = JSON) -> MessageSchemas:
    """Schemas with the ids 1, 2, …"""
    registered = [RegisteredSchema(n, json.dumps(s), "JSON") for n, s in enumerate(schemas, 1)]
    return message_schemas(registered, envelope, None)


def decoder_of(
    *schemas: Any, envelope: Envelope = JSON, zone: str = "UTC", **options: Any
) -> MessageDecoder:
    own = schemas_of(*schemas, envelope=envelope)
    return MessageDecoder(envelope, own.columns, Values(zone), own, **options)


def messages_of(texts: list[str], number: int = 1) -> list[bytes]:
    """Return messages with the id of a schema."""
    return [framed(number, text.encode()) for text in texts]
