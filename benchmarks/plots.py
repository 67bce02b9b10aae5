"""Draw the plots of docs/performance.md from the result files: `python -m benchmarks.report`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

IMAGES = Path(__file__).parents[1] / "docs" / "images"
ONCE = re.compile(r"deletes_v3_(\d+)x20k_once")
# Text stays text, and the same results give the same file.
STYLE: dict[Any, str] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "results",
    "font.family": "sans-serif",
}


def draw(records: Sequence[dict[str, Any]]) -> None:
    """Draw all plots.

    Args:
        records: the contents of the result files.
    """
    points = sorted(
        (int(match[1]), record) for record in records if (match := ONCE.fullmatch(record["name"]))
    )
    if not points:
        return
    IMAGES.mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        _read_once(points).savefig(
            IMAGES / "read_once.svg", metadata={"Date": None}, bbox_inches="tight"
        )


def _read_once(points: Sequence[tuple[int, dict[str, Any]]]) -> Figure:
    """Plot how many times faster than by Spark a table is read, by its number of delete files."""
    files = [count for count, _ in points]
    ratios = [record["ratio"] for _, record in points]
    lows = [record["ratio"] - record["low"] for _, record in points]
    highs = [record["high"] - record["ratio"] for _, record in points]
    figure = Figure(figsize=(6.4, 3.2))
    axes = figure.add_subplot()
    axes.errorbar(files, ratios, yerr=(lows, highs), marker="o", capsize=3)
    axes.axhline(1, color="gray", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = (0.5, 1, 2, 5, 10, 20)
    axes.set_xticks(files, [str(count) for count in files])
    axes.set_yticks(ticks, [f"{ratio:g}×" for ratio in ticks])
    axes.minorticks_off()
    axes.set_xlabel("equality delete files of 20,000 keys each")
    axes.set_ylabel("faster than Spark's reader")
    axes.grid(alpha=0.3)
    return figure
