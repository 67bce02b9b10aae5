"""Reduces how often Python's garbage collector runs during a dbt command."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# dbt keeps its modules, the manifest and the graph until it ends. With Python's defaults the
# collector scans all of them repeatedly, which takes one second of a five-second command.
THRESHOLDS = (100_000, 20, 50)


def reduce_gc_frequency() -> None:
    """Exclude loaded objects from garbage collection, and collect less often.

    Only if dbt is the program: a process that calls dbt keeps its own settings.
    """
    if Path(sys.argv[0]).stem == "dbt":
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)


@contextmanager
def reduced_gc() -> Iterator[None]:
    """Do the same for a while, for a command that keeps most of what it loads."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
