"""Avro schemas, and the columns that their records become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import avro_members
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import member_field
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Nullable,
    Scalar,
    SchemaError,
    Struct,
    require_distinct,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.values import (
    INSTANT,
    INSTANT_TEXT,
    LOCAL,
    MILLIS,
    NANOS,
    UNSCALED,
    UUID_BYTES,
)

NAMED_TYPES = ("record", "error", "enum", "fixed")
PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
# Logical types, by Avro's type: the column's type, and the form of the values.
LOGICAL: dict[tuple[str, str], tuple[pa.DataType, str]] = {
    ("int", "date"): (pa.date32(), ""),
    ("long", "timestamp-millis"): (INSTANT, MILLIS),
    ("long", "timestamp-micros"): (INSTANT, ""),
    ("long", "timestamp-nanos"): (INSTANT, NANOS),
    ("long", "local-timestamp-millis"): (LOCAL, MILLIS),
    ("long", "local-timestamp-micros"): (LOCAL, ""),
    ("long", "local-timestamp-nanos"): (LOCAL, NANOS),
    ("string", "zoned-timestamp"): (INSTANT, INSTANT_TEXT),
    ("fixed", "uuid"): (pa.string(), UUID_BYTES),
}
# Names of Kafka Connect's types, with the logical types that they are the same as. Debezium's
# Timestamps are those of columns without a time zone.
CONNECT = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.time.NanoTimestamp": "local-timestamp-nanos",
    "io.debezium.time.ZonedTimestamp": "zoned-timestamp",
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
    "org.apache.kafka.connect.data.Decimal": "decimal",
}
NO_BYTES = json.dumps({"type": "fixed", "size": 0})
# Months, days and milliseconds. Iceberg has no type for them.
DURATION = ("fixed", "duration", 12)
MOST_DIGITS = 38
# Pairs of primitive types, which are read as the wider one.
WIDENED_UNIONS = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}


@dataclass(frozen=True, kw_only=True)
class AvroScalar(Scalar):
    """A type without parts.

    Attributes:
        avro: the type without its logical type and its name, in JSON.
    """

    avro: str

    @property
    def primitive(self) -> str:
        """The type without its parameters: a primitive one, `enum` or `fixed`."""
        avro = json.loads(self.avro)
        return str(avro["type"] if isinstance(avro, dict) else avro)


@dataclass(frozen=True)
class Union(Struct):
    """A union of several types, which becomes a struct of its members.

    Attributes:
        null_at: position of `null`; None if it has none.
        types: names of the members' types.
    """

    null_at: int | None = None
    types: tuple[str, ...] = ()

    @property
    def column(self) -> pa.StructType:
        """The column's type, whose fields know the names of the members' types."""
        fields = zip(super().column, self.types, strict=True)
        return pa.struct([member_field(f.name, f.type, name) for f, name in fields])


@dataclass(frozen=True)
class NullUnion(Nullable):
    """A union of null and one type, or of two that Spark reads as one.

    Attributes:
        null_at: position of `null`; None if it is not in the union.
        union: Avro's types, if they are two besides `null`.
    """

    null_at: int | None = None
    union: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def parse_avro(text: str, references: tuple[str, ...] = (), index: int | None = None) -> Struct:
    """Return the record that a schema describes.

    Args:
        text: the schema.
        references: schemas whose types it uses.
        index: of the record in the union that the schema is; None if it is no union.

    Raises:
        SchemaError: it is no schema of a record, or a type of it becomes no column.
    """
    parser = _Parser()
    try:
        schema = json.loads(text)
        for described in (*map(json.loads, references), schema):
            parser.define(described, "")
        if index is not None:
            schema = (avro_members(schema) or ())[index]
        record = parser.parse(schema, "", ())
    except (json.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
        raise SchemaError(f"is no Avro schema ({error!r})") from error
    if not isinstance(record, Struct) or isinstance(record, Union):
        raise SchemaError("is not of a record, so it has no columns")
    return record


class _Parser:
    """Parses a schema; definitions of its named types are kept for later uses."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}

    def define(self, schema: Any, namespace: str) -> None:
        """Keep the definitions in a schema, also of types that become no column."""
        if isinstance(schema, list):
            for member in schema:
                self.define(member, namespace)
        if not isinstance(schema, dict):
            return
        kind = schema["type"]
        if kind in NAMED_TYPES:
            _, namespace = self._keep(schema, namespace)
        if kind in ("record", "error"):
            for field in schema["fields"]:
                self.define(field["type"], namespace)
        else:
            part = {"array": "items", "map": "values"}.get(str(kind))
            self.define(schema[part] if part else kind, namespace)

    def parse(self, schema: Any, namespace: str, path: tuple[str, ...]) -> Node | None:
        """Return the node of a type; None for null."""
        if isinstance(schema, list):
            return self._union(schema, namespace, path)
        if isinstance(schema, str):
            if schema == "null":
                return None
            if schema in PRIMITIVES:
                return _primitive(schema)
            return self._reference(schema, namespace, path)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.parse(kind, namespace, path)
        if kind in NAMED_TYPES:
            return self._build(self._keep(schema, namespace)[0], path)
        if kind in ("array", "map"):
            part = self.parse(schema["items" if kind == "array" else "values"], namespace, path)
            if part is None:
                raise SchemaError(f"has {'an array' if kind == 'array' else 'a map'} of nulls only")
            if not _has_bytes(part):
                raise SchemaError("has an array of records without values")
            return Items(part, pa.string() if kind == "map" else None)
        if kind in PRIMITIVES:
            return _scalar(kind, schema)
        return self.parse(kind, namespace, path)

    def _reference(self, name: str, namespace: str, path: tuple[str, ...]) -> Node | None:
        full = self._full_name(name, namespace)
        if full not in self._named:
            raise SchemaError(f"uses the type `{name}`, which it does not define")
        return self._build(full, path)

    def _full_name(self, name: str, namespace: str) -> str:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        return full if full in self._named else name

    def _keep(self, schema: Mapping[str, Any], namespace: str) -> tuple[str, str]:
        """Keep the definition of a type; return its full name, and the namespace within it."""
        name = str(schema["name"])
        space = name.rpartition(".")[0] or str(schema.get("namespace") or namespace)
        full = f"{space}.{name.rpartition('.')[2]}" if space else name
        self._named[full] = schema, space
        return full, space

    def _build(self, full: str, path: tuple[str, ...]) -> Node | None:
        schema, namespace = self._named[full]
        if schema["type"] == "enum":
            avro = {"type": "enum", "symbols": schema["symbols"]}
            return AvroScalar(pa.string(), avro=json.dumps(avro))
        if schema["type"] == "fixed":
            return _scalar("fixed", schema)
        if full in path:
            raise SchemaError(f"has the record `{full}` within itself, which no column can have")
        fields = tuple(
            (str(field["name"]), self.parse(field["type"], namespace, (*path, full)))
            for field in schema["fields"]
        )
        require_distinct([name for name, node in fields if node is not None])
        return Struct(fields)

    def _union(self, schema: list[Any], namespace: str, path: tuple[str, ...]) -> Node | None:
        nodes = [self.parse(kind, namespace, path) for kind in schema]
        null_at = nodes.index(None) if None in nodes else None
        members = [node for node in nodes if node is not None]
        if not members:
            raise SchemaError("has a union of null only")
        if len(members) == 1:
            return NullUnion(members[0], null_at)
        plain = tuple(kind for kind in schema if isinstance(kind, str) and kind != "null")
        if (wide := WIDENED_UNIONS.get(frozenset(plain))) and len(plain) == len(members):
            return NullUnion(_primitive(wide), null_at, plain)
        named = tuple((f"member{number}", node) for number, node in enumerate(members))
        types = tuple(self._type_name(kind, namespace) for kind in schema if kind != "null")
        return Union(named, null_at, types)

    def _type_name(self, schema: Any, namespace: str) -> str:
        """Return the full name by which Avro matches a member of a union."""
        if isinstance(schema, str):
            return self._full_name(schema, namespace)
        kind = schema["type"]
        return self._keep(schema, namespace)[0] if kind in NAMED_TYPES else str(kind)


def _has_bytes(node: Node | None) -> bool:
    """Return whether values take at least a byte of a message."""
    if isinstance(node, Struct) and not isinstance(node, Union):
        return any(_has_bytes(part) for _, part in node.fields)
    if isinstance(node, NullUnion):
        return node.null_at is not None or bool(node.union) or _has_bytes(node.node)
    return node is not None and getattr(node, "avro", "") != NO_BYTES


def _primitive(kind: str) -> AvroScalar:
    return AvroScalar(PRIMITIVES[kind], avro=json.dumps(kind))


def _scalar(kind: str, schema: Mapping[str, Any]) -> AvroScalar:
    """Return the node of a primitive or fixed type with its logical type, or Connect's."""
    connect = str(schema.get("connect.name") or "")
    logical = CONNECT.get(connect) or str(schema.get("logicalType") or "")
    avro: Any = kind
    if kind == "fixed":
        avro = {"type": "fixed", "size": schema["size"]}
    written = json.dumps(avro)
    read = PRIMITIVES["bytes" if kind == "fixed" else kind]
    if logical == "decimal" and kind in ("bytes", "fixed"):
        parameters = schema.get("connect.parameters") or {}
        scale = int(schema.get("scale") or parameters.get("scale") or 0)
        # Connect's decimals have a precision of 64 unless the source knows a lower one.
        precision = min(MOST_DIGITS, int(schema.get("precision") or MOST_DIGITS))
        # Avro ignores a decimal that has more digits than its bytes.
        fits = kind == "bytes" or precision < len(str(2 ** (8 * int(schema["size"]) - 1)))
        if 0 <= scale <= precision and fits:
            return AvroScalar(pa.decimal128(precision, scale), read, UNSCALED, avro=written)
        return AvroScalar(read, avro=written)
    if (kind, logical, schema.get("size")) == DURATION:
        return AvroScalar(read, refused="a duration", avro=written)
    if (kind, logical) in LOGICAL and (kind != "fixed" or schema["size"] == 16):
        column, form = LOGICAL[kind, logical]
        return AvroScalar(column, read, form, avro=written)
    return AvroScalar(read, avro=written)
