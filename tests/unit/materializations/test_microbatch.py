"""The range of a batch, in the type of the time column."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.column import IcebergStreamColumn
from dbt.adapters.iceberg_stream.materializations.microbatch import batch_range_sql


def range_of(kind: str, batch_size: str = "day") -> str:
    model = {
        "unique_id": "model.p.m",
        "config": {"event_time": "AT", "batch_size": batch_size},
        "batch": {
            "event_time_start": datetime(2026, 3, 8, tzinfo=timezone.utc),
            "event_time_end": datetime(2026, 3, 9, tzinfo=timezone.utc),
        },
    }
    return batch_range_sql([IcebergStreamColumn("at", kind)], model)


@pytest.mark.parametrize(
    ("kind", "start", "end"),
    [
        (
            "timestamp",
            "timestamp '2026-03-08 00:00:00+00:00'",
            "timestamp '2026-03-09 00:00:00+00:00'",
        ),
        (
            "timestamp_ntz",
            "timestamp_ntz '2026-03-08 00:00:00'",
            "timestamp_ntz '2026-03-09 00:00:00'",
        ),
        ("date", "date '2026-03-08'", "date '2026-03-09'"),
        ("string", "'2026-03-08 00:00:00+00:00'", "'2026-03-09 00:00:00+00:00'"),
    ],
)
def test_literals(kind: str, start: str, end: str) -> None:
    assert range_of(kind) == f"`at` >= {start} and `at` < {end}"


def test_hours_of_a_date() -> None:
    with pytest.raises(
        CompilationError, match="`batch_size: hour`, but its `event_time` `AT` is a date"
    ):
        range_of("date", "hour")
