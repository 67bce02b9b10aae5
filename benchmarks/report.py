"""Fill docs/performance.md from the result files, plots included: `python -m benchmarks.report`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from . import plots
from .harness import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEADER = (
    "| benchmark | peer | ratio | low–high | aim | ours | peer's | runs |\n"
    "|---|---|--:|--:|--:|--:|--:|--:|"
)
EMPTY = "No results yet: `make bench` writes them."


def main() -> None:
    """Replace the text between the two markers, and draw the plots."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    PAGE.write_text(f"{before}{BEGIN}\n\n{render(records)}\n\n{END}{after}")
    plots.draw(records)


def render(records: list[dict[str, Any]]) -> str:
    """Return a table for each area, what its benchmarks measure, and on which machines.

    Args:
        records: the contents of the result files.
    """
    if not records:
        return EMPTY
    parts = []
    for area in sorted({record["area"] for record in records}):
        own = [record for record in records if record["area"] == area]
        parts.append("\n".join([f"### {area}\n", HEADER, *map(_row, own)]))
        parts.append("\n".join(["What is measured:\n", *_by_text(own, _note)]))
        parts.append(_machines(own))
    parts.append("\n".join(sorted({_versions(record) for record in records})))
    return "\n\n".join(parts)


def _row(record: dict[str, Any]) -> str:
    aim = record["aim"]
    missed = aim is not None and record["ratio"] < aim
    cells = [
        f"`{record['name']}`",
        record["peer"],
        f"**{record['ratio']:.2f}**",
        f"{record['low']:.2f}–{record['high']:.2f}",
        "–" if aim is None else f"{aim:g}{' (missed)' if missed else ''}",
        _value(record["ours_seconds"], record.get("unit", "s")),
        _value(record["peer_seconds"], record.get("unit", "s")),
        str(record["runs"]),
    ]
    return f"| {' | '.join(cells)} |"


def _value(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.1f} {unit}"
    return f"{value:.1f} s" if value >= 1 else f"{value:.3f} s"


def _by_text(
    records: Iterable[dict[str, Any]], text_of: Callable[[dict[str, Any]], str]
) -> list[str]:
    """Return a list item for each text, with the benchmarks that share it."""
    names: dict[str, list[str]] = {}
    for record in records:
        names.setdefault(text_of(record), []).append(f"`{record['name']}`")
    return [f"- {', '.join(those)}: {text}" for text, those in names.items()]


def _note(record: dict[str, Any]) -> str:
    return str(record["note"])


def _machines(records: Sequence[dict[str, Any]]) -> str:
    """Return the machine of most results, and the exceptions."""
    counts = Counter(map(_machine, records))
    usual = counts.most_common(1)[0][0]
    others = [record for record in records if _machine(record) != usual]
    if not others:
        return f"Machine: {usual}."
    exceptions = (f"{item}." for item in _by_text(others, _machine))
    return "\n".join([f"Machine: {usual}. Exceptions:\n", *exceptions])


def _machine(record: dict[str, Any]) -> str:
    return "{cpu}, {cores} cores, {memory_gib} GiB".format(**record["machine"])


def _versions(record: dict[str, Any]) -> str:
    return (
        "Versions: Python {python}, Java {java}, Spark {spark}, Iceberg {iceberg}, "
        "dbt-core {dbt_core}, dbt-spark {dbt_spark}.".format(**record["machine"])
    )


if __name__ == "__main__":
    main()
