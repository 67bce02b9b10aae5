"""Keys are equal exactly where Iceberg's equality deletes take them for equal."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.tables.keys.codes import encode, is_own_code

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int32(): [0, 1, -1, 2**31 - 1, -(2**31)],
    pa.int64(): [0, 1, -1, 2**63 - 1, -(2**63)],
    pa.string(): ["", "a", "aa", "a\0", "\0a", "ä", "x" * 300],
    pa.binary(): [b"", b"\0", b"\0\0", b"\1"],
    pa.binary(3): [b"\0\0\0", b"\0\0\1", b"abc"],
    pa.bool_(): [True, False],
    pa.date32(): [dt.date(1970, 1, 1), dt.date(1969, 12, 31)],
    pa.timestamp("us"): [dt.datetime(1970, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 1)],
    pa.timestamp("us", "UTC"): [dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)],
    pa.time64("us"): [dt.time(0), dt.time(23, 59, 59, 999999)],
    pa.decimal128(9, 2): [
        Decimal("0.00"),
        Decimal("-0.01"),
        Decimal("0.01"),
        Decimal("1234567.89"),
    ],
    pa.decimal128(38, 0): [Decimal(0), Decimal(-1), Decimal(10**37)],
    pa.float32(): [0.0, -0.0, 1.5, math.inf, math.nan],
    pa.float64(): [0.0, -0.0, 1.5, -math.inf, math.nan],
}


def identity(value: Any) -> Any:
    """What makes a value the same as another one."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    return value


def classes(rows: pa.Table) -> list[Any]:
    """A value for each key, which equal keys share."""
    keys = encode(rows)
    nulls = keys.nulls if keys.nulls is not None else np.zeros(len(keys), bool)
    values = keys.values.to_pylist() if keys.values is not None else [None] * len(keys)
    return list(zip(keys.codes.tolist(), nulls.tolist(), values, strict=True))


def assert_same_classes(rows: pa.Table) -> None:
    expected = [tuple(map(identity, row.values())) for row in rows.to_pylist()]
    encoded = classes(rows)
    pairs = set(zip(expected, encoded, strict=True))
    assert len(pairs) == len(set(expected)) == len(set(encoded))


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_keys_of_one_column(kind: pa.DataType) -> None:
    values = pa.array([*VALUES[kind], None, *VALUES[kind], None], kind)
    assert_same_classes(pa.table({"k": values}))
    assert_same_classes(pa.table({"k": values.slice(1, 3)}))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_keys_of_several_columns(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=2, max_size=3))
    columns = {
        f"k{n}": pa.array(
            data.draw(st.lists(st.sampled_from([*VALUES[k], None]), min_size=20, max_size=20)), k
        )
        for n, k in enumerate(kinds)
    }
    assert_same_classes(pa.table(columns))


def test_where_one_value_ends_and_the_next_begins() -> None:
    assert_same_classes(pa.table({"a": ["x", "xy", "", None], "b": ["yz", "z", None, ""]}))


@pytest.mark.parametrize(
    ("narrow", "wide", "values"),
    [
        (pa.int32(), pa.int64(), [1, -7, None]),
        (pa.float32(), pa.float64(), [0.5, None, math.nan]),
        (pa.decimal128(4, 2), pa.decimal128(20, 2), [Decimal("1.50"), Decimal("-1.50"), None]),
    ],
    ids=str,
)
def test_a_widened_column_has_the_same_keys(
    narrow: pa.DataType, wide: pa.DataType, values: list[Any]
) -> None:
    one, other = (classes(pa.table({"k": pa.array(values, kind)})) for kind in (narrow, wide))
    assert one == other


def test_codes_of_numbers_keep_their_order() -> None:
    """A batch of neighbouring keys then reads one part of a run."""
    numbers = [-(2**63), -5, 0, 3, 2**63 - 1]
    codes = encode(pa.table({"k": pa.array(numbers, pa.int64())})).codes
    assert codes.tolist() == sorted(codes.tolist())


def test_hashes_spread() -> None:
    """Neighbouring texts share no high bits, by which runs are sorted."""
    keys = encode(pa.table({"k": [f"customer-{n}" for n in range(10_000)]}))
    assert len(set(keys.codes.tolist())) == 10_000
    assert len(set((keys.codes >> np.uint64(48)).tolist())) > 9_000


def test_which_keys_are_their_own_codes() -> None:
    assert is_own_code(pa.schema({"a": pa.int64()}))
    assert not is_own_code(pa.schema({"a": pa.int64(), "b": pa.int64()}))
    assert not is_own_code(pa.schema({"a": pa.string()}))
