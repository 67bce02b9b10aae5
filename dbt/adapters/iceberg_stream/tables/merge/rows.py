"""Matches the rows of a data file with those of a merge's source. Worker code: PyArrow only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.tables.files.casting import list_offsets, null_mask
from dbt.adapters.iceberg_stream.tables.files.reader import LAST_UPDATED, row_numbers

ROW, AT = "__row", "__at"
# So many rows of a source are hashed sooner than others are left out.
FEW_ROWS = 2_000
# Types of whose values PyArrow knows the lowest and the highest one.
ORDERED = (
    *(pa.types.is_integer, pa.types.is_decimal128, pa.types.is_date, pa.types.is_timestamp),
    *(pa.types.is_string, pa.types.is_binary),
)


@dataclass(frozen=True)
class Matches:
    """Pairs of a file's row and the source's row with the same key.

    Attributes:
        in_file: positions in the file, from 0.
        in_source: positions in the source, from 0.
    """

    in_file: pa.Int64Array
    in_source: pa.Int64Array

    def __len__(self) -> int:
        return len(self.in_file)

    def only(self, mask: pa.BooleanArray) -> Matches:
        """Return the matches for which the mask is true."""
        return Matches(self.in_file.filter(mask), self.in_source.filter(mask))


class Source:
    """The rows of a merge's source, indexed by their keys; null equals null.

    Args:
        rows: the rows.
        keys: names of the key columns.
        may_update: which rows may update their match; None for all.
    """

    def __init__(
        self, rows: pa.Table, keys: Sequence[str], may_update: pa.BooleanArray | None = None
    ) -> None:
        self.rows = rows.combine_chunks()
        self.keys = list(keys)
        self._may_update = may_update
        self._first = _stored(self.rows[self.keys[0]])
        is_single = len(self.keys) == 1 and not pa.types.is_nested(self._first.type)
        self._numbered = None if is_single else _numbered(self.rows, self.keys, AT)
        self._most_distinct = self.keys[0] if is_single else _most_distinct(self.rows, self.keys)

    def __reduce__(self) -> tuple[type[Source], tuple[Any, ...]]:
        """Pickle the rows only; the receiver builds the index again."""
        return Source, (self.rows, self.keys, self._may_update)

    def that_may_update(self, matches: Matches) -> Matches:
        """Return the matches with rows that may update them.

        Args:
            matches: pairs of a file's and the source's rows.
        """
        if self._may_update is None:
            return matches
        return matches.only(self._may_update.take(matches.in_source))

    def duplicates(self) -> int:
        """Return how many rows are not the first of their key."""
        return self.rows.num_rows - distinct(self.rows.select(self.keys)).num_rows

    def match(self, keys: pa.Table) -> Matches:
        """Match the rows of a file.

        Args:
            keys: the key columns of the file's rows.
        """
        first = _stored(keys[self.keys[0]])
        near = self._near(first)
        if self._numbered is None:
            values = self._first if near is None else self._first.take(near)
            positions = pc.index_in(first, value_set=values)
            is_match = positions.is_valid()
            found = positions.filter(is_match).cast(pa.int64())
            in_source = found if near is None else near.take(found)
            return Matches(pc.indices_nonzero(is_match).cast(pa.int64()), in_source)
        names = list(_key_names(self.keys))
        numbered = self._numbered if near is None else self._numbered.take(near)
        # A join hashes all rows: first those are left out whose most distinct key has no match.
        name = self._most_distinct
        is_possible = pc.is_in(_stored(keys[name]), value_set=_stored(self.rows[name]))
        possible = pc.indices_nonzero(is_possible)
        rows = _numbered(keys.take(possible), self.keys, ROW)
        joined = rows.join(numbered, names, join_type="inner").sort_by(ROW)
        in_file = possible.cast(pa.int64()).take(joined[ROW].combine_chunks())
        return Matches(in_file, joined[AT].combine_chunks())

    def _near(self, first: pa.Array) -> pa.Int64Array | None:
        """Return the positions of rows that may match a file's, by the first key; None for all.

        A join hashes all rows, for each file once more.
        """
        kind = first.type
        if len(self._first) < FEW_ROWS or not any(has_order(kind) for has_order in ORDERED):
            return None
        bounds = pc.min_max(first)
        inside = pc.and_(
            pc.greater_equal(self._first, bounds["min"]), pc.less_equal(self._first, bounds["max"])
        )
        positions = pc.indices_nonzero(pc.fill_null(inside, first.null_count > 0))
        return positions.cast(pa.int64()) if 2 * len(positions) < len(self._first) else None


def _most_distinct(rows: pa.Table, keys: Sequence[str]) -> str:
    """Return the name of the key column with the most different values."""
    return max(keys, key=lambda name: pc.count_distinct(_stored(rows[name])).as_py())


def distinct(rows: pa.Table) -> pa.Table:
    """Return each row once, in any order; equal zeros and NaNs are one.

    Args:
        rows: of types that PyArrow compares.
    """
    # In names of its own: PyArrow takes a column `.k` as the path to a field.
    names = [f"__{number}" for number in range(rows.num_columns)]
    columns = [equal_bits(column) for column in rows.columns]
    found = pa.table(columns, names).group_by(names).aggregate([])
    return found.rename_columns(rows.column_names).cast(rows.schema)


def equal_bits(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return values in which floating-point numbers that SQL takes as equal have the same bits.

    Args:
        values: of any type.
    """
    if not pa.types.is_floating(values.type):
        return values
    one_nan = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)
    return pc.add(one_nan, pa.scalar(0.0, values.type))


def later(first: list[pa.ChunkedArray], second: list[pa.ChunkedArray]) -> pa.BooleanArray:
    """Return which rows of the first columns come after those of the second, lexicographically.

    A row with a null where the others are equal does not come after the other one.
    """
    later = pa.repeat(False, len(first[0]))
    same = pa.repeat(True, len(first[0]))
    for a, b in zip(first, second, strict=True):
        one, other = a.combine_chunks(), b.combine_chunks()
        later = pc.or_kleene(later, pc.and_kleene(same, pc.greater(one, other)))
        same = pc.and_kleene(same, pc.equal(one, other))
    return pc.fill_null(later, False)


def changed(
    file: pa.Table,
    source: pa.Table,
    matches: Matches,
    columns: Sequence[str],
    exact: bool = False,
) -> Matches:
    """Return the matches whose rows differ in one of the columns.

    Args:
        file: rows of the file.
        source: rows of the source.
        matches: pairs of their rows.
        columns: the columns to compare.
        exact: whether 0.0 and -0.0 differ, as they do as partitions, but not in SQL.
    """
    differs = pa.repeat(False, len(matches))
    for column in columns:
        old = file[column].take(matches.in_file)
        new = source[column].take(matches.in_source)
        differs = pc.or_(differs, _different(_flat(old), _flat(new), exact))
    return matches.only(differs)


def without(matches: Matches, dead: pa.Int64Array) -> Matches:
    """Return the matches of rows that are not deleted.

    Args:
        matches: pairs of a file's and the source's rows.
        dead: positions of the file's deleted rows.
    """
    if not len(dead):
        return matches
    return matches.only(pc.invert(pc.is_in(matches.in_file, value_set=dead)))


def updated(file: pa.Table, source: pa.Table, changes: Matches, columns: Sequence[str]) -> pa.Table:
    """Return the file's rows, in their order, with columns of changed rows from the source.

    Args:
        file: rows of the file.
        source: rows of the source.
        changes: pairs of the rows that change.
        columns: the columns to update.
    """
    # Positions in the rows of the file followed by those of the source.
    positions = row_numbers(file.num_rows)
    mask = pc.is_in(positions, value_set=changes.in_file)
    # The mask takes the values in the order of the file's rows, which matches may not have.
    in_order = changes.in_source.take(pc.sort_indices(changes.in_file))
    from_source = pc.add(in_order, file.num_rows)
    positions = pc.replace_with_mask(positions, mask, from_source)
    for column in columns:
        if not len(changed(file, source, changes, [column], exact=True)):
            continue  # a copy of a large column takes longer
        at = file.schema.get_field_index(column)
        field = file.schema.field(at)
        both = pa.chunked_array([*file[column].chunks, *source[column].chunks], field.type)
        file = file.set_column(at, field, both.take(positions))
    return _updated_now(file, mask)


def new_versions(
    file: pa.Table, source: pa.Table, changes: Matches, columns: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """Return only the changed rows, as `updated` changes them.

    Args:
        file: rows of the file; columns to update may be absent.
        source: rows of the source.
        changes: pairs of the rows that change.
        columns: the columns to update.
        schema: of the result.
    """
    kept = file.take(changes.in_file)
    values = [
        source[name].take(changes.in_source) if name in columns else kept[name]
        for name in schema.names
    ]
    rows = pa.Table.from_arrays(values, schema=schema)
    return _updated_now(rows, pa.repeat(True, rows.num_rows))


def _updated_now(rows: pa.Table, mask: pa.BooleanArray) -> pa.Table:
    """Let changed rows inherit the sequence number of the commit, if rows have one (version 3)."""
    if LAST_UPDATED not in rows.schema.names:
        return rows
    at = rows.schema.get_field_index(LAST_UPDATED)
    numbers = pc.if_else(mask, pa.scalar(None, pa.int64()), rows[LAST_UPDATED])
    return rows.set_column(at, rows.schema.field(at), numbers)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


def _different(old: pa.Array, new: pa.Array, exact: bool = False) -> pa.BooleanArray:
    """Compare values null-safely; NaN equals NaN, as in Spark, nested ones, too."""
    if isinstance(old, pa.ExtensionArray):
        old, new = old.storage, new.storage
    if pa.types.is_struct(old.type):
        different = pa.repeat(False, len(old))
        # Fields of a null are null.
        for a, b in zip(old.flatten(), new.flatten(), strict=True):
            different = pc.or_(different, _different(a, b, exact))
    elif pa.types.is_map(old.type):
        different = _different_lists(_in_order(old), _in_order(new), exact)
    elif pa.types.is_nested(old.type):
        different = _different_lists(old, new, exact)
    else:
        first, second = (_bits(old), _bits(new)) if exact else (old, new)
        different = pc.fill_null(pc.not_equal(first, second), False)
    if pa.types.is_floating(old.type):
        both = pc.and_(pc.fill_null(pc.is_nan(old), False), pc.fill_null(pc.is_nan(new), False))
        different = pc.and_not(different, both)
    return pc.or_(different, pc.xor(old.is_null(), new.is_null()))


def _bits(values: pa.Array) -> pa.Array:
    """Return floating-point numbers as their bits; other values as they are."""
    if not pa.types.is_floating(values.type):
        return values
    return values.view(pa.int32() if values.type == pa.float32() else pa.int64())


def _in_order(maps: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of their entries, sorted by the keys: their order means nothing."""
    key, value = maps.type.key_field.with_name("key"), maps.type.item_field.with_name("value")
    listed = maps.cast(pa.list_(pa.struct([key, value])))
    entries, owners = listed.flatten(), pc.list_parent_indices(listed)
    keys = entries.field(0)
    if isinstance(keys, pa.ExtensionArray):
        keys = keys.storage
    if not pa.types.is_nested(keys.type):
        pairs = pa.table([owners, keys], ["map", "key"])
        sort_keys = [(name, "ascending") for name in pairs.column_names]
        entries = entries.take(pc.sort_indices(pairs, sort_keys=sort_keys))
    return pa.ListArray.from_arrays(list_offsets(listed), entries, mask=null_mask(maps))


def _different_lists(old: pa.Array, new: pa.Array, exact: bool) -> pa.BooleanArray:
    """Return which lists differ in their lengths or elements; nulls have no elements."""
    lengths = [pc.fill_null(pc.list_value_length(lists), 0) for lists in (old, new)]
    different = pc.not_equal(*lengths)
    same = pc.indices_nonzero(pc.invert(different))
    # Elements of lists of the same lengths are at the same places.
    old, new = old.take(same), new.take(same)
    owners = pc.list_parent_indices(old).filter(_different(old.flatten(), new.flatten(), exact))
    owners = same.take(owners.unique())
    return pc.or_(
        different, pc.is_in(row_numbers(len(different)), value_set=owners.cast(pa.int64()))
    )


def _numbered(rows: pa.Table, keys: Sequence[str], name: str) -> pa.Table:
    """Return keys that a join matches also if they are null, and each row's position."""
    columns: dict[str, pa.Array] = {}
    for (value, null), key in zip(_pairs(keys), keys, strict=True):
        column = _stored(rows[key])
        columns[value] = _fill(column)
        columns[null] = column.is_null()
    columns[name] = row_numbers(rows.num_rows)
    return pa.table(columns)


def _stored(column: pa.ChunkedArray) -> pa.Array:
    """Return a column that can be compared: UUIDs as bytes."""
    values = equal_bits(column.combine_chunks())
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def _fill(column: pa.Array) -> pa.Array:
    """Replace nulls by a value; another column of the join distinguishes them from that value."""
    return pc.fill_null(column, _some_value(column.type)) if column.null_count else column


def _some_value(kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.scalar("" if pa.types.is_string(kind) else b"", kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.scalar(bytes(kind.byte_width), kind)
    if pa.types.is_boolean(kind):
        return pa.scalar(False)
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(0), kind)
    wide = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.scalar(0, wide).cast(kind)


def _pairs(keys: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"__key{n}", f"__null{n}") for n in range(len(keys))]


def _key_names(keys: Sequence[str]) -> Iterator[str]:
    for pair in _pairs(keys):
        yield from pair
