"""Read payloads of messages in Avro by pyruhvro, which decodes them into Arrow's arrays.

Only the payload's fields are looked at. All others are decoded as a type that has the same bytes,
without its names and its logical type: pyruhvro does not have all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import (
    AvroScalar,
    NullUnion,
    Union,
    parse_avro,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_unions import record_indexes
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import RegisteredSchema
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    SchemaError,
    Struct,
    unwrap,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import (
    HEADER_BYTES,
    zigzag_bytes,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.transactions.payload_fields import (
    CHANGE,
    COLLECTIONS,
    COUNTS,
    TRANSACTION,
    ChangePayloads,
    Parse,
    Payload,
)

# Types with the same bytes as others.
SAME_BYTES = {
    "boolean": "boolean",
    "int": "long",
    "long": "long",
    "enum": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "string",
}
# Types that names, ids and numbers of a payload have.
READ = {"string", "int", "long"}


def avro_parser(schema: RegisteredSchema) -> Parse:
    """Return what parses the messages of a schema, which may be a union of records.

    Args:
        schema: the schema.

    Raises:
        SchemaError: it is no schema of a record.
        StreamError: it has a type that Debezium does not write, or pyruhvro is not installed.
    """
    indexes = record_indexes(schema)
    if indexes is None:
        return _record_parser(schema)
    parsers = {}
    for index in indexes.values():
        # A batch cannot read such a record either.
        with contextlib.suppress(SchemaError):
            parsers[zigzag_bytes(index)] = _record_parser(schema, index)
    return _UnionParser(parsers).parse


@dataclass(frozen=True)
class _UnionParser:
    """Parses the messages of a union.

    Attributes:
        parsers: of its records, by what is before them.
    """

    parsers: Mapping[bytes, Parse]

    def parse(self, values: Sequence[bytes]) -> list[Payload | None]:
        """Return the payload of each message; None for one without a record."""
        payloads: list[Payload | None] = [None] * len(values)
        for prefix, parse in self.parsers.items():
            own = [n for n, value in enumerate(values) if value.startswith(prefix, HEADER_BYTES)]
            for place, payload in zip(own, parse([values[n] for n in own]), strict=True):
                payloads[place] = payload
        return payloads


def _record_parser(schema: RegisteredSchema, index: int | None = None) -> Parse:
    """Return what parses messages of a record, which may be in a union."""
    try:
        import pyruhvro  # noqa: F401
    except ImportError as error:
        raise StreamError(
            "Streams of messages in Avro with whole transactions need pyruhvro: pip install "
            "'dbt-iceberg-stream[kafka]'."
        ) from error
    texts = tuple(reference.text for reference in schema.references)
    record = parse_avro(schema.text, texts, index)
    try:
        written = json.dumps(_same_bytes(record, itertools.count()))
    except _Unsupported as error:
        raise StreamError(
            f"Transactions cannot be read from messages with the schema {schema.id}, which has "
            f"{error}: Debezium writes none. Change the schema, or remove `transaction_topic` or "
            "`transactions` from the source."
        ) from None
    begin = HEADER_BYTES if index is None else HEADER_BYTES + len(zigzag_bytes(index))
    return _AvroParser(record, written, begin).parse


class _Unsupported(Exception):
    """A type cannot be decoded; the message names it."""


@dataclass(frozen=True)
class _AvroParser:
    """Parses the messages of a schema.

    Attributes:
        record: their type.
        schema: that they are decoded with.
        begin: where the record begins in a message.
    """

    record: Struct
    schema: str
    begin: int
    _changes: ChangePayloads = field(default_factory=ChangePayloads)

    def parse(self, values: Sequence[bytes]) -> list[Payload | None]:
        """Return the payload of each message; None for one that is not Avro of the schema."""
        from pyruhvro import deserialize_array

        try:
            bodies = [value[self.begin :] for value in values]
            return self._payloads(deserialize_array(bodies, self.schema).to_struct_array())
        except (pa.ArrowException, ValueError):
            if len(values) == 1:
                return [None]
            return [payload for value in values for payload in self.parse([value])]

    def _payloads(self, messages: pa.StructArray) -> list[Payload | None]:
        collections = dict(self.record.fields).get(COLLECTIONS)
        paths = CHANGE if collections is None else TRANSACTION
        columns = (self._values(messages, path) for path in paths)
        rows = zip(*columns, strict=True)
        if collections is None:
            return self._changes.make(rows)
        counts = self._counts(messages, unwrap(collections))
        return [
            Payload(status=status, id=id, data_collections=own)
            for (status, id), own in zip(rows, counts, strict=True)
        ]

    def _values(self, messages: pa.StructArray, path: Sequence[str]) -> list[Any]:
        """Return the values of a field; None where it, or what it is in, is absent."""
        places = _places(self.record, path)
        if places is None:
            return [None] * len(messages)
        return pc.struct_field(messages, places).to_pylist()

    def _counts(self, messages: pa.StructArray, node: Node | None) -> list[Any]:
        """Return the list COLLECTIONS of each message."""
        item = unwrap(node.node) if isinstance(node, Items) else None
        places = {name: _places(item, (name,)) for name in COUNTS}
        names = {name: place[0] for name, place in places.items() if place}
        if len(names) < len(COUNTS):
            return [None] * len(messages)
        position = [name for name, _ in self.record.fields].index(COLLECTIONS)
        return [
            [{name: count[place] for name, place in names.items()} for count in counts or ()]
            for counts in messages.field(f"f{position}").to_pylist()
        ]


def _places(node: Node | None, path: Sequence[str]) -> list[str] | None:
    """Return the names that a field is decoded under; None if it is no text and no number."""
    places = []
    for name in path:
        names = [own for own, _ in node.fields] if isinstance(node, Struct) else []
        if name not in names:
            return None
        assert isinstance(node, Struct)
        position = names.index(name)
        places.append(f"f{position}")
        node = unwrap(node.fields[position][1])
    return places if isinstance(node, AvroScalar) and node.primitive in READ else None


def _same_bytes(node: Node, names: Iterator[int]) -> Any:
    """Return the schema that a type is decoded with; raise _Unsupported if there is none."""
    if isinstance(node, NullUnion) and not node.union:
        part = _same_bytes(node.node, names)
        return part if node.null_at is None else [part, "null"] if node.null_at else ["null", part]
    if isinstance(node, Struct) and not isinstance(node, Union):
        fields = [
            {"name": f"f{position}", "type": _same_bytes(part, names)}
            for position, (_, part) in enumerate(node.fields)
            if part is not None
        ]
        if not fields:
            raise _Unsupported("a record without fields")
        return {"type": "record", "name": f"n{next(names)}", "fields": fields}
    if isinstance(node, Items):
        item = _same_bytes(node.node, names)
        if node.is_map:
            pair = [{"name": "key", "type": "string"}, {"name": "value", "type": item}]
            item = {"type": "record", "name": f"n{next(names)}", "fields": pair}
        return {"type": "array", "items": item}
    if isinstance(node, AvroScalar) and (kind := node.primitive) in SAME_BYTES:
        return SAME_BYTES[kind]
    raise _Unsupported("a union of several types" if isinstance(node, Struct) else "a `fixed`")
