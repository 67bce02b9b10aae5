"""Differences as text for a terminal, and as Markdown for a pull request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dbt.adapters.iceberg_stream.diff.difference import ChangedRow, Row, TableDifference
from dbt.adapters.iceberg_stream.diff.schemas import ADDED, DROPPED, RENAMED, SchemaChange
from dbt.adapters.iceberg_stream.diff.version import TableVersion

# Longer values are cut.
WIDTH = 40
LABEL = 10
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def metadata_text(difference: TableDifference) -> str:
    """Return what metadata say, for a terminal.

    Args:
        difference: of two versions.
    """
    lines = [_line("from", _version(difference.before)), _line("to", _version(difference.after))]
    changes = [_schema_change(change) for change in difference.schema] or ["no changes"]
    lines += [_line("schema" if not n else "", text) for n, text in enumerate(changes)]
    lines += [_line(label, text) for label, text in _file_lines(difference)]
    return "\n".join(lines)


def rows_text(difference: TableDifference) -> str:
    """Return which rows differ, for a terminal.

    Args:
        difference: of two versions, with rows.
    """
    rows = difference.rows
    assert rows is not None
    lines = [_line("rows", f"{_counts(difference)}, {_by(rows.key)}")]
    lines += [_line("changed", f"`{name}` in {count:,} rows") for name, count in _columns(rows)]
    if rows.excluded:
        lines.append(_line("excluded", f"{_names(rows.excluded)}: types cannot be compared"))
    lines.append(
        _line(
            "read",
            f"{rows.rows_read:,} rows of {_files(rows.files_read)}, {_size(rows.bytes_read)}",
        )
    )
    for title, samples, count in (
        ("added", rows.added_rows, rows.added),
        ("removed", rows.removed_rows, rows.removed),
    ):
        if samples:
            lines += ["", _title(title, len(samples), count)]
            lines += [f"  {line}" for line in _aligned(_grid(samples))]
    if rows.changed_rows:
        lines += ["", _title("changed", len(rows.changed_rows), rows.changed)]
        lines += [f"  {line}" for line in _aligned(_changed_grid(rows.key, rows.changed_rows))]
    return "\n".join(lines)


def markdown(difference: TableDifference) -> str:
    """Return a difference as Markdown.

    Args:
        difference: of two versions.
    """
    before, after = difference.before, difference.after
    lines = [f"### `{after.name}`", "", f"From {_version(before)} to {_version(after)}.", ""]
    if difference.schema:
        cells = [
            [c.kind, f"`{c.column}`", c.before or "", c.after or ""] for c in difference.schema
        ]
        lines += [*_table([["schema", "column", "before", "after"], *cells]), ""]
    lines += [*_table([["", ""], *([k, v] for k, v in _file_lines(difference))]), ""]
    if difference.rows is not None:
        lines += _markdown_rows(difference)
    return "\n".join(lines).rstrip()


def _markdown_rows(difference: TableDifference) -> Iterator[str]:
    rows = difference.rows
    assert rows is not None
    yield from [f"**{_counts(difference)}**, {_by(rows.key)}.", ""]
    if columns := list(_columns(rows)):
        yield from _table([["column", "changed rows"], *([f"`{n}`", f"{c:,}"] for n, c in columns)])
        yield ""
    if rows.excluded:
        yield from [f"Not compared, because their types differ: {_names(rows.excluded)}.", ""]
    grids: tuple[tuple[str, Sequence[object], int, list[list[str]]], ...] = (
        ("added", rows.added_rows, rows.added, _grid(rows.added_rows)),
        ("removed", rows.removed_rows, rows.removed, _grid(rows.removed_rows)),
        ("changed", rows.changed_rows, rows.changed, _changed_grid(rows.key, rows.changed_rows)),
    )
    for kind, samples, count, grid in grids:
        if samples:
            title = _title(kind, len(samples), count)
            yield from [f"<details><summary>{title}</summary>", "", *_table(grid), ""]
            yield from ["</details>", ""]


def _line(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}"


def _version(version: TableVersion) -> str:
    if version.time is None:
        return f"{version.name}, without rows"
    ref = f" ({version.ref})" if version.ref else ""
    time = version.time.strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{version.name}, snapshot {version.snapshot_id}{ref} of {time}"


def _schema_change(change: SchemaChange) -> str:
    if change.kind == ADDED:
        return f"added `{change.column}` {change.after}"
    if change.kind == DROPPED:
        return f"dropped `{change.column}` {change.before}"
    if change.kind == RENAMED:
        return f"renamed `{change.before}` to `{change.after}`"
    return f"{change.kind} `{change.column}`: {change.before} to {change.after}"


def _file_lines(difference: TableDifference) -> Iterator[tuple[str, str]]:
    files = difference.files
    counts = files.rows_before, files.rows_after
    if None not in counts:
        yield "row count", f"{counts[0]:,} before, {counts[1]:,} after"
    for label, side in (("+ files", files.added), ("- files", files.removed)):
        deletes = f", and {_plural(side.delete_files, 'delete file')}" if side.delete_files else ""
        rows = f" of {_plural(side.rows, 'row')}, {_size(side.bytes)}" if side.files else ""
        yield label, f"{_files(side.files)}{rows}{deletes}"


def _counts(difference: TableDifference) -> str:
    rows = difference.rows
    assert rows is not None
    changed = f", {rows.changed:,} changed" if rows.key else ""
    return f"{rows.added:,} added, {rows.removed:,} removed{changed}"


def _by(key: Sequence[str]) -> str:
    return f"by key {_names(key)}" if key else "by whole row"


def _columns(rows: Any) -> Iterator[tuple[str, int]]:
    yield from sorted(rows.columns.items(), key=lambda item: -item[1])


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _title(kind: str, shown: int, count: int) -> str:
    return f"{kind}: {shown:,} of {_plural(count, 'row')}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _files(count: int) -> str:
    return _plural(count, "data file")


def _size(size: int) -> str:
    power = min(int(math.log(size, 1024)), len(UNITS) - 1) if size else 0
    return f"{size / 1024**power:,.1f} {UNITS[power]}" if power else f"{size} bytes"


def _grid(rows: Sequence[Row]) -> list[list[str]]:
    """Return rows as text, the names of the columns first."""
    names = list(rows[0]) if rows else []
    return [names, *([_value(row[name]) for name in names] for row in rows)]


def _changed_grid(key: Sequence[str], rows: Sequence[ChangedRow]) -> list[list[str]]:
    """Return a line for each changed value, with the old and the new one side by side."""
    grid = [[*key, "column", "before", "after"]]
    for row in rows:
        for number, name in enumerate(row.columns):
            keys = [_value(row.after[k]) if number == 0 else "" for k in key]
            grid.append([*keys, name, _value(row.before[name]), _value(row.after[name])])
    return grid


def _value(value: Any) -> str:
    """Return a value as one line."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        text = f"0x{value.hex()}"
    else:
        text = " ".join(str(value).split()) if isinstance(value, str) else str(value)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def _aligned(grid: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    for row in grid:
        yield "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip()


def _table(grid: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(grid):
        cells = (cell.replace("\\", "\\\\").replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield f"|{' --- |' * len(row)}"
