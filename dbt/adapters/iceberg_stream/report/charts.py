"""Charts of a table's history as SVG, in the colours of the page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

import leather
from markupsafe import Markup

from dbt.adapters.iceberg_stream.report.history import Totals, Write, utc

WIDTH, HEIGHT = 560, 200
# Without most of the margins, which are a twentieth of the width on each side.
VIEW = f"0 10 {WIDTH} {HEIGHT - 26}"
# The axis of time in equal parts, and its labels.
STEPS = 1_000
TICKS = [0, 250, 500, 750, 1_000]
# One for all charts: leather searches ticks for each scale, also if the axis has its own.
TIME_SCALE = leather.Linear(0, STEPS)
# A longer history is thinned out.
MAX_POINTS = 60
# Classes of the page's style sheet have these as variables, one for light and one for dark.
COLORS = ("var(--first)", "var(--second)")
# The second line is recognizable without its colour, too.
DASHES = ("none", "5 3")


@dataclass(frozen=True)
class Series:
    """A line of a chart: its name, and its values over time."""

    name: str
    points: Sequence[tuple[datetime, int]]


def history_charts(writes: Sequence[Write]) -> list[Markup]:
    """Return the charts of a table: its files, and its rows with the deletes that hide some.

    Args:
        writes: newest first.

    Returns:
        One chart each; none for a history of which nothing changes or too little is recorded.
    """
    thinned = list(reversed(_thinned(writes)))
    files = (
        _series("data files", thinned, lambda totals: totals.data_files),
        _series("delete files", thinned, lambda totals: totals.delete_files),
    )
    rows = (
        _series("rows of data files", thinned, lambda totals: totals.rows),
        _series("deletes", thinned, lambda totals: totals.deletes),
    )
    charts = (line_chart("Files over time", files), line_chart("Rows over time", rows))
    return [chart for chart in charts if chart is not None]


def _series(name: str, writes: Sequence[Write], total: Callable[[Totals], int | None]) -> Series:
    totals = ((utc(write.committed_ms), total(write.totals)) for write in writes)
    points = [(at, value) for at, value in totals if at is not None and value is not None]
    return Series(name, points)


def line_chart(title: str, series: Sequence[Series]) -> Markup | None:
    """Return a chart with a line for each series; None if no series spans some time.

    Args:
        title: what the chart shows.
        series: at most two; their names and the title must not come from users.
    """
    drawn = [one for one in series if one.points and one.points[0][0] < one.points[-1][0]]
    if not drawn:
        return None
    chart = leather.Chart()
    # With less, the axis would have fractions of files.
    chart.set_y_scale(_scale(max(4, *(value for one in drawn for _, value in one.points))))
    first = min(one.points[0][0] for one in drawn)
    span = max(one.points[-1][0] for one in drawn) - first
    # Not leather's axis of time, whose ticks are wrong for spans of a few seconds.
    chart.set_x_scale(TIME_SCALE)
    pattern = _time_format(span)
    chart.add_x_axis(
        ticks=TICKS, tick_formatter=lambda tick, *_: f"{first + span * (tick / STEPS):{pattern}}"
    )
    for one, color, dashes in zip(drawn, COLORS, DASHES, strict=False):
        points = [(round((at - first) / span * STEPS), value) for at, value in one.points]
        chart.add_line(points, name=one.name, stroke_color=color, width=2, stroke_dasharray=dashes)
    root = ET.Element("svg", {"class": "chart", "viewBox": VIEW, "role": "img"})
    text = "; ".join(_described(one) for one in drawn)
    root.set("aria-label", f"{title}. {text}. The table of writes has the same figures.")
    root.append(chart.to_svg_group(WIDTH, HEIGHT))
    return Markup(ET.tostring(root, encoding="unicode"))


@lru_cache(256)
def _scale(top: int) -> leather.Linear:
    """Return a scale from 0; many tables have as many files or rows as another one."""
    return leather.Linear(0, top)


def _time_format(span: timedelta) -> str:
    """Return the format of an axis of time, exact enough to tell its ticks apart."""
    if span > timedelta(days=8):
        return "%Y-%m-%d"
    if span > timedelta(days=1):
        return "%m-%d %H:%M"
    return "%H:%M" if span > timedelta(minutes=8) else "%H:%M:%S"


def _described(series: Series) -> str:
    values = [value for _, value in series.points]
    return (
        f"{series.name}: from {values[0]:,} to {values[-1]:,}, at least {min(values):,}, "
        f"at most {max(values):,}"
    )


def _thinned(writes: Sequence[Write]) -> Sequence[Write]:
    """Return evenly spaced writes, the first and the last among them."""
    if len(writes) <= MAX_POINTS:
        return writes
    last = len(writes) - 1
    return [writes[round(n * last / (MAX_POINTS - 1))] for n in range(MAX_POINTS)]
