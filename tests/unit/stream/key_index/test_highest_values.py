"""Upper bounds of files' metrics, written by any engine, perhaps before a column was widened."""

from __future__ import annotations

import struct
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.key_index.highest_values import (
    UpperBound,
    bound_value,
    higher,
)

WIDE_UNSCALED = (12345678901234567890123456789012345678).to_bytes(16, "big")
WIDE = Decimal("12345678901234567890123456789012.345678")


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        (pa.int32(), struct.pack("<i", -7), -7),
        (pa.int64(), struct.pack("<i", -7), -7),
        (pa.int64(), struct.pack("<q", 1 << 40), 1 << 40),
        (pa.float64(), struct.pack("<f", 0.5), 0.5),
        (pa.float64(), struct.pack("<d", float("nan")), None),
        (pa.date32(), struct.pack("<i", 1), date(1970, 1, 2)),
        (pa.timestamp("us"), struct.pack("<q", 1_000_000), datetime(1970, 1, 1, 0, 0, 1)),
        # Days, from before a date became a timestamp.
        (pa.timestamp("us"), struct.pack("<i", 1), None),
        (pa.decimal128(38, 6), WIDE_UNSCALED, WIDE),
        (pa.decimal128(9, 2), b"\xff", Decimal("-0.01")),
        (pa.string(), b"2026-01-01", "2026-01-01"),
        (pa.string(), b"\xff", None),
        (pa.binary(), b"x", b"x"),
        (pa.int64(), None, None),
    ],
)
def test_bounds(kind: pa.DataType, raw: bytes | None, expected: Any) -> None:
    bound = bound_value(kind, raw)
    assert (bound is None) == (expected is None)
    assert bound is None or bound == UpperBound(pa.scalar(expected, kind))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_bounds_that_were_cut(kind: pa.DataType) -> None:
    """They may be higher than all values."""
    bound = bound_value(kind, b"2026-01-01T00:01")
    assert bound is not None and not bound.is_highest


@pytest.mark.parametrize(
    ("one", "other", "expected"), [(1, 2, 2), (2, 1, 2), (None, 1, 1), (1, None, 1), (None,) * 3]
)
def test_the_higher_value(one: int | None, other: int | None, expected: int | None) -> None:
    scalars = pa.scalar(one, pa.int64()), pa.scalar(other, pa.int64())
    assert higher(*scalars).as_py() == expected
