"""Decode messages: bytes become rows, or the reasons why they are bad, in one pass.

Each format has one decoder, and it is the same wherever it runs. What it makes of a message does
not depend on the messages beside it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.arrays import converted
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_records import (
    AvroReader,
    fast_avro_reader,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.avro_unions import UnionMember
from dbt.adapters.iceberg_stream.stream.sources.formats.casts import cast
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import Envelope
from dbt.adapters.iceberg_stream.stream.sources.formats.fast_protobuf import fast_protobuf_reader
from dbt.adapters.iceberg_stream.stream.sources.formats.json_records import (
    JsonReader,
    declared_record,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.message_index import split
from dbt.adapters.iceberg_stream.stream.sources.formats.message_schemas import (
    KINDS,
    MessageSchemas,
    Writer,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.protobuf_records import (
    ID,
    MessageLayout,
    ProtobufReader,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.record_reader import (
    FastReader,
    Problem,
    SlowReader,
    read_records,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.record_types import named
from dbt.adapters.iceberg_stream.stream.sources.formats.row_images import (
    AFTER,
    BEFORE,
    DATA,
    KIND,
    OLD,
    OPERATION,
    SOURCE,
    TABLE,
    Rows,
    Wanted,
    child,
    debezium_rows,
    maxwell_rows,
    plain_rows,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    Items,
    Node,
    Nullable,
    Scalar,
    Struct,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.values import JSON, Values, why_bad
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import (
    HEADER_BYTES,
    has_header,
    json_text,
    schema_header,
    schema_id,
    zigzag_bytes,
)

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NO_RECORD = "does not fit the source's `columns`"
NO_HEADER = (
    "does not begin with a byte 0 and the four bytes of a schema id, as messages of a schema "
    "registry do; ids in Kafka's headers are not read"
)
NO_REGISTRY = ". If no message of the topic does, set the source's `schema_file`"
GLUE = "has the header of AWS Glue's schema registry, which is not supported"
PLAIN_JSON = "is JSON without the id of a schema. Set {}the source's `columns`"
NO_TYPE = (
    "is JSON without the id of a schema, so that its record type is unknown. Remove the source's "
    "`record` to read messages of all types"
)
# Return the header of a message, and what follows it.
HEADER, BODY = itemgetter(slice(HEADER_BYTES)), itemgetter(slice(HEADER_BYTES, None))
NOTHING = "has neither a key nor a value"
TEXT_TYPE, RAW_JSON = Scalar(pa.string()), Scalar(pa.binary(), form=JSON)


class UnknownSchema(Exception):
    """A message has a schema that has to be asked for."""


class BadMessage(NamedTuple):
    """A message that cannot be read.

    Attributes:
        place: its place among the messages.
        record: the message as text.
        reason: why it cannot be read; it follows `the message `.
    """

    place: int
    record: str
    reason: str


@dataclass(frozen=True)
class Decoded:
    """What messages become.

    Attributes:
        rows: the columns of the rows, in the order of the messages.
        of: the place of the message of each row.
        deleted: which rows are deleted.
        is_old: which rows are of the key before an update.
        truncates: places of messages that delete all rows.
        bad: messages that cannot be read.
        skipped: how many messages are of other record types.
    """

    rows: pa.RecordBatch
    of: Places
    deleted: Mask
    is_old: Mask
    truncates: Places
    bad: Sequence[BadMessage] = ()
    skipped: int = 0


@dataclass(frozen=True)
class _Type:
    """Messages that are read in the same way.

    Attributes:
        record: their type.
        row: the type of the rows in them.
        slow: reads all of them.
        fast: reads most of them; None if nothing does.
        layout: what is before their records.
        key: columns that identify a row, spelled as the rows spell them.
    """

    record: Struct
    row: Struct
    slow: SlowReader
    fast: FastReader | None = None
    layout: Hashable = None
    key: tuple[str, ...] = ()


@dataclass
class _Group:
    """Messages that have the same schema, or no schema that is read.

    Attributes:
        number: id of the schema; None if none is read.
        places: of the messages.
        bodies: the messages without their headers, if a schema is read.
        header: of the messages.
    """

    number: int | None
    places: Places
    bodies: Sequence[bytes]
    header: bytes = b""


# Returns schemas in which the id of an unknown one is unreadable or another record type's.
Learn = Callable[[int], MessageSchemas]


@dataclass
class MessageDecoder:
    """Decodes the messages of one source.

    Attributes:
        envelope: the format of the messages.
        columns: of the rows.
        values: converts values.
        schemas: of the messages, by the ids that they have; None if they have none.
        learn: asks for the schema of an id that `schemas` does not have.
        of_source: whether the source's definition has the schema of all messages, and no registry.

    Raises:
        StreamError: a column has a type that messages have no values of, or the key is missing.
    """

    envelope: Envelope
    columns: pa.Schema
    values: Values = field(default_factory=Values)
    schemas: MessageSchemas | None = None
    learn: Learn | None = None
    of_source: bool = False

    def __post_init__(self) -> None:
        envelope, schemas = self.envelope, self.schemas
        self._nulls: frozenset[bytes] = frozenset()
        self._portable: tuple[MessageSchemas | None, bytes] | None = None
        if schemas is None or envelope.of_json_record:
            own = _declared_type(envelope, self.columns)
            ids = [0] if schemas is None else [n for w in schemas.writers for n in w.ids]
            self._types = dict.fromkeys(ids, own)
            return
        self._types = {
            n: kind for w in schemas.writers for kind in [_type_of(w, envelope)] for n in w.ids
        }
        self._nulls = frozenset(_null_messages(schemas.writers))

    @classmethod
    def of(cls, portable: bytes) -> MessageDecoder:
        """Return the decoder of another process, which raises UnknownSchema.

        Args:
            portable: what its `portable` returns.
        """

        def learn(number: int) -> MessageSchemas:
            raise UnknownSchema

        envelope, columns, values, schemas, of_source = pickle.loads(portable)
        return cls(envelope, columns, values, schemas, learn, of_source)

    def portable(self) -> bytes:
        """Return what another process needs to decode as this one does."""
        if self._portable is None or self._portable[0] is not self.schemas:
            parts = (self.envelope, self.columns, self.values, self.schemas, self.of_source)
            self._portable = self.schemas, pickle.dumps(parts, pickle.HIGHEST_PROTOCOL)
        return self._portable[1]

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] = ()) -> Decoded:
        """Return what messages become.

        Args:
            values: the values of the messages; None for a message without one.
            keys: their keys, if messages without a value delete the rows of their keys.
        """
        values = [None if v in self._nulls else v for v in values] if self._nulls else values
        deleted = np.zeros(len(values), np.bool_)
        if type(None) in set(map(type, values)):
            deleted = np.array([value is None for value in values], np.bool_)
        bodies, absent = values, deleted
        bad: dict[int, str] = {}
        if self.envelope.tombstone_deletes and deleted.any():
            bodies = [k if v is None else v for v, k in zip(values, keys, strict=True)]
            absent = np.array([body is None for body in bodies], np.bool_)
            bad = dict.fromkeys(np.flatnonzero(absent).tolist(), NOTHING)
        parts, skipped = list[Decoded](), 0
        for group in self._groups(bodies, absent):
            if group.number is None:
                skipped += self._refuse(group, bodies, deleted, bad)
            else:
                parts.append(self._read(group, deleted, bad))
        refused = [BadMessage(p, self._text(bodies[p]), bad[p]) for p in sorted(bad)]
        return _joined(parts, self.row_columns, refused, skipped)

    @property
    def row_columns(self) -> pa.Schema:
        """The columns of the rows, with the name of their table, if there is a column for it."""
        name = self.envelope.table_column
        return self.columns.append(pa.field(name, pa.string())) if name else self.columns

    def _groups(self, bodies: Sequence[bytes | None], absent: Mask) -> Iterator[_Group]:
        places = np.flatnonzero(~absent)
        messages: Any = bodies
        if len(places) < len(bodies):
            messages = [bodies[place] for place in places.tolist()]
        if self.schemas is None or self.of_source:
            # The first byte of JSON is larger than that of a header.
            least = min(messages, default=b"") or min(filter(None, messages), default=b"")
            if self._kind == "JSON" and has_header(least):
                messages = list(map(json_text, messages))
            yield _Group(next(iter(self._types)), places, messages)
            return
        headers = set(map(HEADER, messages))
        for header in headers:
            own, group = places, messages
            if len(headers) > 1:
                chosen = [n for n, each in enumerate(map(HEADER, messages)) if each == header]
                own, group = places[chosen], [messages[n] for n in chosen]
            number = schema_id(header)
            if number in self._types:
                yield _Group(number, own, list(map(BODY, group)), header)
            else:
                yield _Group(None, own, [], header)

    def _refuse(
        self, group: _Group, bodies: Sequence[bytes | None], deleted: Mask, bad: dict[int, str]
    ) -> int:
        """Add why messages of no schema that is read are bad; return how many are skipped."""
        skipped, number = 0, schema_id(group.header)
        for place in group.places.tolist():
            if number is None:
                why: str | None = self._why_no_header(bodies[place] or b"")
            else:
                why = self._why(number, bool(deleted[place]))
            if why is None:
                skipped += 1
            else:
                bad[place] = why
        return skipped

    def _why(self, number: int, is_key: bool) -> str | None:
        """Return why messages of a schema that is not read are bad; None if they are skipped."""
        assert self.schemas is not None
        known = self.schemas.unreadable.keys() | self.schemas.others.keys()
        if number not in known and self.learn:
            self.schemas = self.learn(number)
        if (names := self.schemas.others.get(number)) is not None:
            # Without `key_record` any key may be that of a row.
            return _other_key(number, names) if is_key and not self.envelope.key_record else None
        unknown = f"has the schema id {number}, which the registry does not have"
        return self.schemas.unreadable.get(number, unknown)

    def _why_no_header(self, message: bytes) -> str:
        if message.startswith(b"{"):
            if self.envelope.of_json_record:
                return NO_TYPE
            return PLAIN_JSON.format("" if self._kind == "JSON" else "`format: json` and ")
        if message.startswith(b"\3"):
            return GLUE
        return NO_HEADER + (NO_REGISTRY if self._kind == "AVRO" else "")

    @property
    def _kind(self) -> str:
        return (self.envelope.schema_format or "json").upper()

    def _read(self, group: _Group, deleted: Mask, bad: dict[int, str]) -> Decoded:
        """Return the rows of messages of one schema; add why others are bad."""
        assert group.number is not None
        own = self._types[group.number]
        found = split(own.layout, group.bodies)
        places = group.places if found.places is None else group.places[found.places]
        records, problems = read_records(own.fast, own.slow, found.bodies)
        changes, mask = converted(records, own.record, self.values.convert)
        for place in [] if mask is None else np.flatnonzero(mask).tolist():
            one = records.take(pa.array([place]))
            problems.setdefault(place, self._problem(one, own.record) or Problem())
        valid = np.ones(len(changes), np.bool_)
        valid[list(problems)] = False
        rows = self._rows(own, changes, valid, deleted[places])
        columns, failed = self._columns(own, rows)
        reasons = {
            place: self._reason(group.number, problem) for place, problem in problems.items()
        }
        reasons |= rows.bad
        reasons |= {
            int(rows.of[row]): self._no_value(group.number, name) for row, name in failed.items()
        }
        bad |= {int(places[place]): why for place, why in reasons.items()}
        bad |= {
            int(group.places[place]): self._reason(group.number, problem)
            for place, problem in found.problems.items()
        }
        of, is_old = places[rows.of], rows.is_old
        part = Decoded(columns, of, rows.deleted, is_old, places[rows.truncated], (), found.skipped)
        return _without_messages(part, {int(rows.of[row]) for row in failed}, rows.of)

    def _rows(self, own: _Type, changes: pa.StructArray, valid: Mask, deleted: Mask) -> Rows:
        if changes.null_count:
            valid &= changes.is_valid().to_numpy(zero_copy_only=False)
        envelope = self.envelope
        of = Wanted(own.row, own.key, envelope.table, envelope.table_column is not None)
        if envelope.name == "debezium":
            return debezium_rows(changes, valid, of)
        if envelope.name == "maxwell":
            return maxwell_rows(changes, valid, of, self.values)
        return plain_rows(changes, valid, deleted)

    def _columns(self, own: _Type, rows: Rows) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Return the columns of rows, and the first field that each bad row's columns refuse."""
        by_name = {name.lower(): name for name, _ in own.row.parts}
        arrays, failed, count = [], dict[int, str](), len(rows.of)
        for wanted in self.columns:
            name = by_name.get(wanted.name.lower())
            if name is None:
                arrays.append(pa.nulls(count, wanted.type))
                continue
            array, mask = cast(child(rows.rows, name), wanted.type, self.values)
            arrays.append(array)
            for row in [] if mask is None else np.flatnonzero(mask).tolist():
                failed.setdefault(row, wanted.name)
        if self.envelope.table_column:
            assert rows.tables is not None
            arrays.append(rows.tables.take(pa.array(rows.of)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.row_columns), failed

    def _problem(self, array: pa.Array, node: Node) -> Problem | None:
        """Return the first part of a value that cannot be converted.

        Args:
            array: the value, as it is read.
            node: its type.
        """
        if isinstance(node, Nullable):
            return self._problem(array, node.node)
        if isinstance(node, Struct):
            for part, (name, kind) in zip(array.flatten(), node.parts, strict=True):
                if (problem := self._problem(part, kind)) is not None:
                    return Problem(f"{name}.{problem.field}".rstrip("."), problem.why)
            return None
        _, bad = converted(array, node, self.values.convert)
        if bad is None:
            return None
        if isinstance(node, Items):
            items = array.items if node.is_map else array.flatten()
            return self._problem(items, node.node) or Problem()
        value = array[int(np.flatnonzero(bad)[0])].as_py()
        return Problem(why=why_bad(node, value) or "")

    def _reason(self, number: int, problem: Problem) -> str:
        if problem.why:
            return problem.why.replace(ID, str(number))
        field_name = _of_row(problem.field)
        if self.schemas is None or self.envelope.of_json_record:
            if not field_name:
                return NO_RECORD
            return f"has a value in `{field_name}` that {NO_RECORD}"
        if field_name and self._kind == "JSON":
            return (
                f"has the schema {number}, whose field `{field_name}` has a value that is not of "
                "its type. Set the source's `columns` to choose another type"
            )
        if field_name:
            return self._no_value(number, field_name)
        name = KINDS[self._kind][0].removesuffix(" Schema")
        its = "the schema of the source" if self.of_source else f"its schema {number}"
        return f"is not {name} of {its}"

    def _no_value(self, number: int, name: str) -> str:
        of = "is of the schema of the source" if self.of_source else f"has the schema {number}"
        return f"{of}, whose field `{name}` has a value that its column cannot take"

    def _text(self, message: bytes | None) -> str:
        """Return a message as text: JSON as it is, and other messages in hexadecimal digits."""
        if message is None:
            return ""
        if self._kind == "JSON":
            return json_text(message).decode("utf-8", "replace")
        return message.hex().upper()


def _of_row(path: str) -> str:
    """Return the path of a value in its row."""
    image, _, name = path.partition(".")
    return name if name and image in (BEFORE, AFTER, DATA) else path


def _other_key(number: int, names: Sequence[str]) -> str:
    return (
        f"has no value, and a key with the schema {number} of {named(names)}. Set the source's "
        "`key_record` to the record type of its keys, and others are skipped"
    )


def _declared_type(envelope: Envelope, columns: pa.Schema) -> _Type:
    """Return how messages in JSON with declared columns are read."""
    required = envelope.required_columns(columns.names)
    exact = envelope.name == "debezium"
    row = declared_record(columns, exact, required)
    reads_table = envelope.table is not None or envelope.table_column is not None
    if envelope.name == "debezium":
        fields: list[tuple[str, Node | None]] = [
            (OPERATION, TEXT_TYPE),
            (BEFORE, row),
            (AFTER, row),
        ]
        if reads_table:
            fields.append((SOURCE, Struct(((TABLE, TEXT_TYPE),))))
        record = Struct(tuple(fields))
        key = tuple(envelope.key_columns(columns.names))
        return _Type(record, row, JsonReader(record, has_payload=True), key=key)
    if envelope.name == "maxwell":
        fields = [(KIND, TEXT_TYPE), (DATA, row), (OLD, RAW_JSON)]
        if reads_table:
            fields.append((TABLE, TEXT_TYPE))
        record = Struct(tuple(fields))
        return _Type(
            record, row, JsonReader(record), key=tuple(envelope.maxwell_key(columns.names))
        )
    return _Type(row, row, JsonReader(row))


def _type_of(writer: Writer, envelope: Envelope) -> _Type:
    """Return how messages of schemas in a registry are read."""
    key = tuple(envelope.key_columns([name for name, _ in writer.row.parts]))
    if envelope.schema_format == "json":
        return _Type(writer.record, writer.row, JsonReader(writer.record), key=key)
    if isinstance(writer.layout, MessageLayout):
        slow: SlowReader = ProtobufReader(writer.record, writer.layout)
        fast = fast_protobuf_reader(writer.record, writer.layout)
    else:
        slow, fast = AvroReader(writer.record), fast_avro_reader(writer.record)
    return _Type(writer.record, writer.row, slow, fast, writer.layout, key)


def _null_messages(writers: Sequence[Writer]) -> Iterator[bytes]:
    """Yield messages that are null, and thereby the same as messages without a value."""
    for writer in writers:
        if isinstance(writer.layout, UnionMember) and writer.layout.null_index is not None:
            for number in writer.ids:
                yield schema_header(number) + zigzag_bytes(writer.layout.null_index)


def _without_messages(part: Decoded, messages: Collection[int], of: Places) -> Decoded:
    """Return rows without those of some messages."""
    if not messages:
        return part
    kept = ~np.isin(of, list(messages))
    rows = part.rows.filter(pa.array(kept))
    return replace(
        part, rows=rows, of=part.of[kept], deleted=part.deleted[kept], is_old=part.is_old[kept]
    )


def _joined(
    parts: Sequence[Decoded], columns: pa.Schema, bad: Sequence[BadMessage], skipped: int
) -> Decoded:
    """Return the rows of several groups of messages, in the order of the messages."""
    skipped += sum(part.skipped for part in parts)
    if len(parts) == 1:
        return replace(parts[0], bad=bad, skipped=skipped)
    nothing = np.empty(0, np.int64)
    of = np.concatenate([nothing, *(part.of for part in parts)])
    order = np.argsort(of, kind="stable")
    flags = np.empty(0, np.bool_)
    deleted, is_old = (
        np.concatenate([flags, *(getattr(part, name) for part in parts)])[order]
        for name in ("deleted", "is_old")
    )
    table = pa.Table.from_batches([part.rows for part in parts], columns)
    rows = table.take(pa.array(order)).combine_chunks()
    truncates = np.sort(np.concatenate([nothing, *(part.truncates for part in parts)]))
    batch = rows.to_batches()[0] if len(order) else _empty(columns)
    return Decoded(batch, of[order], deleted, is_old, truncates, bad, skipped)


def _empty(columns: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in columns], schema=columns)
