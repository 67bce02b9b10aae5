"""Read records in JSON: by msgspec, and value by value those that it refuses.

msgspec decodes only the members that columns have, without an object for any other one. What it
refuses may still be a record: with NaN, which is no JSON but often written, or with a value for a
column of text that is no string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Meta, UnsetType

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.arrays import Bad, spread
from dbt.adapters.iceberg_stream.stream.sources.formats.record_reader import (
    NotDecodable,
    Problem,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import (
    FLAG,
    Items,
    Node,
    Scalar,
    Struct,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.values import (
    BASE64,
    DATE_TEXT,
    EXACT_NUMBER,
    INSTANT,
    INSTANT_TEXT,
    LOCAL,
    LOCAL_TEXT,
    NAMED_FLOATS,
    NUMBER,
    OF_TIME,
    RAW,
    SINGLE,
    TIME_TEXTS,
)

# Levels of arrays and objects that a message may have: parsers call themselves for each.
MOST_LEVELS = 500
NOT_UTF8 = "is not UTF-8"
TOO_DEEP = f"has more than {MOST_LEVELS} levels of arrays and objects"
# What may be a number that JSON does not have, and a string before it.
NO_JSON = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+]?\b(?:Infinity|INF)\b|\bNaN\b', re.DOTALL)
# Escapes in strings: halves of a surrogate pair alone have six bytes.
ESCAPE = re.compile(
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\.", re.DOTALL
)
HALF_BYTES = 6
LEVELS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
PAYLOAD, NULL = "payload", b"null"
# What msgspec raises for messages that it refuses.
REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def declared_record(columns: pa.Schema, exact: bool, required: Sequence[str] = ()) -> Struct:
    """Return how a record of declared columns is read.

    Args:
        columns: the columns.
        exact: whether decimals are those of a database, which must not be rounded.
        required: columns that need a flag whether a record has them.

    Raises:
        StreamError: JSON has no values of a column's type.
    """
    fields = ((field.name, _declared(field.type, exact, field.name)) for field in columns)
    return with_flags(Struct(tuple(fields)), required)


def with_flags(record: Struct, required: Sequence[str]) -> Struct:
    """Return a type with flags whether a record has some of its members.

    Args:
        record: the type.
        required: the members.
    """
    fields: list[tuple[str, Node | None]] = []
    for name, node in record.fields:
        fields.append((name, node))
        if name in required:
            fields.append((f"{FLAG}{name}", Scalar(pa.bool_())))
    return Struct(tuple(fields))


def _declared(kind: pa.DataType, exact: bool, name: str) -> Node:
    if pa.types.is_struct(kind):
        return Struct(tuple((f.name, _declared(f.type, exact, f"{name}.{f.name}")) for f in kind))
    if pa.types.is_list(kind):
        return Items(_declared(kind.value_type, exact, name))
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise StreamError(
                f"The column `{name}` is a map whose keys are no strings, and JSON has no other "
                "ones. Correct the source's `columns`."
            )
        return Items(_declared(kind.item_type, exact, name), kind.key_type)
    if pa.types.is_decimal(kind):
        return Scalar(kind, pa.binary(), EXACT_NUMBER if exact else NUMBER)
    if pa.types.is_binary(kind):
        return Scalar(kind, pa.string(), BASE64)
    if kind == pa.float32():
        return Scalar(kind, pa.binary(), SINGLE)
    forms = {pa.date32(): DATE_TEXT, INSTANT: INSTANT_TEXT, LOCAL: LOCAL_TEXT}
    return Scalar(kind, pa.string(), forms[kind]) if kind in forms else Scalar(kind)


def utf8_mask(values: Sequence[bytes]) -> Bad:
    """Return which texts are not UTF-8; None if all are."""
    text = b"\n".join(values)
    if text.isascii() or _is_utf8(text):
        return None
    return np.array([not _is_utf8(value) for value in values])


def _is_utf8(value: bytes) -> bool:
    try:
        str(value, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


class JsonReader:
    """Reads messages in JSON; see SlowReader.

    Args:
        record: the type of the messages.
        has_payload: whether a message may have its schema with it, and the record as `payload`.
    """

    def __init__(self, record: Struct, has_payload: bool = False) -> None:
        self._record = record
        self._has_payload = has_payload
        kind = _class_of(record)
        if has_payload:
            payload = (PAYLOAD, kind | None | UnsetType, UNSET)
            kind = msgspec.defstruct("Message", [payload], bases=(kind,), gc=False)
        self._decode = msgspec.json.Decoder(kind).decode

    def read(self, bodies: Sequence[bytes]) -> tuple[pa.StructArray, dict[int, Problem]]:
        problems: dict[int, Problem] = {}
        rows: list[Any] = []
        decoded = map(self._decode, bodies)
        while len(rows) < len(bodies):
            try:
                rows.extend(decoded)
            except REFUSED:
                # `extend` has taken those before; the next ones follow.
                place = len(rows)
                try:
                    rows.append(self._read_one(bodies[place]))
                except NotDecodable as error:
                    rows.append(None)
                    problems[place] = error.problem
        for place, why in _refused(bodies):
            rows[place], problems[place] = None, Problem(why=why)
        if self._has_payload:
            rows = list(map(_unwrapped, rows))
        return _structs(rows, self._record), problems

    def _read_one(self, body: bytes) -> Any:
        """Return the record of a message that msgspec refuses."""
        try:
            members = _members(with_strings(body), "")
            payload = members.get(PAYLOAD) if self._has_payload else None
            if payload is not None and bytes(payload) != NULL:
                members = _members(bytes(payload), "")
            return _row(members, self._record, "")
        except RecursionError as error:
            raise NotDecodable from error


def _unwrapped(row: Any) -> Any:
    """Return the record in a message; None if it is null, without an operation beside it."""
    payload = getattr(row, PAYLOAD, UNSET)
    if payload is UNSET:
        return row
    return row if payload is None and row.f0 is not None else payload


def has_members(text: bytes, names: Sequence[str]) -> bool:
    """Return whether a text in JSON is an object with one of some members."""
    try:
        return not _members(with_strings(text), "").keys().isdisjoint(names)
    except NotDecodable:
        return False


def _refused(bodies: Sequence[bytes]) -> Iterable[tuple[int, str]]:
    """Yield the places of messages that are bad whatever msgspec reads of them, and the reasons."""
    if (bad := utf8_mask(bodies)) is not None:
        yield from ((int(place), NOT_UTF8) for place in np.flatnonzero(bad))
    if max(map(len, bodies), default=0) <= 2 * MOST_LEVELS:
        return
    for place, body in enumerate(bodies):
        if body.count(b"[") + body.count(b"{") > MOST_LEVELS < _levels(body):
            yield place, TOO_DEEP


def _levels(body: bytes) -> int:
    """Return how deep arrays and objects are nested."""
    level = most = 0
    for match in LEVELS.finditer(body):
        if match[0] in b"[{":
            level += 1
            most = max(most, level)
        elif match[0] in b"]}":
            level -= 1
    return most


@lru_cache(maxsize=1024)
def _class_of(record: Struct) -> Any:
    """Return the class of records, whose attributes are named by the positions of the fields."""
    fields: list[tuple[str, Any, Any]] = []
    for place, (_, node) in _decoded(record):
        kind = _type(node)
        if _has_flag(record, place):
            fields.append((f"f{place}", kind if kind is msgspec.Raw else kind | UnsetType, UNSET))
        else:
            fields.append((f"f{place}", kind, None))
    names = {f"f{place}": name for place, (name, _) in _decoded(record)}
    return msgspec.defstruct("Record", fields, rename=names, gc=False)


def _decoded(record: Struct) -> Iterator[tuple[int, tuple[str, Node]]]:
    """Yield the fields that messages have, with their positions."""
    for place, (name, node) in enumerate(record.fields):
        if node is not None and not name.startswith(FLAG):
            yield place, (name, node)


def _has_flag(record: Struct, place: int) -> bool:
    return any(name.startswith(FLAG) for name, _ in record.fields[place + 1 : place + 2])


def _type(node: Node) -> Any:
    """Return the type that msgspec decodes values as."""
    if isinstance(node, Struct):
        return _class_of(node) | None
    if isinstance(node, Items):
        items = _type(node.node)
        kind: Any = dict[str, items] if node.is_map else list[items]  # type: ignore[valid-type]
        return kind | None
    assert isinstance(node, Scalar)
    if node.form in RAW:
        return msgspec.Raw
    kind = node.read_type
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return Annotated[int, Meta(ge=-most, le=most - 1)] | None
    return {pa.float64(): float, pa.bool_(): bool}.get(kind, str) | None


def _structs(rows: Sequence[Any], record: Struct) -> pa.StructArray:
    """Return objects as structs; None as null."""
    present = np.ones(len(rows), np.bool_)
    if type(None) in set(map(type, rows)):
        present = np.array([row is not None for row in rows], np.bool_)
        rows = [row for row in rows if row is not None]
    children: list[pa.Array] = []
    for place, (_, node) in _decoded(record):
        values = list(map(attrgetter(f"f{place}"), rows))
        flags = [value is not UNSET for value in values] if _has_flag(record, place) else []
        if not all(flags):
            values = [None if value is UNSET else value for value in values]
        children.append(_array(values, node))
        if flags:
            children.append(pa.array(flags, pa.bool_()))
        elif _has_flag(record, place):
            children.append(pa.array([], pa.bool_()))
    structs = pa.StructArray.from_arrays(children, fields=list(record.read_type))
    return spread(structs, present)


def _array(values: Sequence[Any], node: Node) -> pa.Array:
    """Return values of a type; None as null."""
    if isinstance(node, Struct):
        return _structs(values, node)
    if isinstance(node, Items):
        lengths = [0 if value is None else len(value) for value in values]
        absent = pa.array([value is None for value in values], pa.bool_())
        mask = absent if None in values else None
        offsets = pa.array(accumulate(lengths, initial=0), pa.int32())
        present = [value for value in values if value]
        if not node.is_map:
            items = _array(list(chain.from_iterable(present)), node.node)
            return pa.ListArray.from_arrays(offsets, items, type=node.read_type, mask=mask)
        keys = pa.array(list(chain.from_iterable(present)), node.key)
        items = _array(list(chain.from_iterable(own.values() for own in present)), node.node)
        return pa.MapArray.from_arrays(offsets, keys, items, type=node.read_type, mask=mask)
    assert isinstance(node, Scalar)
    if node.form in RAW:
        numbers = (None if value is None else bytes(value) for value in values)
        values = [None if number == NULL else number for number in numbers]
    return pa.array(values, node.read_type)


def _members(text: bytes, path: str) -> dict[str, msgspec.Raw]:
    """Return the members of an object."""
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotDecodable(path) from error


def with_strings(text: bytes) -> bytes:
    """Return JSON with strings for numbers that it does not have, and without halves of characters.

    Args:
        text: in JSON, but for these.
    """
    return NO_JSON.sub(lambda match: _string_for(match[0]), text)


def _string_for(text: bytes) -> bytes:
    if not text.startswith(b'"'):
        return b'"%b"' % text
    if b"\\u" not in text:
        return text
    # A writer may have cut a text within a pair.
    return ESCAPE.sub(lambda escape: b"?" if len(escape[0]) == HALF_BYTES else escape[0], text)


def _row(members: Mapping[str, msgspec.Raw], record: Struct, path: str) -> Any:
    values = {
        f"f{place}": _value(bytes(members[name]), node, f"{path}.{name}" if path else name)
        for place, (name, node) in _decoded(record)
        if name in members
    }
    return _class_of(record)(**values)


def _value(text: bytes, node: Node, path: str) -> Any:
    """Return a value that is written in JSON."""
    if isinstance(node, Scalar) and node.form in RAW:
        return msgspec.Raw(text)
    if text == NULL:
        return None
    if isinstance(node, Struct):
        return _row(_members(text, path), node, path)
    if isinstance(node, Items) and node.is_map:
        members = _members(text, path).items()
        return {key: _value(bytes(item), node.node, path) for key, item in members}
    if isinstance(node, Items):
        return [
            _value(bytes(item), node.node, path) for item in _decode(text, list[msgspec.Raw], path)
        ]
    assert isinstance(node, Scalar)
    kind = node.read_type
    if pa.types.is_string(kind):
        return _string(text, node, path)
    if not pa.types.is_floating(kind):
        return _decode(text, _type(node), path)
    if not text.startswith(b'"'):
        if text[:1] not in b"-0123456789":
            return _decode(text, float, path)
        # A number that is too large is infinite; an integer has no negative zero.
        return 0.0 if text == b"-0" else float(text)
    if (value := NAMED_FLOATS.get(_decode(text, str, path))) is None:
        raise NotDecodable(path)
    return value


def _string(text: bytes, node: Scalar, path: str) -> str:
    if text.startswith(b'"'):
        return str(_decode(text, str, path))
    if node.form in TIME_TEXTS:
        is_number = text[:1] in b"-0123456789"
        raise NotDecodable(path, OF_TIME if is_number else "")
    if node.form == BASE64:
        raise NotDecodable(path)
    return msgspec.json.format(text, indent=-1).decode()


def _decode(text: bytes, kind: Any, path: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotDecodable(path) from error
