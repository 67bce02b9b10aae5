"""Charts of histories that are long, short, or incomplete."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from dbt.adapters.iceberg_stream.report.charts import Series, history_charts, line_chart
from dbt.adapters.iceberg_stream.report.history import Totals, Write

START = datetime(2026, 11, 23)
WRITE = Write(1, 0, "append", "", "", "", "", "", "", 0, 0, 0, 0, Totals(1, 1, 1, 0, 0))


def writes(count: int, step_ms: int = 60_000) -> list[Write]:
    """Newest first."""
    return [
        replace(WRITE, committed_ms=n * step_ms, totals=Totals(n, n, n, n, n))
        for n in reversed(range(count))
    ]


def test_a_long_history_is_thinned_out() -> None:
    files, rows = history_charts(writes(10_000))
    for chart in (files, rows):
        assert "from 0 to 9,999, at least 0, at most 9,999" in chart
        assert len(chart) < 8_000
        assert (
            max(len(re.findall(r"[ML] ", path)) for path in re.findall(r' d="([^"]*)"', chart))
            == 60
        )


@pytest.mark.parametrize("history", [[], writes(1), writes(5, step_ms=0)])
def test_a_history_without_time(history: list[Write]) -> None:
    assert history_charts(history) == []


def test_totals_that_are_not_recorded() -> None:
    bare = [replace(write, totals=Totals(None, None, 5, None, None)) for write in writes(3)]
    (files,) = history_charts(bare)
    assert "data files" in files and "delete files" not in files


def test_lines_differ_without_their_colour() -> None:
    points = [(START, 1), (START + timedelta(hours=1), 2)]
    chart = line_chart("T", [Series("one", points), Series("two", points)])
    assert chart is not None
    assert chart.count("stroke-dasharray") == 1
    assert "var(--first)" in chart and "var(--second)" in chart


def test_the_axis_has_the_times_of_the_writes() -> None:
    chart = line_chart("T", [Series("one", [(START, 1), (START + timedelta(seconds=2), 2)])])
    assert chart is not None
    times = re.findall(r">(\d\d:\d\d:\d\d)<", chart)
    assert sorted(times) == ["00:00:00", "00:00:00", "00:00:01", "00:00:01", "00:00:02"]


@pytest.mark.parametrize(
    ("span", "pattern"),
    [
        (timedelta(minutes=1), r">\d\d:\d\d:\d\d<"),
        (timedelta(hours=3), r">\d\d:\d\d<"),
        (timedelta(days=3), r">11-\d\d \d\d:\d\d<"),
        (timedelta(days=300), r">\d{4}-\d\d-\d\d<"),
    ],
)
def test_times_are_as_exact_as_needed(span: timedelta, pattern: str) -> None:
    chart = line_chart("T", [Series("one", [(START, 1), (START + span, 2)])])
    assert chart is not None and re.search(pattern, chart)
