"""Rows are matched, and values compared, as the specification of equality says it."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.diff.matching import Matches, NotUnique, RowSet, match_rows
from dbt.adapters.iceberg_stream.diff.partitions import Partitions
from dbt.adapters.iceberg_stream.diff.values import differs, encoded, hash_rows

POINT = pa.struct([("x", pa.float32()), ("y", pa.list_(pa.string()))])
FLOATS = [None, 0.0, -0.0, math.nan, 1.5, -math.inf]
TEXTS = [None, "", "a", "ab", "é" * 40, "é" * 40 + "a", "x" * 200]
LISTS = [None, [], [None], ["a"], ["a", ""], ["", "a"], ["aa"]]
VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [None, True, False],
    pa.int32(): [None, 0, -1, 2**31 - 1],
    pa.int64(): [None, 0, -1, 2**63 - 1, -(2**63)],
    pa.float32(): FLOATS,
    pa.float64(): FLOATS,
    pa.decimal128(5, 2): [None, Decimal("0.00"), Decimal("-1.50"), Decimal("999.99")],
    pa.date32(): [None, 0, 1],
    pa.time64("us"): [None, 0, 1],
    pa.timestamp("us"): [None, 0, 1],
    pa.timestamp("ns", "UTC"): [None, 0, 1],
    pa.string(): TEXTS,
    pa.binary(): [None, b"", b"\0", b"\0\0", b"a" * 9],
    pa.binary(3): [None, b"abc", b"ab\0"],
    pa.list_(pa.string()): LISTS,
    pa.list_(pa.list_(pa.float64())): [None, [], [[]], [None], [[0.0]], [[-0.0]], [[], []]],
    pa.map_(pa.string(), pa.int32()): [
        *(None, [], [("a", 1)], [("a", None)]),
        *([("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("b", 1), ("a", 2)]),
    ],
    POINT: [None, *({"x": x, "y": y} for x in FLOATS for y in LISTS)],
    pa.list_(POINT): [None, [], [None], [{"x": math.nan, "y": None}], [{"x": 0.0, "y": []}]],
}
TYPES = list(VALUES)


def plain(value: Any, kind: pa.DataType) -> Any:
    """A value that is equal to another one by `==` if `diff` says so."""
    if value is None:
        return None
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if pa.types.is_map(kind):
        return frozenset((plain(k, kind.key_type), plain(v, kind.item_type)) for k, v in value)
    if isinstance(value, list):
        return tuple(plain(item, kind.value_type) for item in value)
    if isinstance(value, dict):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return tuple(plain(value[field.name], field.type) for field in fields)
    return value


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_pair_of_values(kind: pa.DataType) -> None:
    values = VALUES[kind]
    pairs = [(one, other) for one in values for other in values]
    # A slice: arrays need not begin where their buffers do.
    before = pa.array([values[-1], *(one for one, _ in pairs)], kind)[1:]
    after = pa.array([values[0], *(other for _, other in pairs)], kind)[1:]
    expected = [plain(one, kind) != plain(other, kind) for one, other in pairs]
    assert differs(before, after).tolist() == expected
    assert pc_not_equal(encoded(before), encoded(after)) == expected
    same_hash = hash_rows([before]) == hash_rows([after])
    assert all(same for same, different in zip(same_hash, expected, strict=True) if not different)


def pc_not_equal(one: pa.Array, other: pa.Array) -> list[bool]:
    pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
    return [a != b for a, b in pairs]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_no_values(kind: pa.DataType) -> None:
    nothing = pa.array([], kind)
    assert len(encoded(nothing)) == len(hash_rows([nothing])) == len(differs(nothing, nothing)) == 0


ROW = st.tuples(st.sampled_from([None, 0, 1, 2, 3, 4]), st.sampled_from(["a", "b", None]))
ROWS = st.lists(ROW, max_size=12)


def table(rows: list[Any]) -> pa.Table:
    return pa.table(
        {"0": pa.array([r[0] for r in rows], pa.int64()), "1": pa.array([r[1] for r in rows])},
        pa.schema([("0", pa.int64()), ("1", pa.string())]),
    )


def row_set(rows: list[Any], keys: list[int], code: int | None) -> RowSet:
    columns = [column.combine_chunks() for column in table(rows).columns]
    codes = hash_rows([columns[key] for key in keys])
    return RowSet(codes if code is None else np.full(len(rows), code, np.uint64), columns)


# With one code for all rows, each hash collides.
@pytest.mark.parametrize("code", [None, 7])
@given(before=ROWS, after=ROWS)
def test_whole_rows(code: int | None, before: list[Any], after: list[Any]) -> None:
    sets = row_set(before, [0, 1], code), row_set(after, [0, 1], code)
    matches = match_rows(*sets, [0, 1], unique=False)
    assert_complete(matches, len(before), len(after))
    removed, added = Counter(before), Counter(after)
    assert Counter(before[n] for n in matches.removed) == removed - added
    assert Counter(after[n] for n in matches.added) == added - removed
    assert [before[n] for n in matches.before] == [after[n] for n in matches.after]


@pytest.mark.parametrize("code", [None, 7])
@given(before=ROWS, after=ROWS)
def test_keys(code: int | None, before: list[Any], after: list[Any]) -> None:
    sets = row_set(before, [0], code), row_set(after, [0], code)
    keys = [row[0] for row in before], [row[0] for row in after]
    if any(len(set(some)) < len(some) for some in keys):
        with pytest.raises(NotUnique) as error:
            match_rows(*sets, [0], unique=True)
        rows = keys[0] if error.value.is_before else keys[1]
        assert rows.count(rows[error.value.row]) == error.value.count > 1
        return
    matches = match_rows(*sets, [0], unique=True)
    assert_complete(matches, len(before), len(after))
    assert {keys[0][n] for n in matches.removed} == set(keys[0]) - set(keys[1])
    assert {keys[1][n] for n in matches.added} == set(keys[1]) - set(keys[0])
    assert [keys[0][n] for n in matches.before] == [keys[1][n] for n in matches.after]


def assert_complete(matches: Matches, before: int, after: int) -> None:
    assert sorted([*matches.before, *matches.removed]) == list(range(before))
    assert sorted([*matches.after, *matches.added]) == list(range(after))


@settings(deadline=None, max_examples=30)
@given(before=ROWS, after=ROWS)
def test_partitions_hold_all_rows(before: list[Any], after: list[Any]) -> None:
    schema = table([]).schema
    with Partitions(schema, [0], len(before) + len(after), memory=100) as parts:
        for row in before:
            parts.add(table([row]), is_before=True)
        parts.add(table(after), is_before=False)
        sets = list(parts.row_sets())
    rows = [
        [
            row
            for pair in sets
            for row in zip(*map(pa.Array.to_pylist, pair[side].columns), strict=True)
        ]
        for side in (0, 1)
    ]
    assert [Counter(some) for some in rows] == [Counter(before), Counter(after)]
    keys = [{key for rows in pair for key in rows.columns[0].to_pylist()} for pair in sets]
    # A key is in one partition, of either version.
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_many_rows_go_to_the_disk(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = table([(n, "text" * 10) for n in range(1000)])
    with Partitions(rows.schema, [0], 20_000, memory=200_000) as parts:
        for _ in range(10):
            for is_before in (True, False):
                parts.add(rows, is_before)
        assert len(list(tmp_path.rglob("*.arrow"))) > 8
        sizes = [len(before) + len(after) for before, after in parts.row_sets()]
        assert sum(sizes) == 20_000
        assert max(sizes) < 5_000
    assert not list(tmp_path.iterdir())
