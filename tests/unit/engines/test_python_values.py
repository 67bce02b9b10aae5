from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.engines.python_values import python_values

DAYS = pa.array([0, 3_663_000, None, -1_084_000], pa.int32()).cast(pa.date32())
SECONDS = pa.array([253_402_300_800], pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp("us"))
BYTES = pa.array([b"a", b"\xff", None, b""], pa.binary())
TEXTS = pa.Array.from_buffers(pa.string(), 4, BYTES.buffers(), 1)
STRUCTS = pa.StructArray.from_arrays([DAYS, TEXTS], ["d", "s"])


def test_dates_that_python_lacks() -> None:
    first, late, null, early = python_values(DAYS)
    assert (first, null) == (date(1970, 1, 1), None)
    assert isinstance(late, str) and isinstance(early, str)
    assert late != early
    assert "10000-01-01 00:00:00" in python_values(SECONDS)[0]


@pytest.mark.parametrize("column", [TEXTS, pa.chunked_array([TEXTS])])
def test_text_that_is_not_utf_8(column: Any) -> None:
    assert python_values(column) == ["a", "\ufffd", None, ""]


def test_nested_values() -> None:
    first, second, *_ = python_values(STRUCTS)
    assert first == {"d": date(1970, 1, 1), "s": "a"}
    assert second["s"] == "\ufffd"
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4]), STRUCTS)
    assert python_values(lists)[0] == [first, second]
    maps = pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array(["x", "y"]), DAYS[:2])
    [[(key, value), (other, _)]] = python_values(maps)
    assert (key, value, other) == ("x", date(1970, 1, 1), "y")
