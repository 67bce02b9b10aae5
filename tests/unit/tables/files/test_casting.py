"""Data of any Arrow type become a table's, value by value, or are refused by name."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema, new_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError, conform

LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal128(20, 3), st.decimals(-(10**16), 10**16, places=3, allow_nan=False)),
    (pa.date32(), st.dates()),
    (pa.timestamp("ms"), st.datetimes().map(lambda d: d.replace(microsecond=d.microsecond // 1000 * 1000))),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(timezone.utc))),
    (pa.string(), st.text()),
    (pa.large_string(), st.text()),
    (pa.string_view(), st.text()),
    (pa.binary(), st.binary()),
    (pa.binary(4), st.binary(min_size=4, max_size=4)),
    (pa.dictionary(pa.int32(), pa.string()), st.text()),
]  # fmt: skip


@st.composite
def columns(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type and the values that it has, null among them."""
    shape = draw(st.sampled_from(["leaf"] * 3 + ["list", "struct", "map"] if depth else ["leaf"]))
    if shape == "leaf":
        kind, values = draw(st.sampled_from(LEAVES))
        return kind, st.none() | values
    kind, values = draw(columns(depth - 1))
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if shape == "list":
        make = draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view]))
        return make(kind), st.none() | st.lists(values, max_size=3)
    if shape == "map":
        keys = st.lists(st.tuples(st.text(max_size=3), values), max_size=3)
        return pa.map_(pa.string(), kind), st.none() | keys
    return pa.struct([("x", kind), ("y", pa.int16())]), st.none() | st.fixed_dictionaries(
        {"x": values, "y": st.none() | st.integers(0, 9)}
    )


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    kinds = draw(st.lists(columns(), min_size=1, max_size=4))
    length = draw(st.integers(0, 6))
    arrays = [
        pa.array(draw(st.lists(values, min_size=length, max_size=length)), kind)
        for kind, values in kinds
    ]
    return pa.record_batch(arrays, [f"c{n}" for n in range(len(arrays))])


@settings(max_examples=300, deadline=None)
@given(batches(), st.integers(0, 3), st.integers(0, 6))
def test_values_are_kept(batch: pa.RecordBatch, begin: int, length: int) -> None:
    part = batch.slice(begin, length)
    schema = file_schema(new_schema(batch.schema))
    made = conform(part, schema)
    made.validate(full=True)
    assert made.schema.equals(schema, check_metadata=True)
    assert made.to_pylist() == part.to_pylist()


@settings(max_examples=200, deadline=None)
@given(st.lists(columns(), min_size=1, max_size=4))
def test_ids_are_unique_and_begin_with_the_columns(
    kinds: list[tuple[pa.DataType, st.SearchStrategy[Any]]],
) -> None:
    schema = new_schema(pa.schema([(f"c{n}", kind) for n, (kind, _) in enumerate(kinds)]))
    assert [field.field_id for field in schema.fields] == list(range(1, len(kinds) + 1))
    actual = sorted(schema._lazy_id_to_name)
    assert actual == list(range(1, schema.highest_field_id + 1))


def one(values: list[Any], kind: pa.DataType | None, target: pa.DataType) -> list[Any]:
    batch = pa.record_batch({"c": pa.array(values, kind)})
    return conform(batch, pa.schema([("c", target)])).column(0).to_pylist()


@pytest.mark.parametrize(
    ("values", "kind", "target", "fault"),
    [
        ([5 * 10**9], pa.int64(), pa.int32(), "int32 cannot store"),
        ([2**53 + 1], pa.int64(), pa.float64(), "double cannot store"),
        ([0.1], pa.float64(), pa.float32(), "has 0.1, which float cannot store exactly"),
        ([1.5], pa.float64(), pa.int64(), "is double, but the table has int64"),
        ([123456], pa.int64(), pa.decimal128(5, 2), "does not fit in precision 5"),
        ([Decimal("1.234")], pa.decimal128(5, 3), pa.decimal128(5, 2), "cannot store"),
        ([1001], pa.timestamp("ns"), pa.timestamp("us"), "would lose data"),
        ([1], pa.timestamp("us"), pa.timestamp("us", "UTC"), "with the time zone of its values"),
        ([1], pa.timestamp("us", "UTC"), pa.timestamp("us"), "time zone in which the table stores it"),
        (["1"], pa.string(), pa.int32(), "is string, but the table has int32"),
        ([b"abc"], pa.binary(), pa.binary(4), "cannot store"),
        ([b"abc"], pa.binary(), pa.uuid(), "not a UUID of 16 bytes"),
        ([[1, 2**40]], pa.list_(pa.int64()), pa.list_(pa.int32()), "`c.element`"),
        ([{"x": 1}], pa.struct([("x", pa.int64())]), pa.struct([("y", pa.int64())]), "`c.x` is not in the table"),
    ],
)  # fmt: skip
def test_what_would_be_lost_is_refused(
    values: list[Any], kind: pa.DataType, target: pa.DataType, fault: str
) -> None:
    with pytest.raises(ColumnError, match=fault.replace("(", r"\(")):
        one(values, kind, target)


@pytest.mark.parametrize(
    ("values", "kind", "target", "expected"),
    [
        ([1], pa.int64(), pa.decimal128(5, 2), [Decimal("1.00")]),
        ([Decimal("1.20")], pa.decimal128(9, 2), pa.decimal128(38, 1), [Decimal("1.2")]),
        ([1000], pa.timestamp("ns"), pa.timestamp("us"), [datetime(1970, 1, 1, microsecond=1)]),
        ([None, None], None, pa.string(), [None, None]),
        ([b"abcd"], pa.large_binary(), pa.binary(4), [b"abcd"]),
    ],
)
def test_what_keeps_its_value_is_cast(
    values: list[Any], kind: pa.DataType | None, target: pa.DataType, expected: list[Any]
) -> None:
    assert one(values, kind, target) == expected


def test_not_a_number_is_kept() -> None:
    assert math.isnan(one([math.nan], pa.float64(), pa.float32())[0])


def test_columns_go_by_name() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    batch = pa.record_batch({"b": ["x"], "a": [1]})
    assert conform(batch, schema).to_pylist() == [{"a": 1, "b": "x"}]
    assert conform(batch.select(["a"]), schema).to_pylist() == [{"a": 1, "b": None}]
    with pytest.raises(ColumnError, match="`c` is not in the table, which has `a`, `b`"):
        conform(pa.record_batch({"c": [1]}), schema)


def test_required_columns() -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("s", inner)])
    nullable = pa.struct([("x", pa.int64())])
    good = pa.record_batch([pa.array([1, 2]), pa.array([{"x": 1}, None], nullable)], ["a", "s"])
    assert conform(good, schema).to_pylist() == good.to_pylist()
    for rows, column in (
        ([pa.array([1, None]), pa.array([None, None], nullable)], "a"),
        ([pa.array([1, 2]), pa.array([{"x": None}, None], nullable)], "s.x"),
    ):
        with pytest.raises(ColumnError, match="the table requires it") as refused:
            conform(pa.record_batch(rows, ["a", "s"]), schema)
        assert refused.value.column == column
    with pytest.raises(ColumnError, match="`a` is missing, but the table requires it"):
        conform(pa.record_batch({"s": pa.array([None], nullable)}), schema)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (pa.duration("s"), "is duration"),
        (pa.null(), "has no type, because all its values are null"),
        (pa.decimal256(50, 2), "decimals have at most 38 digits"),
        (pa.decimal256(39, 2), "decimals have at most 38 digits"),
        (pa.decimal128(5, -1), "a scale from 0 to"),
        (pa.decimal128(5, 6), "a scale from 0 to"),
        (pa.month_day_nano_interval(), "which Iceberg does not have"),
    ],
)
def test_types_that_no_table_has(kind: pa.DataType, fault: str) -> None:
    with pytest.raises(ColumnError, match=fault) as refused:
        new_schema(pa.schema([("s", pa.struct([("x", kind)]))]))
    assert refused.value.column == "s.x"


def test_two_columns_of_a_name() -> None:
    with pytest.raises(ColumnError, match="`a` occurs twice"):
        new_schema(pa.schema([("a", pa.int64()), ("a", pa.int64())]))


def test_version_3_has_more() -> None:
    arrow = pa.schema(
        [("t", pa.timestamp("ns")), ("z", pa.timestamp("ns", "UTC")), ("n", pa.null())]
    )
    assert [str(f.field_type) for f in new_schema(arrow, 3).fields] == [
        "timestamp_ns",
        "timestamptz_ns",
        "unknown",
    ]
    assert file_schema(new_schema(arrow, 3)).names == ["t", "z"]


def test_versions_below_have_no_nanoseconds() -> None:
    arrow = pa.schema([("t", pa.timestamp("ns")), ("z", pa.timestamp("ns", "UTC"))])
    assert [str(f.field_type) for f in new_schema(arrow, 2).fields] == ["timestamp", "timestamptz"]
    micros = pa.schema([("t", pa.timestamp("us")), ("z", pa.timestamp("us", "UTC"))])
    assert [str(f.field_type) for f in new_schema(micros, 3).fields] == ["timestamp", "timestamptz"]


@pytest.mark.parametrize("digits", [(38, 0), (38, 38), (1, 1)])
def test_decimals_of_all_sizes(digits: tuple[int, int]) -> None:
    (field,) = new_schema(pa.schema([("d", pa.decimal128(*digits))])).fields
    assert str(field.field_type) == f"decimal({digits[0]}, {digits[1]})"


@pytest.mark.parametrize("target", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_floating_point_numbers_that_fit(kind: pa.DataType, target: pa.DataType) -> None:
    values = [1.5, None, -0.0, math.inf]
    assert one(values, kind, target) == values
