"""Avro schemas as Spark's `from_avro` reads them, and the columns that their records become.

Each schema is written again for Spark, with positions for names and only the logical types that
are meant: names that Spark would take for equal, aliases and properties cannot disturb it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from pyspark.sql import types as t

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

NAMED_TYPES = ("record", "error", "enum", "fixed")
# Bytes after each message that show that its record ends where its schema ends.
END = "CAFED00D"
PRIMITIVES: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "bytes": t.BinaryType(),
}
TIMESTAMP, TIMESTAMP_NTZ = t.TimestampType(), t.TimestampNTZType()
# Logical types that Spark reads as such, by Avro's type.
LOGICAL: dict[tuple[str, str], t.DataType] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): TIMESTAMP_NTZ,
    ("long", "local-timestamp-micros"): TIMESTAMP_NTZ,
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
MICROS = "({x} div 1000 - if({x} % 1000 < 0, 1, 0))"
# SQL of values that Spark reads as a number, text or bytes only.
CONVERTED: dict[tuple[str, str], tuple[t.DataType, str]] = {
    ("long", "timestamp-nanos"): (TIMESTAMP, f"timestamp_micros({MICROS})"),
    ("long", "local-timestamp-nanos"): (
        TIMESTAMP_NTZ,
        f"timestampadd(MICROSECOND, {MICROS}, timestamp_ntz'1970-01-01 00:00:00')",
    ),
    ("string", "zoned-timestamp"): (TIMESTAMP, "try_cast({x} as timestamp)"),
    ("fixed", "uuid"): (
        t.StringType(),
        r"lower(regexp_replace(hex({x}), '^(.{8})(.{4})(.{4})(.{4})(.{12})$', '$1-$2-$3-$4-$5'))",
    ),
}
# Months, days and milliseconds. Iceberg has no type for them.
DURATION = ("fixed", "duration", 12)
MOST_DIGITS = 38
# Pairs of primitive types, which Spark reads as the wider one.
WIDENED_UNIONS = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}


@dataclass(frozen=True, kw_only=True)
class AvroScalar(Scalar):
    """A type without parts.

    Attributes:
        avro: the type for Spark, without a name.
    """

    avro: str

    @property
    def primitive(self) -> str:
        """The type without its logical type: a primitive one, `enum` or `fixed`."""
        avro = json.loads(self.avro)
        return str(avro["type"] if isinstance(avro, dict) else avro)

    @property
    def size(self) -> int:
        """The bytes of a `fixed`."""
        return int(json.loads(self.avro)["size"])


@dataclass(frozen=True)
class Union(Struct):
    """A union of several types, which Spark reads as a struct of its members.

    Attributes:
        null_at: position of `null`; None if it has none.
        types: names of the members' types.
    """

    null_at: int | None = None
    types: tuple[str, ...] = ()
    prefix: ClassVar[str] = "member"

    @property
    def column(self) -> t.StructType:
        """The column's type, whose fields know the names of the members' types."""
        fields = zip(super().column.fields, self.types, strict=True)
        return t.StructType([member_field(f.name, f.dataType, name) for f, name in fields])


@dataclass(frozen=True)
class NullUnion(Nullable):
    """A union of null and one type, or of two that Spark reads as one.

    Attributes:
        null_at: position of `null`; None if it is not in the union.
        union: Avro's types, if they are two besides `null`.
    """

    null_at: int | None = None
    union: tuple[str, ...] = ()


def emit(node: Node, names: Iterator[int]) -> Any:
    """Return the schema of a type for Spark.

    Args:
        node: the type.
        names: numbers for names that are unique in the whole schema.
    """
    if isinstance(node, Struct):
        emitted = ["null" if kind is None else emit(kind, names) for _, kind in node.fields]
        if isinstance(node, Union):
            return _with_null(emitted, node.null_at)
        fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(emitted)]
        return {"type": "record", "name": f"n{next(names)}", "fields": fields}
    if isinstance(node, NullUnion):
        others = list(node.union) if node.union else [emit(node.node, names)]
        return _with_null(others, node.null_at)
    if isinstance(node, Items):
        kind, part = ("map", "values") if node.is_map else ("array", "items")
        return {"type": kind, part: emit(node.node, names)}
    assert isinstance(node, AvroScalar)
    written = json.loads(node.avro)
    if isinstance(written, dict) and written["type"] in ("enum", "fixed"):
        return {**written, "name": f"n{next(names)}"}
    return written


def _with_null(types: list[Any], null_at: int | None) -> list[Any]:
    return types if null_at is None else [*types[:null_at], "null", *types[null_at:]]


def schema_for_spark(record: Struct) -> str:
    """Return the Avro schema that Spark reads a message and the bytes END with.

    Args:
        record: the message's type.
    """
    names = itertools.count()
    end = {"type": "fixed", "name": "end_mark", "size": len(END) // 2}
    fields = [{"name": "r", "type": emit(record, names)}, {"name": "end", "type": end}]
    return json.dumps({"type": "record", "name": "message", "fields": fields})


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
                return AvroScalar(PRIMITIVES[schema], avro=json.dumps(schema))
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
            return Items(part, t.StringType() if kind == "map" else None)
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
            return AvroScalar(t.StringType(), avro=json.dumps(avro))
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
            widest = AvroScalar(PRIMITIVES[wide], avro=json.dumps(wide))
            return NullUnion(widest, null_at, plain)
        named = tuple((f"member{number}", node) for number, node in enumerate(members))
        types = tuple(self._type_name(kind, namespace) for kind in schema if kind != "null")
        return Union(named, null_at, types)

    def _type_name(self, schema: Any, namespace: str) -> str:
        """Return the full name by which Avro matches a member of a union."""
        if isinstance(schema, str):
            return self._full_name(schema, namespace)
        kind = schema["type"]
        return self._keep(schema, namespace)[0] if kind in NAMED_TYPES else str(kind)


def _scalar(kind: str, schema: Mapping[str, Any]) -> AvroScalar:
    """Return the node of a primitive or fixed type with its logical type, or Connect's."""
    connect = str(schema.get("connect.name") or "")
    logical = CONNECT.get(connect) or str(schema.get("logicalType") or "")
    avro: dict[str, Any] = {"type": kind}
    if kind == "fixed":
        avro["size"] = schema["size"]
    column = PRIMITIVES["bytes" if kind == "fixed" else kind]
    if logical == "decimal" and kind in ("bytes", "fixed"):
        parameters = schema.get("connect.parameters") or {}
        scale = int(schema.get("scale") or parameters.get("scale") or 0)
        # Connect's decimals have a precision of 64 unless the source knows a lower one.
        precision = min(MOST_DIGITS, int(schema.get("precision") or MOST_DIGITS))
        # Avro ignores a decimal that has more digits than its bytes.
        fits = kind == "bytes" or precision < len(str(2 ** (8 * int(schema["size"]) - 1)))
        if 0 <= scale <= precision and fits:
            avro |= {"logicalType": "decimal", "precision": precision, "scale": scale}
            column = t.DecimalType(precision, scale)
        return AvroScalar(column, avro=json.dumps(avro))
    if (kind, logical, schema.get("size")) == DURATION:
        return AvroScalar(column, refused="a duration", avro=json.dumps(avro))
    if (kind, logical) in LOGICAL:
        avro["logicalType"] = logical
        return AvroScalar(LOGICAL[kind, logical], avro=json.dumps(avro))
    if (kind, logical) in CONVERTED and (kind != "fixed" or schema["size"] == 16):
        column, sql = CONVERTED[kind, logical]
        return AvroScalar(column, sql, avro=json.dumps(avro))
    return AvroScalar(column, avro=json.dumps(avro))
