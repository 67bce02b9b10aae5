"""Read records in Avro: by pyruhvro into Arrow's arrays, and by fastavro what that cannot.

pyruhvro reads physical types only, and bytes as text. It accepts integers that are padded or too
large, arrays of a negative length and bytes after the record: a message that is not what its record
is encoded to is read again by fastavro.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.sources.formats.arrays import (
    Bad,
    any_of,
    as_mask,
    convert_each,
    list_bounds,
    map_entries,
    maps_with_repeated_keys,
    of_items,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import (
    AvroScalar,
    NullUnion,
    Union,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.record_reader import (
    Doubt,
    FastReader,
    Problem,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import Items, Node, Struct

# The types that pyruhvro reads messages with, by their own types. Bytes are read as text.
READ = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "string",
}
# What fastavro raises for messages that are none of the schema.
DAMAGED = (EOFError, IndexError, ValueError, OverflowError)
RANGE = (pa.ArrowException, OverflowError)


class AvroReader:
    """Reads messages one by one; see SlowReader.

    Args:
        record: the type of the messages.
    """

    def __init__(self, record: Struct) -> None:
        self._record = record
        self._schema = fastavro.parse_schema(_schema(record))

    def read(self, bodies: Sequence[bytes]) -> tuple[pa.StructArray, dict[int, Problem]]:
        values = list(map(self._value, bodies))
        kind = self._record.read_type
        try:
            records = pa.array(values, kind)
        except RANGE:
            # An integer may be larger than its type, which fastavro does not check.
            values = [value if _fits(value, kind) else None for value in values]
            records = pa.array(values, kind)
        return records, {place: Problem() for place, value in enumerate(values) if value is None}

    def _value(self, body: bytes) -> dict[str, Any] | None:
        """Return the record of a message; None if it is none of the schema."""
        stream = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(
                stream,
                self._schema,
                None,
                return_record_name=True,
                return_record_name_override=True,
            )
        except DAMAGED:
            return None
        return None if stream.read(1) else _plain(value, self._record)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except RANGE:
        return False
    return True


def _plain(value: Any, node: Node | None) -> Any:
    """Return a value as Arrow takes it: a union as a struct of its members."""
    if value is None or node is None:
        return None
    if isinstance(node, NullUnion):
        return _plain(value, node.node)
    if isinstance(node, Union):
        name, held = value
        place = int(name.rpartition(".u")[2])
        return {f"f{place}": _plain(held["v"], node.fields[place][1])}
    if isinstance(node, Struct):
        return {name: _plain(value[name], part) for name, part in node.members.values()}
    if isinstance(node, Items):
        if node.is_map:
            return [(key, _plain(item, node.node)) for key, item in value.items()]
        return [_plain(item, node.node) for item in value]
    return value


@dataclass(frozen=True)
class FastAvroReader:
    """Reads messages by pyruhvro; see FastReader.

    Attributes:
        record: the type of the messages.
        schema: that they are read with.
    """

    record: Struct
    schema: str

    def accepts(self, bodies: Sequence[bytes]) -> bool:
        from pyruhvro import deserialize_array

        try:
            deserialize_array(bodies, self.schema)
        except (pa.ArrowException, ValueError):
            return False
        return True

    def read(self, bodies: Sequence[bytes]) -> tuple[pa.StructArray, Bad]:
        from pyruhvro import deserialize_array, serialize_record_batch

        try:
            decoded = deserialize_array(bodies, self.schema)
            [encoded] = serialize_record_batch(decoded, self.schema, 1)
        except (pa.ArrowException, ValueError) as error:
            raise Doubt from error
        differs = as_mask(pc.not_equal(encoded, pa.array(bodies, pa.binary())))
        records = _as_read(decoded.to_struct_array(), self.record)
        doubts = differs, maps_with_repeated_keys(records, self.record), _not_utf8(records)
        return records, any_of(*doubts)


def fast_avro_reader(record: Struct) -> FastReader | None:
    """Return what reads most messages of a schema.

    Args:
        record: their type.

    Returns:
        The reader; None if pyruhvro is not installed, or does not have one of the types.
    """
    try:
        from pyruhvro import avro_to_arrow_schema
    except ImportError:
        return None
    if not _is_fast(record):
        return None
    schema = json.dumps(_schema(record, is_fast=True))
    try:
        avro_to_arrow_schema(schema)
    except ValueError:
        return None  # such as an enum whose symbols fastavro accepts only
    return FastAvroReader(record, schema)


def _is_fast(node: Node | None, in_items: bool = False) -> bool:
    """Return whether pyruhvro reads a type."""
    if isinstance(node, NullUnion):
        # A byte of a message may take any memory: as a null record in an array.
        grows = in_items and isinstance(node.node, Struct)
        return (
            not node.union
            and node.null_at is not None
            and not grows
            and _is_fast(node.node, in_items)
        )
    if isinstance(node, Union) or node is None:
        return False
    if isinstance(node, Struct):
        return bool(node.fields) and all(_is_fast(part, in_items) for _, part in node.fields)
    if isinstance(node, Items):
        return _is_fast(node.node, True)
    assert isinstance(node, AvroScalar)
    return node.primitive in READ or (node.primitive == "enum" and not in_items)


def _as_read(array: pa.Array, node: Node) -> pa.Array:
    """Return values with the types that fastavro's are read with."""
    if isinstance(node, NullUnion):
        return _as_read(array, node.node)
    kind = node.read_type
    if array.type == kind:
        return array
    absent = array.is_null() if array.null_count else None
    if isinstance(node, Struct):
        parts = zip(array.flatten(), node.parts, strict=True)
        children = [_as_read(part, own) for part, (_, own) in parts]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)
    if isinstance(node, Items):
        if node.is_map:
            items = _as_read(array.items, node.node)
            return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=kind, mask=absent)
        items = _as_read(array.values, node.node)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=absent)
    return array.view(kind) if pa.types.is_binary(kind) else array.cast(kind)


def _not_utf8(array: pa.Array) -> Bad:
    """Return which values have a string, at any depth, that is not UTF-8."""
    kind = array.type
    if pa.types.is_struct(kind):
        return any_of(*map(_not_utf8, array.flatten()))
    if pa.types.is_map(kind):
        return of_items(any_of(*map(_not_utf8, map_entries(array))), list_bounds(array)[0])
    if pa.types.is_list(kind):
        return of_items(_not_utf8(array.flatten()), list_bounds(array)[0])
    if pa.types.is_string(kind):
        # Only the cast of bytes checks them.
        return convert_each(array, kind, lambda part: part.view(pa.binary()).cast(kind))[1]
    return None


def _schema(record: Struct, is_fast: bool = False) -> Any:
    """Return the schema that messages are read with: without logical types, and its own names."""
    return _physical(record, itertools.count(), is_fast)


def _physical(node: Node | None, names: Iterator[int], is_fast: bool) -> Any:
    if node is None:
        return "null"
    if isinstance(node, NullUnion):
        others = list(node.union) or [_physical(node.node, names, is_fast)]
        return _with_null(others, node.null_at)
    if isinstance(node, Union):
        # A record takes no bytes, and says of which member a value is.
        members = [
            {
                "type": "record",
                "name": f"u{place}",
                "namespace": f"n{next(names)}",
                "fields": [{"name": "v", "type": _physical(part, names, is_fast)}],
            }
            for place, (_, part) in enumerate(node.fields)
        ]
        return _with_null(members, node.null_at)
    if isinstance(node, Struct):
        fields = [
            {"name": f"f{place}", "type": _physical(part, names, is_fast)}
            for place, (_, part) in enumerate(node.fields)
        ]
        return {"type": "record", "name": f"n{next(names)}", "fields": fields}
    if isinstance(node, Items):
        form, part = ("map", "values") if node.is_map else ("array", "items")
        return {"type": form, part: _physical(node.node, names, is_fast)}
    assert isinstance(node, AvroScalar)
    written = json.loads(node.avro)
    if isinstance(written, dict) and written["type"] in ("enum", "fixed"):
        return {**written, "name": f"n{next(names)}"}
    return READ[node.primitive] if is_fast else node.primitive


def _with_null(types: list[Any], null_at: int | None) -> list[Any]:
    return types if null_at is None else [*types[:null_at], "null", *types[null_at:]]
