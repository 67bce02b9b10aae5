"""What decoders make of messages, in a form that can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import (
    Decoded,
    MessageDecoder,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_columns import type_name

TEXT = pa.string()


class Outcome(NamedTuple):
    """What a message becomes.

    Attributes:
        rows: as text, each with whether it is deleted and whether it is of an old key.
        bad: why it cannot be read.
        truncates: whether it deletes all rows.
    """

    rows: tuple[tuple[str, bool, bool], ...] = ()
    bad: str = ""
    truncates: bool = False


def outcomes_of(
    decoder: MessageDecoder, values: Sequence[bytes | None], keys: Sequence[bytes | None] = ()
) -> list[Outcome]:
    """Return what each message becomes: nothing if it is skipped."""
    decoded = decoder.decode(values, keys)
    require_sound(decoded, decoder, len(values))
    rows: list[list[tuple[str, bool, bool]]] = [[] for _ in values]
    texts = numbered(pa.Table.from_batches([decoded.rows]))
    flags = zip(decoded.of, texts, decoded.deleted, decoded.is_old, strict=True)
    for place, text, deleted, is_old in flags:
        rows[place].append((text, bool(deleted), bool(is_old)))
    bad = {own.place: own.reason for own in decoded.bad}
    assert not bad.keys() & {place for place, own in enumerate(rows) if own}
    truncates = set(decoded.truncates.tolist())
    return [
        Outcome(tuple(own), bad.get(place, ""), place in truncates)
        for place, own in enumerate(rows)
    ]


def require_sound(decoded: Decoded, decoder: MessageDecoder, count: int) -> None:
    """Check what is so of all messages: their order, the columns, and that none is lost."""
    decoded.rows.validate(full=True)
    assert decoded.rows.schema == decoder.row_columns
    of, bad = decoded.of.tolist(), [own.place for own in decoded.bad]
    assert of == sorted(of) and bad == sorted(set(bad))
    assert len(of) == len(decoded.rows) == len(decoded.deleted) == len(decoded.is_old)
    assert decoded.skipped <= count - len({*of, *bad, *decoded.truncates.tolist()})


def rows_of(decoder: MessageDecoder, values: Sequence[bytes | None]) -> pa.Table:
    """Return the rows of messages of which none is bad."""
    decoded = decoder.decode(values)
    require_sound(decoded, decoder, len(values))
    assert not decoded.bad
    return pa.Table.from_batches([decoded.rows])


def require_bad(decoder: MessageDecoder, good: bytes, bad: bytes) -> str:
    """Return why a message is bad, alone and among many good ones, which are read nonetheless."""
    [alone] = outcomes_of(decoder, [bad])
    assert alone.bad and not alone.rows
    [row] = outcomes_of(decoder, [good])
    assert row.rows
    for place in (0, 3, 6):
        values = [good] * 6
        values.insert(place, bad)
        expected = [row] * 6
        expected.insert(place, alone)
        assert outcomes_of(decoder, values) == expected
    return alone.bad


def ddl_of(columns: pa.Schema) -> str:
    """Return the type of a row as SQL names it."""
    return type_name(pa.struct(list(columns)))


def numbered(table: pa.Table) -> list[str]:
    """Rows as text, with microseconds and days for times, which Python could not hold."""
    schema = pa.schema([(f.name, _plain_type(f.type)) for f in table.schema])
    rows = table.cast(schema).to_pylist(maps_as_pydicts="strict")
    return [as_text(row) for row in rows]


def records_as_text(records: pa.StructArray) -> list[str]:
    """Records as they are read, whose texts may not be UTF-8."""
    records.validate()
    kind = _plain_type(records.type, pa.binary())
    return [as_text(row) for row in records.cast(kind).to_pylist(maps_as_pydicts="strict")]


def as_text(row: Any) -> str:
    # NaN is not equal to itself. Entries of maps have no order.
    return json.dumps(_with_text_keys(row), default=str, sort_keys=True)


def _with_text_keys(value: Any) -> Any:
    """A value whose keys of maps are text, as JSON needs them."""
    if isinstance(value, dict):
        return {str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _plain_type(kind: pa.DataType, text: pa.DataType = TEXT) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _plain_type(f.type, text)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type, text), _plain_type(kind.item_type, text))
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type, text))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_string(kind):
        return text
    return pa.int32() if pa.types.is_date(kind) else kind
