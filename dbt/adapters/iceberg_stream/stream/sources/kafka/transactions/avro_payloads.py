"""Read payloads of messages in Avro, as batches read their rows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.sources.formats.avro_records import (
    AvroReader,
    fast_avro_reader,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_types import AvroScalar, parse_avro
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_unions import record_indexes
from dbt.adapters.iceberg_stream.stream.sources.formats.record_reader import (
    FastReader,
    read_records,
)
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

# Types that names, ids and numbers of a payload have.
READ = {"string", "int", "long"}


def avro_parser(schema: RegisteredSchema) -> Parse:
    """Return what parses the messages of a schema, which may be a union of records.

    Args:
        schema: the schema.

    Raises:
        SchemaError: it is no schema of a record.
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
    texts = tuple(reference.text for reference in schema.references)
    record = parse_avro(schema.text, texts, index)
    begin = HEADER_BYTES if index is None else HEADER_BYTES + len(zigzag_bytes(index))
    return _AvroParser(record, begin, fast_avro_reader(record), AvroReader(record)).parse


@dataclass(frozen=True)
class _AvroParser:
    """Parses the messages of a schema.

    Attributes:
        record: their type.
        begin: where the record begins in a message.
        fast: reads most messages.
        slow: reads all.
    """

    record: Struct
    begin: int
    fast: FastReader | None
    slow: AvroReader
    _changes: ChangePayloads = field(default_factory=ChangePayloads)

    def parse(self, values: Sequence[bytes]) -> list[Payload | None]:
        """Return the payload of each message; None for one that is not Avro of the schema."""
        bodies = [value[self.begin :] for value in values]
        records, problems = read_records(self.fast, self.slow, bodies)
        payloads = self._payloads(records)
        for place in problems:
            payloads[place] = None
        return payloads

    def _payloads(self, records: pa.StructArray) -> list[Payload | None]:
        collections = dict(self.record.fields).get(COLLECTIONS)
        paths = CHANGE if collections is None else TRANSACTION
        rows = zip(*(self._values(records, path) for path in paths), strict=True)
        if collections is None:
            return self._changes.make(rows)
        counts = self._counts(records, unwrap(collections))
        return [
            Payload(status=status, id=id, data_collections=own)
            for (status, id), own in zip(rows, counts, strict=True)
        ]

    def _values(self, records: pa.StructArray, path: Sequence[str]) -> list[Any]:
        """Return the values of a field; None where it, or what it is in, is absent."""
        places = _places(self.record, path)
        if places is None:
            return [None] * len(records)
        values = pc.struct_field(records, places)
        if pa.types.is_string(values.type):
            # A message that is not UTF-8 is bad for its batch, too.
            octets = values.view(pa.binary()).to_pylist()
            return [None if own is None else own.decode("utf-8", "replace") for own in octets]
        return values.to_pylist()

    def _counts(self, records: pa.StructArray, node: Node | None) -> list[Any]:
        """Return the list COLLECTIONS of each message."""
        item = unwrap(node.node) if isinstance(node, Items) else None
        places = {name: _places(item, (name,)) for name in COUNTS}
        names = {name: place[0] for name, place in places.items() if place}
        if len(names) < len(COUNTS):
            return [None] * len(records)
        name, _ = self.record.members[COLLECTIONS]
        return [
            [{name: count[place] for name, place in names.items()} for count in counts or ()]
            for counts in records.field(name).to_pylist()
        ]


def _places(node: Node | None, path: Sequence[str]) -> list[str] | None:
    """Return the names that a field is read under; None if it is no text and no number."""
    places = []
    for name in path:
        member = node.members.get(name) if isinstance(node, Struct) else None
        if member is None:
            return None
        places.append(member[0])
        node = unwrap(member[1])
    return places if isinstance(node, AvroScalar) and node.primitive in READ else None
