"""Settings of the session that times depend on."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.query.inputs import TIME_ZONE, Inputs
from dbt.adapters.iceberg_stream.stream.query.picked import pick
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported

DEFAULTS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    TIME_ZONE: "UTC",
}


@pytest.mark.parametrize(
    ("zone", "minutes"),
    [("UTC", 0), ("Etc/UTC", 0), ("Z", 0), ("+05:30", 330), ("GMT-03:00", -180), ("UTC+01:00", 60)],
)
def test_offsets(zone: str, minutes: int) -> None:
    settings = DEFAULTS | {TIME_ZONE: zone}
    assert Inputs(settings.__getitem__).offset == minutes


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (TIME_ZONE, "Europe/Berlin", "times in the time zone Europe/Berlin"),
        (TIME_ZONE, "", "times in the time zone "),
        ("spark.sql.ansi.enabled", "false", "times with `spark.sql.ansi.enabled: false`"),
        (
            "spark.sql.timestampType",
            "TIMESTAMP_NTZ",
            "times with `spark.sql.timestampType: TIMESTAMP_NTZ`",
        ),
    ],
)
def test_sessions_whose_times_are_left_to_spark(name: str, value: str, message: str) -> None:
    settings = DEFAULTS | {name: value}
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64())])
    for condition in ("at >= '2026-01-01'", "year(at) = 2026", "to_date(at) = date '2026-01-01'"):
        with pytest.raises(Unsupported) as raised:
            pick(f"select id from v where {condition}", "v", schema, setting=settings.__getitem__)
        assert str(raised.value) == message


def test_times_that_do_not_depend_on_the_session() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("seen", pa.timestamp("us", "UTC"))])
    sql = "select unix_millis(at) as x from v where at > seen and at is not null"
    assert pick(sql, "v", schema).computed["x"].type == pa.int64()


@pytest.mark.parametrize(
    "expression",
    [
        "at + interval 999999999 days",
        "at + interval 1 month",
        "at + interval 1 day 2 hours",
        "at - interval '-1' day",
        "date_format(at, '-')",
        "date_format(at, 'yyyyy')",
        "date_format(at, 'YYYY')",
        "date_format(at, 'MMM')",
        "date_trunc('d', at)",
        "date_trunc('q', at)",
        "extract(week from at)",
        "trunc(at, 'day')",
        "to_date(at, 'yyyy')",
        "datediff(day, at, at)",
    ],
)
def test_times_that_are_left_to_spark(expression: str) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("day", pa.string())])
    with pytest.raises(Unsupported):
        pick(f"select {expression} as x from v", "v", schema, setting=DEFAULTS.__getitem__)
