"""JSON Schemas, and the columns that their objects become.

Producers write the same type in many ways: with `type` as a list, with `oneOf` or `anyOf`, behind
a `$ref`, or without `type`. Keywords that only restrict values, such as `pattern`, are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7, specification_with

from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import (
    CONNECT,
    MOST_DIGITS,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import Reference
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Scalar,
    SchemaError,
    Struct,
    require_distinct,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.values import (
    BASE64,
    CONNECT_NUMBER,
    DATE_TEXT,
    INSTANT,
    INSTANT_TEXT,
    LOCAL,
    MILLIS,
    NANOS,
    SINGLE,
)

INTEGER, BIGINT, STRING, BINARY = pa.int32(), pa.int64(), pa.string(), pa.binary()
UNIONS = ("oneOf", "anyOf", "allOf")
# Keywords that say of which type values are.
TYPED = ("type", "properties", "additionalProperties", "items", "prefixItems", "enum", "const")
ANY = "values of any type"
# Names of the types of values by Python's.
TYPE_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}
TYPE_NAMES |= {dict: "object", list: "array"}
# Types of Kafka Connect's converter, in `connect.type`.
CONNECT_TYPES: dict[str, pa.DataType] = {
    "int8": INTEGER,
    "int16": INTEGER,
    "int32": INTEGER,
}


def _refused(what: str) -> Scalar:
    """Return a type that only a definition makes a column: as text, the value's JSON."""
    return Scalar(STRING, refused=what)


# Types of Connect and Debezium, by the type in JSON and their logical type in Avro.
LOGICAL = {
    ("integer", "date"): Scalar(pa.date32(), INTEGER),
    ("integer", "timestamp-millis"): Scalar(INSTANT, BIGINT, MILLIS),
    ("integer", "local-timestamp-millis"): Scalar(LOCAL, BIGINT, MILLIS),
    ("integer", "local-timestamp-micros"): Scalar(LOCAL, BIGINT),
    ("integer", "local-timestamp-nanos"): Scalar(LOCAL, BIGINT, NANOS),
    ("string", "zoned-timestamp"): Scalar(INSTANT, STRING, INSTANT_TEXT),
}
# Types by the type in JSON and its `format`. Java's dates are numbers of milliseconds by default.
FORMATS = {
    ("string", "date"): Scalar(pa.date32(), STRING, DATE_TEXT),
    ("string", "date-time"): Scalar(INSTANT, STRING, INSTANT_TEXT),
    ("integer", "utc-millisec"): LOGICAL["integer", "timestamp-millis"],
}
SCALARS: dict[str, pa.DataType] = {
    "string": STRING,
    "integer": BIGINT,
    "number": pa.float64(),
    "boolean": pa.bool_(),
}


@lru_cache(maxsize=1024)
def parse_json_schema(text: str, references: tuple[Reference, ...] = ()) -> Struct:
    """Return the object that a schema describes.

    Args:
        text: the schema.
        references: schemas that it refers to.

    Raises:
        SchemaError: it is no schema of an object with properties.
    """
    try:
        schema = json.loads(text)
        registry = Registry().with_resources(
            (reference.name, _resource(json.loads(reference.text))) for reference in references
        )
        resolver = registry.resolver_with_root(_resource(schema))
        record = _Parser(registry, resolver, (id(schema),)).parse(schema)
    except (json.JSONDecodeError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise SchemaError(f"is no JSON Schema ({error!r})") from error
    if not isinstance(record, Struct):
        what = record.refused if isinstance(record, Scalar) else ""
        described = f"of {what}" if what else "not of an object with `properties`"
        raise SchemaError(f"is {described}, so it has no columns. Set the source's `columns`")
    return record


def _resource(schema: Any) -> Resource[Any]:
    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    # Producers that name no version mean draft 7, as Confluent's serializers do.
    return specification_with(str(dialect), default=DRAFT7).create_resource(schema)


@dataclass(frozen=True)
class _Parser:
    """Parses the types in a schema.

    Attributes:
        registry: the schemas that it refers to.
        resolver: of its references.
        path: the referenced schemas that the type is in.
    """

    registry: Any
    resolver: Any
    path: tuple[int, ...]

    def parse(self, schema: Any) -> Node | None:
        """Return the type of a schema; None if its values are null only."""
        if not isinstance(schema, dict):
            return _refused(ANY)
        if isinstance(reference := schema.get("$ref"), str):
            return self._referenced(reference)
        own = {key: value for key, value in schema.items() if key not in UNIONS}
        members = [(key, member) for key in UNIONS for member in schema.get(key) or ()]
        described = [(key, member) for key, member in members if _has_type(member)]
        # Next to a union, `type: object` only says what all members are.
        says_more = own.keys() & set(TYPED) - {"type"} or own.get("type") != "object"
        nodes = [self._typed(own)] if _has_type(own) and (says_more or not described) else []
        nodes += [self.parse(member) for _, member in described]
        # Other members only restrict the values of a type, if there is one.
        is_any = any(key != "allOf" and not _has_type(member) for key, member in members)
        if not nodes or (is_any and not _has_type(own)):
            nodes.append(_refused(ANY))
        distinct = [node for node in dict.fromkeys(nodes) if node is not None]
        if len(distinct) > 1:
            is_all = any(key == "allOf" for key, _ in described)
            return _refused("`allOf` several schemas" if is_all else "a union of several types")
        return distinct[0] if distinct else None

    def _referenced(self, reference: str) -> Node | None:
        try:
            resolved = self.resolver.lookup(reference)
        except Unresolvable:
            try:
                # A reference has the name of the schema, also if the schema has an `$id`.
                resolved = self.registry.resolver().lookup(reference)
            except Unresolvable as error:
                raise SchemaError(
                    f"refers to `{reference}`, which neither it nor its references have"
                ) from error
        if id(resolved.contents) in self.path:
            return _refused(f"`{reference}` within itself")
        path = (*self.path, id(resolved.contents))
        return _Parser(self.registry, resolved.resolver, path).parse(resolved.contents)

    def _typed(self, schema: Mapping[str, Any]) -> Node | None:
        """Return the type that a schema without unions describes."""
        kinds = set(_kinds(schema)) - {"null"}
        if not kinds:
            return None
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        if len(kinds) > 1:
            return _refused("a union of several types")
        [kind] = kinds
        if kind == "object":
            return self._object(schema)
        return self._array(schema) if kind == "array" else _scalar(kind, schema)

    def _object(self, schema: Mapping[str, Any]) -> Node | None:
        if properties := schema.get("properties"):
            fields = tuple(
                (str(name), self.parse(properties[name])) for name in _sorted(properties)
            )
            require_distinct([name for name, node in fields if node is not None])
            return Struct(fields)
        values = schema.get("additionalProperties")
        if not isinstance(values, dict) or not values:
            return _refused("an object without `properties`")
        node = self.parse(values)
        return node if node is None else Items(node, STRING)

    def _array(self, schema: Mapping[str, Any]) -> Node | None:
        items = schema.get("items")
        if isinstance(items, list) or schema.get("prefixItems"):
            return _refused("an array whose items have a type for each position")
        if not isinstance(items, dict) or not items:
            return _refused("an array without `items`")
        node = self.parse(items)
        return node if node is None else Items(node)


def _has_type(schema: Any) -> bool:
    """Return whether a schema says of which type values are."""
    return not isinstance(schema, dict) or any(key in schema for key in (*TYPED, *UNIONS, "$ref"))


def _kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the types of a schema without unions."""
    if "type" in schema:
        kinds = schema["type"]
        yield from [kinds] if isinstance(kinds, str) else kinds
    elif "enum" in schema or "const" in schema:
        for value in schema.get("enum", [schema.get("const")]):
            yield "null" if value is None else TYPE_NAMES[type(value)]
    else:
        is_array = "items" in schema or "prefixItems" in schema
        yield "array" if is_array else "object"


def _sorted(properties: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of properties in their order; Connect's converter writes them in any."""
    positions = {}
    for position, (name, schema) in enumerate(properties.items()):
        index = schema.get("connect.index") if isinstance(schema, dict) else None
        positions[name] = index if isinstance(index, int) else position
    return sorted(positions, key=lambda name: positions[name])


def _scalar(kind: str, schema: Mapping[str, Any]) -> Scalar:
    logical = CONNECT.get(str(schema.get("title")), "")
    connect = str(schema.get("connect.type"))
    if logical == "decimal" and kind in ("string", "number"):
        return _decimal(schema)
    if scalar := LOGICAL.get((kind, logical)) or FORMATS.get((kind, str(schema.get("format")))):
        return scalar
    if kind == "string" and connect == "bytes":
        return Scalar(BINARY, STRING, BASE64)
    if kind not in SCALARS:
        return _refused(f"values of the type `{kind}`")
    if connect == "float32":
        return Scalar(pa.float32(), BINARY, SINGLE)
    return Scalar(CONNECT_TYPES.get(connect, SCALARS[kind]))


def _decimal(schema: Mapping[str, Any]) -> Scalar:
    """Return the type of Connect's decimals; of a precision of 64 unless the source knows one."""
    parameters = schema.get("connect.parameters") or {}
    scale = int(parameters.get("scale") or 0)
    precision = min(MOST_DIGITS, int(parameters.get("connect.decimal.precision") or MOST_DIGITS))
    if not 0 <= scale <= precision:
        return _refused(f"decimals of the scale {scale}")
    return Scalar(pa.decimal128(precision, scale), BINARY, CONNECT_NUMBER)
