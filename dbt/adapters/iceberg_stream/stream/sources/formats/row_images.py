"""The rows in messages of changes: Debezium's and Maxwell's have a row before and after a change.

Messages of all encodings are checked alike, so that no image becomes a row whose key or values are
not those of the database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.sources.formats.arrays import converted
from dbt.adapters.iceberg_stream.stream.sources.formats.json_records import (
    JsonReader,
    has_members,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import FLAG, Struct
from dbt.adapters.iceberg_stream.stream.sources.formats.values import Values

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# What Debezium writes for a large value of Postgres that an update leaves as it is.
PLACEHOLDER = "__debezium_unavailable_value"
OPERATION, BEFORE, AFTER, SOURCE, TABLE = "op", "before", "after", "source", "table"
NO_OPERATION = "has no `op` of Debezium"
# Maxwell's members, and its kinds of changes of a row; other kinds are no changes of rows.
KIND, DATA, OLD = "type", "data", "old"
UPSERTS, DELETE = ("insert", "update", "bootstrap-insert"), "delete"


@dataclass(frozen=True)
class Rows:
    """Rows of messages, in their order; the row of an old key comes before that of the new one.

    Attributes:
        rows: the rows.
        of: the message of each.
        deleted: which are deleted.
        is_old: which are of the key before an update.
        truncated: messages that delete all rows.
        tables: the table of each message; None if it does not matter.
        bad: why messages are bad, by their places.
    """

    rows: pa.StructArray
    of: Places
    deleted: Mask
    is_old: Mask
    truncated: Places = field(default_factory=lambda: np.empty(0, np.int64))
    tables: pa.StringArray | None = None
    bad: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """Which rows are read.

    Attributes:
        row: the type of the rows.
        key: columns that identify a row.
        table: the table whose changes are read; None for all.
        names_table: whether `Rows.tables` is needed.
    """

    row: Struct
    key: Sequence[str]
    table: str | None = None
    names_table: bool = False


def plain_rows(records: pa.StructArray, is_row: Mask, deleted: Mask) -> Rows:
    """Return the rows of messages that are rows themselves.

    Args:
        records: the messages.
        is_row: which of them are some.
        deleted: which messages delete a row.
    """
    bad = dict(_lacking_keys(records, is_row))
    kept = _without(is_row, bad)
    places = np.flatnonzero(kept)
    rows = records if kept.all() else records.take(pa.array(places))
    return Rows(rows, places, deleted[places], np.zeros(len(places), np.bool_), bad=bad)


def debezium_rows(changes: pa.StructArray, valid: Mask, wanted: Wanted) -> Rows:
    """Return the rows of Debezium's messages.

    Args:
        changes: the messages.
        valid: which of them are some.
        wanted: the rows that are read.
    """
    operations = _texts(child(changes, OPERATION))
    before, after = (child(changes, name) for name in (BEFORE, AFTER))
    tables = _tables(changes) if wanted.table is not None or wanted.names_table else None
    if wanted.table is not None:
        valid = valid & _equal(tables, wanted.table)
    of = {name: valid & _equal(operations, name) for name in "crudtm"}
    bad = dict.fromkeys(map(int, np.flatnonzero(valid & ~_any(*of.values()))), NO_OPERATION)
    is_row, deletes = _any(*(of[name] for name in "crud")), of["d"]
    images = pa.concat_arrays([after, before])
    count = len(changes)
    chosen = np.where(deletes, np.arange(count) + count, np.arange(count))
    image = after if not deletes.any() else images.take(pa.array(chosen))
    bad |= _missing_images(image, is_row & deletes, "before")
    bad |= _missing_images(image, is_row & ~deletes, "after")
    bad |= {p: why for p, why in _lacking_keys(image, is_row) if p not in bad}
    bad |= {p: why for p, why in _unlogged(after, is_row & ~deletes) if p not in bad}
    is_row = _without(is_row, bad)
    moved = is_row & of["u"] & _moves(before, after, wanted.key)
    rows = _in_order(images, chosen, is_row, moved, np.arange(count) + count)
    places, taken, is_old = rows
    return Rows(
        taken, places, deletes[places] | is_old, is_old, np.flatnonzero(of["t"]), tables, bad
    )


def maxwell_rows(changes: pa.StructArray, valid: Mask, wanted: Wanted, values: Values) -> Rows:
    """Return the rows of Maxwell's messages.

    Args:
        changes: the messages.
        valid: which of them are some.
        wanted: the rows that are read.
        values: converts values.
    """
    kinds, data = child(changes, KIND), child(changes, DATA)
    has_table = wanted.table is not None or wanted.names_table
    tables = child(changes, TABLE) if has_table else None
    if wanted.table is not None:
        valid = valid & _equal(tables, wanted.table)
    unknown = valid & kinds.is_null().to_numpy(zero_copy_only=False)
    bad = dict.fromkeys(map(int, np.flatnonzero(unknown)), "has no `type`")
    deletes = valid & _equal(kinds, DELETE)
    is_row = deletes | _any(*(valid & _equal(kinds, name) for name in UPSERTS))
    bad |= _missing_images(data, is_row, DATA)
    bad |= {p: why for p, why in _lacking_keys(data, is_row) if p not in bad}
    is_row = _without(is_row, bad)
    updated = np.flatnonzero(is_row & _equal(kinds, "update"))
    before = child(changes, OLD).take(pa.array(updated)).to_pylist()
    moves = [
        (place, old)
        for place, old in zip(updated.tolist(), before, strict=True)
        if old is not None and old != b"null" and has_members(old, wanted.key)
    ]
    old_rows, refused = _old_rows(data, moves, wanted, values)
    bad |= dict.fromkeys(refused, "has a key in `old` that does not fit the source's `columns`")
    is_row = _without(is_row, bad)
    count, moved = len(changes), np.zeros(len(changes), np.bool_)
    of_old = np.zeros(count, np.int64)
    for number, (place, _) in enumerate(moves):
        moved[place], of_old[place] = is_row[place], count + number
    images = pa.concat_arrays([data, old_rows]) if moves else data
    places, taken, is_old = _in_order(images, np.arange(count), is_row, moved, of_old)
    return Rows(taken, places, deletes[places] | is_old, is_old, tables=tables, bad=bad)


def _old_rows(
    data: pa.StructArray,
    moves: Sequence[tuple[int, bytes]],
    wanted: Wanted,
    values: Values,
) -> tuple[pa.StructArray, list[int]]:
    """Return rows with the keys that they had before, and the messages whose keys are bad."""
    if not moves:
        return data[:0], []
    key = wanted.key
    of_key = Struct(tuple((name, node) for name, node in wanted.row.fields if name in key))
    texts = [old for _, old in moves]
    records, problems = JsonReader(of_key).read(texts)
    old, bad = converted(records, of_key, values.convert)
    refused = [moves[place][0] for place in problems]
    refused += [] if bad is None else [moves[place][0] for place in np.flatnonzero(bad).tolist()]
    rows = data.take(pa.array([place for place, _ in moves], pa.int64()))
    children = []
    for own, values_now in zip(data.type, rows.flatten(), strict=True):
        if own.name in key:
            has_own = pa.array([has_members(text, [own.name]) for text in texts], pa.bool_())
            values_now = pc.if_else(has_own, child(old, own.name), values_now)
        children.append(values_now)
    return pa.StructArray.from_arrays(children, fields=list(data.type)), refused


def _in_order(
    images: pa.StructArray,
    chosen: Places,
    is_row: Mask,
    moved: Mask,
    old: Places,
) -> tuple[Places, pa.StructArray, Mask]:
    """Return the messages of rows, the rows, and which of them are of keys before an update.

    Args:
        images: the images of all messages.
        chosen: the image of each message.
        is_row: which messages have a row.
        moved: which of them change the key.
        old: the image that each of those had before.
    """
    places = np.flatnonzero(is_row)
    if not moved.any():
        order = chosen[places]
        is_all = len(order) == len(images) and bool((order == np.arange(len(order))).all())
        rows = images if is_all else images.take(pa.array(order))
        return places, rows, np.zeros(len(places), np.bool_)
    from_old = np.flatnonzero(moved)
    of = np.concatenate([from_old, places])
    order = np.argsort(of, kind="stable")
    sources = np.concatenate([old[from_old], chosen[places]])[order]
    is_old = np.concatenate([np.ones(len(from_old), np.bool_), np.zeros(len(places), np.bool_)])
    return of[order], images.take(pa.array(sources)), is_old[order]


def child(array: pa.StructArray, name: str) -> pa.Array:
    """Return the values of a field of structs: by its position, because names may be paths."""
    return pc.struct_field(array, [array.type.get_field_index(name)])


def _tables(changes: pa.StructArray) -> pa.StringArray:
    no_tables = pa.nulls(len(changes), pa.string())
    if changes.type.get_field_index(SOURCE) < 0:
        return no_tables
    source = child(changes, SOURCE)
    if not pa.types.is_struct(source.type):
        return no_tables
    return _texts(child(source, TABLE)) if source.type.get_field_index(TABLE) >= 0 else no_tables


def _texts(values: pa.Array) -> pa.StringArray:
    """Return texts; nulls if the values are none."""
    return values if pa.types.is_string(values.type) else pa.nulls(len(values), pa.string())


def _equal(values: pa.Array | None, value: str) -> Mask:
    assert values is not None
    return pc.equal(values, value).fill_null(False).to_numpy(zero_copy_only=False)


def _any(*masks: Mask) -> Mask:
    return np.logical_or.reduce(masks)


def _without(mask: Mask, bad: Mapping[int, str]) -> Mask:
    if bad:
        mask = mask.copy()
        mask[list(bad)] = False
    return mask


def _missing_images(image: pa.StructArray, is_row: Mask, name: str) -> dict[int, str]:
    missing = is_row & image.is_null().to_numpy(zero_copy_only=False)
    return dict.fromkeys(map(int, np.flatnonzero(missing)), f"has no row in `{name}`")


def _lacking_keys(rows: pa.StructArray, is_row: Mask) -> Iterator[tuple[int, str]]:
    """Yield which messages lack a column of the key, and the reasons."""
    for own in rows.type:
        if own.name.startswith(FLAG):
            lacks = is_row & _false(child(rows, own.name))
            for place in np.flatnonzero(lacks):
                yield int(place), f"lacks the key `{own.name.removeprefix(FLAG)}`"


def _false(flags: pa.BooleanArray) -> Mask:
    return ~flags.fill_null(True).to_numpy(zero_copy_only=False)


def _unlogged(after: pa.StructArray, is_row: Mask) -> Iterator[tuple[int, str]]:
    """Yield which messages have a value that was not logged, and the reasons."""
    for own in after.type:
        items = own.type.value_type if pa.types.is_list(own.type) else own.type
        if not (pa.types.is_string(items) or pa.types.is_binary(items)):
            continue
        values, value = child(after, own.name), pa.scalar(PLACEHOLDER.encode(), pa.binary())
        found = pc.equal(values if items is own.type else values.flatten(), value.cast(items))
        if not pc.any(found).as_py():
            continue
        if items is not own.type:
            lists = values.to_pylist()
            found = pa.array(
                [own is not None and value.cast(items).as_py() in own for own in lists]
            )
        mask = found.fill_null(False).to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(mask & is_row):
            yield int(place), unlogged(own.name)


def unlogged(name: str) -> str:
    """Return why a message without a value of a column is bad."""
    return (
        f"has `{PLACEHOLDER}` in `{name}`: Postgres did not log the value. Set REPLICA IDENTITY "
        "FULL for the table, or leave the column out of the source's `columns`"
    )


def _moves(before: pa.StructArray, after: pa.StructArray, key: Sequence[str]) -> Mask:
    """Return which updates change the key. Values that are null before were not logged."""
    moved = np.zeros(len(after), np.bool_)
    for name in key:
        old, new = (child(image, name) for image in (before, after))
        if pa.types.is_nested(old.type):
            pairs = zip(old, new, strict=True)
            moved |= np.array([a.is_valid and not a.equals(b) for a, b in pairs], np.bool_)
            continue
        if pa.types.is_floating(old.type):
            # As text: 0.0 and -0.0 are two keys.
            old, new = old.cast(pa.string()), new.cast(pa.string())
        differs = pc.or_(pc.not_equal(old, new).fill_null(False), new.is_null())
        moved |= pc.and_(old.is_valid(), differs).to_numpy(zero_copy_only=False)
    return moved
