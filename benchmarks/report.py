"""Fills the tables of docs/performance.md from the result files: `python -m benchmarks.report`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .harness import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEADER = (
    "| benchmark | peer | ratio | low–high | aim | ours | peer's | runs | what is measured |\n"
    "|---|---|--:|--:|--:|--:|--:|--:|---|"
)
EMPTY = "No results yet: `make bench` writes them."


def main() -> None:
    """Replace what stands between the two markers."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    PAGE.write_text(f"{before}{BEGIN}\n\n{render(records)}\n\n{END}{after}")


def render(records: list[dict[str, Any]]) -> str:
    """A table for each area, and the machines the figures come from."""
    if not records:
        return EMPTY
    parts = []
    for area in sorted({record["area"] for record in records}):
        rows = [_row(record) for record in records if record["area"] == area]
        parts.append("\n".join([f"### {area}\n", HEADER, *rows]))
    parts.append("\n".join(_machines(records)))
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
        _seconds(record["ours_seconds"]),
        _seconds(record["peer_seconds"]),
        str(record["runs"]),
        record["note"],
    ]
    return f"| {' | '.join(cells)} |"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value:.3f} s"


def _machines(records: Iterable[dict[str, Any]]) -> list[str]:
    machines = {json.dumps(record["machine"], sort_keys=True) for record in records}
    return [
        "Measured on {cpu}, {cores} cores, {memory_gib} GiB; Python {python}, Java {java}, "
        "Spark {spark}, Iceberg {iceberg}, dbt-core {dbt_core}, dbt-spark {dbt_spark}.".format(
            **json.loads(machine)
        )
        for machine in sorted(machines)
    ]


if __name__ == "__main__":
    main()
