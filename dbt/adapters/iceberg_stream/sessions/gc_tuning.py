"""How often Python looks for garbage while a dbt command runs."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

# dbt keeps what it loads until it ends: its modules, the manifest, the graph. Python's collector
# goes over all of that again and again, at its defaults for a second in a command of five.
THRESHOLDS = (100_000, 20, 50)


def collect_rarely() -> None:
    """Take what is loaded so far out of the collector's sight, and let it look less often.

    Only where dbt is the program: a process that calls dbt keeps its own settings.
    """
    if Path(sys.argv[0]).stem == "dbt":
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
