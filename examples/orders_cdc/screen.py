"""Show a small table while the demo runs, redrawn in a terminal."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "iceberg_stream_"


class Screen:
    """Overwrites its last output in a terminal; in a file, it appends lines."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._drawn = 0

    def draw(self, header: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = ["", f"  {title}", ""]
        for row in (header, *rows):
            first, *others = (cell.rjust(w) for cell, w in zip(row, widths, strict=True))
            lines.append("  ".join(("", first.strip().ljust(widths[0]), *others)))
        if self.live and self._drawn:
            print(f"\033[{self._drawn}F\033[J", end="")
        print("\n".join(lines), flush=True)
        self._drawn = len(lines)


def metrics(address: str) -> dict[tuple[str, str], float]:
    """Return the service's metrics, by metric and model."""
    samples = {}
    for family in text_string_to_metric_families(_get(f"{address}/metrics")):
        for sample in family.samples:
            if sample.name.startswith(PREFIX):
                name = sample.name.removeprefix(PREFIX).removesuffix("_total")
                samples[name, sample.labels["model"]] = sample.value
    return samples


def states(address: str) -> dict[str, str]:
    """Return the state of each stream, by model name."""
    streams = json.loads(_get(f"{address}/health"))["streams"]
    return {name.rpartition(".")[2]: state for name, state in streams.items()}


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text
