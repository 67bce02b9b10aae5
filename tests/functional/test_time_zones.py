"""Times mean the same in sessions of any time zone, also where clocks are changed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
from tests.functional.lake import rows, run

# Zones, and a day in UTC around which their clocks are changed; the second is changed by half an hour.
ZONES = {
    "America/New_York": "2026-03-08",
    "Australia/Lord_Howe": "2026-04-05",
    "Europe/Berlin": "2026-10-25",
}
EVENTS = """
{{{{ config(materialized='table', event_time='{column}') }}}}
select id, timestamp_seconds({{{{ var('start') }}}} + id * 1800) as ts, ntz, cast(ntz as date) as day
from (
  select id, timestamp_ntz '1970-01-01' + make_dt_interval(0, 0, 0, {{{{ var('start') }}}} + id * 1800) as ntz
  from range(96) as t(id)
)
"""
BATCHES = """
{{{{ config(materialized='incremental', incremental_strategy='microbatch', event_time='{column}',
  batch_size='day', begin='2026-01-01', lookback=0, partition_by={parts}) }}}}
select * from {{{{ ref('events_{column}') }}}}
"""
TIMES = """id,inferred,typed,with_zone
1,2026-03-08 00:30:00,2026-03-08 00:30:00,2026-03-08 00:30:00Z
2,2026-03-08 02:30:00,2026-03-08 02:30:00,2026-03-07 21:30:00-05:00
3,2026-04-04 15:15:00,2026-04-04 15:15:00,2026-04-04 15:15:00+00:00
4,2026-10-25 01:30:00,2026-10-25 01:30:00.0,2026-10-25 02:30:00+01:00
"""
SEEDS = """
seeds:
  - {name: by_dbt, config: {column_types: {typed: timestamp, with_zone: string}}}
  - {name: by_spark, config: {partition_by: [id], column_types: {typed: timestamp, with_zone: timestamp}}}
"""
PANDAS = """
def model(dbt, session):
    import pandas as pd
    dbt.config(materialized='table'%s)
    return pd.DataFrame({'id': [1, 2], 'at': pd.to_datetime(['2026-03-08 02:30:00', '2026-10-25 01:30:00'])})
"""

DELETED = """
{{% snapshot deleted_{kind} %}}
  {{{{ config(strategy='timestamp', unique_key='id', updated_at='at', hard_deletes='new_record') }}}}
  select id, cast('2026-01-02 03:04:05' as {kind}) as at from range({{{{ var('count', 1) }}}})
{{% endsnapshot %}}
"""
KINDS = ("timestamp_ntz", "date", "string")


@pytest.fixture(
    params=[
        "Australia/Lord_Howe",
        *(pytest.param(z, marks=pytest.mark.slow) for z in ZONES if z != "Australia/Lord_Howe"),
    ]
)
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The time zone of all sessions."""
    settings = IcebergStreamConnectionManager.session_settings

    def with_zone(self: Any, tokens: Any) -> dict[str, str]:
        return settings(self, tokens) | {"spark.sql.session.timeZone": request.param}

    monkeypatch.setattr(IcebergStreamConnectionManager, "session_settings", with_zone)
    zone: str = request.param
    return zone


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp())


class TestTimeZones:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        models = {}
        for column in ("ts", "ntz", "day"):
            models[f"events_{column}.sql"] = EVENTS.format(column=column)
            models[f"whole_{column}.sql"] = BATCHES.format(column=column, parts="none")
            models[f"parts_{column}.sql"] = BATCHES.format(
                column=column, parts=f"['day({column})']"
            )
        return models

    def test_microbatch(self, project: Any, zone: str) -> None:
        day = datetime.fromisoformat(ZONES[zone])
        start, end = (str((day + timedelta(days=days)).date()) for days in (0, 2))
        command = ["run", "--event-time-start", start, "--event-time-end", end]
        command += ["--vars", f"{{start: {seconds(start)}}}"]
        run_dbt([*command, "--full-refresh"])
        run_dbt(command)
        for name in ("whole_ts", "whole_ntz", "whole_day", "parts_ts", "parts_ntz", "parts_day"):
            query = f"select count(*), count(distinct id) from {{schema}}.{name}"
            assert rows(project, query) == [(96, 96)], name


class TestRowsOfFiles:
    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"by_dbt.csv": TIMES, "by_spark.csv": TIMES, "seeds.yml": SEEDS}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "frame.py": PANDAS % "",
            "frame_by_spark.py": PANDAS % ", partition_by=['id']",
        }

    def test_times_without_a_zone_are_utc(self, project: Any, zone: str) -> None:
        run_dbt(["build"])
        times = [line.split(",")[1] for line in TIMES.splitlines()[1:]]
        expected = [(seconds(time),) * 2 for time in times]
        for name in ("by_dbt", "by_spark"):
            query = f"select unix_seconds(inferred), unix_seconds(typed) from {{schema}}.{name} order by id"
            assert rows(project, query) == expected, name
        query = (
            "select unix_seconds(with_zone), unix_seconds(typed) from {schema}.by_spark order by id"
        )
        assert rows(project, query) == expected
        expected = [(seconds("2026-03-08 02:30:00"),), (seconds("2026-10-25 01:30:00"),)]
        for name in ("frame", "frame_by_spark"):
            query = f"select unix_seconds(at) from {{schema}}.{name} order by id"
            assert rows(project, query) == expected, name


class TestDeletions:
    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {f"{kind}.sql": DELETED.format(kind=kind) for kind in KINDS}

    def test_their_times_are_utc(self, project: Any, zone: str) -> None:
        for kind in KINDS:
            run(project, f"drop table if exists {{schema}}.deleted_{kind}")
        times = [datetime.now(timezone.utc)]
        for count in (1, 0):
            run_dbt(["snapshot", "--vars", f"count: {count}"])
        times.append(datetime.now(timezone.utc))
        begin, end = (str(time.replace(tzinfo=None)) for time in times)
        for kind in KINDS:
            query = f"select dbt_valid_from, dbt_valid_to from {{schema}}.deleted_{kind} order by 1"
            (first, until), (deletion, _) = rows(project, query)
            assert until == deletion, kind
            length = 10 if kind == "date" else 26
            assert begin[:length] <= str(deletion) <= end[:length], kind
