"""The build summary as a table for people, and as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.tables.commit.table_change import TableChange

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
HEADER = (
    "table",
    "before",
    "after",
    "added",
    "updated",
    "removed",
    "changed",
    "written",
    "seconds",
)
UNKNOWN = "?"
# Names that one line lists.
LISTED = 10
# Words for what happened to a node, in the order in which they are listed.
CHANGED, UNCHANGED, FAILED, SKIPPED = "changed", "unchanged", "failed", "skipped"


@dataclass(frozen=True)
class Line:
    """One table of the summary.

    Attributes:
        table: its name with the namespace.
        result: `changed`, `unchanged`, `failed` or `skipped`.
        node: unique id of its model, seed or snapshot; None for another table that one changed.
        seconds: how long the node ran; None if there is no node.
        change: what the run committed; None if it committed nothing.
    """

    table: str
    result: str
    node: str | None = None
    seconds: float | None = None
    change: TableChange | None = None


def as_text(lines: Sequence[Line]) -> list[str]:
    """Return the summary as lines of text.

    Args:
        lines: the tables.
    """
    changed = [line for line in lines if line.change is not None]
    text = list(_columns([HEADER, *(_cells(line) for line in changed)])) if changed else []
    for result in (UNCHANGED, FAILED, SKIPPED):
        names = [line.table for line in lines if line.result == result]
        if names:
            more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
            text.append(f"{result.capitalize()}: {', '.join(names[:LISTED])}{more}")
    text += [
        f"Warning: {line.table} lost {line.change.share_lost:.1%} of its rows"
        for line in lines
        if line.change is not None and line.change.is_warned and line.change.share_lost
    ]
    return text


def as_json(line: Line) -> str:
    """Return one table of the summary as a JSON object.

    Args:
        line: the table.
    """
    fields = {"table": line.table, "node": line.node, "result": line.result}
    figures: dict[str, object] = {}
    if line.change is not None:
        share, change = line.change.share_changed, line.change
        figures = {
            "rows_before": change.rows_before,
            "rows_after": change.rows_after,
            "rows_added": change.rows_inserted,
            "rows_updated": change.rows_updated,
            "rows_removed": change.rows_removed,
            "share_changed": None if share is None else round(share, 6),
            "rebuilt": change.is_rebuilt,
            "bytes_written": change.bytes_written,
            "commits": change.commits,
            "warned": change.is_warned,
            **({} if change.branch is None else {"branch": change.branch}),
        }
    seconds = None if line.seconds is None else round(line.seconds, 3)
    return json.dumps({"build_summary": {**fields, **figures, "seconds": seconds}})


def _cells(line: Line) -> list[str]:
    change = line.change
    assert change is not None
    return [
        line.table if change.branch is None else f"{line.table} (branch {change.branch})",
        _number(change.rows_before),
        _number(change.rows_after),
        _number(change.rows_inserted),
        _number(change.rows_updated),
        _number(change.rows_removed),
        _share(change),
        _size(change.bytes_written),
        "" if line.seconds is None else f"{line.seconds:.1f}",
    ]


def _number(rows: int | None) -> str:
    return UNKNOWN if rows is None else f"{rows:,}"


def _share(change: TableChange) -> str:
    if change.is_rebuilt:
        return "rebuilt"
    share = change.share_changed
    if share is None:
        return UNKNOWN if change.rows_before is None else ""
    return "<0.1%" if 0 < share < 0.001 else f"{share:.1%}"


def _size(size: int) -> str:
    power = min(int(math.log(size, 1024)), len(UNITS) - 1) if size else 0
    return f"{size / 1024**power:,.1f} {UNITS[power]}" if power else f"{size} bytes"


def _columns(grid: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align a grid: names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    for row in grid:
        name, *figures = (
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([name, *figures]).rstrip()
