"""Which columns of a file have dictionaries."""

from __future__ import annotations

import io
import itertools
from datetime import date, datetime, time, timezone
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbt.adapters.iceberg_stream.tables.files.parquet import ParquetOptions, repeating_columns


def size(rows: pa.Table, **options: Any) -> int:
    sink = io.BytesIO()
    pq.write_table(rows, sink, **{**ParquetOptions().arguments(rows), **options})
    return len(sink.getvalue())


@pytest.mark.parametrize("count", [1, 2, 1_000, 5_000, 200_000])
def test_values_that_repeat_have_dictionaries(count: int) -> None:
    rows = pa.table(
        {
            "unique": range(count),
            "texts": [f"text {n}" for n in range(count)],
            "few": [n % 7 for n in range(count)],
            "sorted": [n // 50 for n in range(count)],
            "null": pa.nulls(count, pa.string()),
        }
    )
    repeats = {1: {"null"}, 2: {"null", "sorted"}}.get(count, {"few", "sorted", "null"})
    assert set(repeating_columns(rows)) == repeats


@pytest.mark.parametrize("distinct", [10, 1_000, 20_000, 100_000, 1_000_000])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_files_are_about_as_small_as_they_can_be(distinct: int, kind: pa.DataType) -> None:
    rng = Random(distinct)
    values = [rng.randrange(distinct) * 1_000_003 for _ in range(100_000)]
    rows = pa.table({"v": pa.array(values, pa.int64()).cast(kind)})
    best = min(size(rows, use_dictionary=each) for each in (True, False))
    assert size(rows) <= 1.1 * best


VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int32(), [1, 2]),
    (pa.float32(), [1.5, float("nan")]),
    (pa.float64(), [-0.0, 0.0]),
    (pa.decimal128(38, 3), [Decimal("1.5"), Decimal("-2")]),
    (pa.date32(), [date(2020, 1, 1), date(1, 1, 1)]),
    (pa.time64("us"), [time(1), time(2)]),
    (pa.timestamp("us"), [datetime(2020, 1, 1), datetime(9999, 1, 1)]),
    (pa.timestamp("ns", "UTC"), [datetime(2020, 1, 1, tzinfo=timezone.utc)] * 2),
    (pa.string(), ["", "a"]),
    (pa.binary(), [b"", b"\xff"]),
    (pa.binary(2), [b"ab", b"\xff\xff"]),
    (pa.uuid(), [bytes(16), b"1" * 16]),
    (pa.list_(pa.int64()), [[1, None], []]),
    (pa.map_(pa.string(), pa.list_(pa.date32())), [[("k", [date(2020, 1, 1)])], []]),
    (
        pa.struct([("a.b", pa.list_(pa.struct([("c", pa.string())])))]),
        [{"a.b": [{"c": "x"}]}, None],
    ),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_all_types(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(list(itertools.islice(itertools.cycle([*values, None]), 1_000)), kind)
    for name in ("v", "v.w"):
        rows, sink = pa.table({name: column}), io.BytesIO()
        pq.write_table(rows, sink, **ParquetOptions().arguments(rows))
        written = pq.ParquetFile(sink)
        group = written.metadata.row_group(0)
        # PyArrow has no dictionaries of Booleans.
        assert {group.column(n).has_dictionary_page for n in range(group.num_columns)} == {
            kind != pa.bool_()
        }
        assert repr(written.read()[name].to_pylist()) == repr(column.to_pylist())
