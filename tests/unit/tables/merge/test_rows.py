"""One file against a source, compared with the same by hand."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.tables.merge import rows as merge_rows
from dbt.adapters.iceberg_stream.tables.merge.rows import Source, changed, distinct, later, updated

NUMBERS = st.none() | st.integers(-3, 3)
TEXTS = st.none() | st.sampled_from(["", "a", "b"])
VALUES = st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan")])
ROWS = st.lists(st.tuples(NUMBERS, TEXTS, VALUES, NUMBERS), max_size=12)
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("v", pa.float64()), ("w", pa.int32())])


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return left == right or (left != left and right != right)


@settings(max_examples=300, deadline=None)
@given(ROWS, ROWS, st.sampled_from([["k"], ["t"], ["v"], ["k", "t"], ["t", "v"]]), st.booleans())
def test_against_the_same_by_hand(
    file: list[tuple[Any, ...]], source: list[tuple[Any, ...]], keys: list[str], is_large: bool
) -> None:
    """A large source is looked up in the range of the file's keys only."""
    with mock.patch.object(merge_rows, "FEW_ROWS", 0 if is_large else 2_000):
        check_against_the_same_by_hand(file, source, keys)


def check_against_the_same_by_hand(
    file: list[tuple[Any, ...]], source: list[tuple[Any, ...]], keys: list[str]
) -> None:
    places = [SCHEMA.get_field_index(key) for key in keys]

    def key(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple("NaN" if row[place] != row[place] else row[place] for place in places)

    of_source = {key(row): row for row in source}
    actual = Source(table(source), keys)
    assert actual.duplicates() == len(source) - len(of_source)
    rows = list(of_source.values())
    actual, old = Source(table(rows), keys), table(file)
    matches = actual.match(old.select(keys))
    expected = [i for i, row in enumerate(file) if key(row) in of_source]
    assert matches.in_file.to_pylist() == expected
    assert [rows[i] for i in matches.in_source.to_pylist()] == [
        of_source[key(file[i])] for i in expected
    ]
    changes = changed(old, actual.rows, matches, ["v", "w"])
    differing = [
        i for i in expected if not all(same(file[i][c], of_source[key(file[i])][c]) for c in (2, 3))
    ]
    assert changes.in_file.to_pylist() == differing
    made = updated(old, actual.rows, changes, ["v", "w"])
    for i, row in enumerate(made.to_pylist()):
        new = of_source[key(file[i])] if i in differing else file[i]
        assert (row["k"], row["t"]) == file[i][:2]
        assert same(row["v"], new[2]) and same(row["w"], new[3])


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ([1, 2], [1, 3], pa.list_(pa.int64())),
        ([("a", 1)], [("a", 2)], pa.map_(pa.string(), pa.int64())),
        ({"x": 1}, {"x": None}, pa.struct([("x", pa.int64())])),
        (b"1" * 16, b"2" * 16, pa.binary(16)),
    ],
)
def test_nested_columns_and_bytes(old: Any, new: Any, kind: pa.DataType) -> None:
    file = pa.table({"k": [1, 2, 3], "c": pa.array([old, old, None], kind)})
    rows = pa.table({"k": [1, 2, 3], "c": pa.array([old, new, None], kind)})
    source = Source(rows, ["k"])
    changes = changed(file, source.rows, source.match(file.select(["k"])), ["c"])
    assert changes.in_file.to_pylist() == [1]
    assert updated(file, source.rows, changes, ["c"])["c"].to_pylist() == [old, new, None]


NAN = float("nan")
FLOATS = st.none() | st.sampled_from([0.0, -0.0, 1.5, NAN])
# Days of the years -1000 to 12000, which Python has no dates for; and text that is not UTF-8.
DAYS = st.none() | st.sampled_from([-1_084_000, -719_163, 0, 2_932_897, 3_663_000])
BYTES = st.none() | st.sampled_from([b"", b"a", b"\xff", b"\xff\xfe"])
NESTED: list[tuple[pa.DataType, Any]] = [
    (pa.float64(), FLOATS),
    (pa.date32(), DAYS),
    (pa.string(), BYTES),
]
STRUCT = pa.struct([("f", pa.float64()), ("d", pa.date32()), ("s", pa.string())])
STRUCTS = st.none() | st.fixed_dictionaries({"f": FLOATS, "d": DAYS, "s": BYTES})


def stored(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values, with days as numbers and texts as bytes."""
    if pa.types.is_struct(kind):
        children = [stored([v and v[f.name] for v in values], f.type) for f in kind]
        nulls = pa.array([v is None for v in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if pa.types.is_map(kind):
        entries = [entry for value in values for entry in value or ()]
        ends = [0, *itertools.accumulate(len(value or ()) for value in values)]
        nulls = pa.array([v is None for v in values], pa.bool_())
        keys = stored([key for key, _ in entries], kind.key_type)
        items = stored([item for _, item in entries], kind.item_type)
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, items, kind, mask=nulls)
    if pa.types.is_list(kind):
        ends = [0]
        for value in values:
            ends.append(ends[-1] + len(value or ()))
        items = stored([item for value in values for item in value or ()], kind.value_type)
        nulls = pa.array([v is None for v in values], pa.bool_())
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, kind, mask=nulls)
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_string(kind):
        binary = pa.array(values, pa.binary())
        return pa.Array.from_buffers(kind, len(values), binary.buffers(), binary.null_count)
    return pa.array(values, kind)


def alike(left: Any, right: Any) -> bool:
    """Whether Spark's `<=>` is true for two values."""
    if isinstance(left, dict) and isinstance(right, dict):
        return all(alike(left[key], right[key]) for key in left)
    if isinstance(left, tuple) and isinstance(right, tuple):
        # The entries of a map, whose order means nothing.
        one, other = dict(left), dict(right)
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(alike, left, right))
    return same(left, right)


def maps_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[tuple[int, Any], ...]]:
    """Entries of maps in any order."""
    entries = st.dictionaries(st.integers(0, 3), values, max_size=3)
    return entries.flatmap(lambda entry: st.permutations(list(entry.items()))).map(tuple)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_nested_and_odd_values_against_the_same_by_hand(data: st.DataObject) -> None:
    kinds = [*NESTED, (STRUCT, STRUCTS)]
    kinds += [(pa.list_(kind), st.none() | st.lists(values, max_size=3)) for kind, values in kinds]
    kinds += [(pa.map_(pa.int32(), kind), st.none() | maps_of(values)) for kind, values in kinds]
    kind, values = data.draw(st.sampled_from(kinds))
    pairs = data.draw(st.lists(st.tuples(values, values), max_size=6))
    keys = list(range(len(pairs)))
    old, new = (
        pa.table({"k": pa.array(keys, pa.int64()), "c": stored([p[n] for p in pairs], kind)})
        for n in (0, 1)
    )
    source = Source(new, ["k"])
    changes = changed(old, source.rows, source.match(old.select(["k"])), ["c"])
    assert changes.in_file.to_pylist() == [k for k, pair in enumerate(pairs) if not alike(*pair)]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((2, 0), (1, 5), True),
        ((1, 5), (2, 0), False),
        ((1, 5), (1, 4), True),
        ((1, 4), (1, 5), False),
        ((1, 4), (1, 4), False),
        ((2, None), (1, 5), True),
        ((1, None), (2, 5), False),
        ((1, None), (1, 5), False),
        ((None, 5), (1, 4), False),
    ],
)
def test_later(
    first: tuple[int | None, int | None], second: tuple[int, int], expected: bool
) -> None:
    one, other = (
        [pa.chunked_array([pa.array([n], pa.int64())]) for n in values]
        for values in (first, second)
    )
    assert later(one, other).to_pylist() == [expected]


@pytest.mark.parametrize("keys", [["id"], ["id", "n"]])
def test_keys_that_are_uuids(keys: list[str]) -> None:
    stored = pa.array([b"a" * 16, None, b"b" * 16], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), stored)
    rows = pa.table({"id": uuids, "n": [1, 2, 3]})
    matches = Source(rows.slice(1), keys).match(rows.select(keys))
    assert matches.in_file.to_pylist() == [1, 2]
    assert matches.in_source.to_pylist() == [0, 1]


def test_names_that_are_paths_to_pyarrow() -> None:
    rows = pa.table({".k": [1, 1, 2], "[0]": ["a", "a", "a"]})
    assert Source(rows, [".k", "[0]"]).duplicates() == 1
    assert sorted(distinct(rows)[".k"].to_pylist()) == [1, 2]
