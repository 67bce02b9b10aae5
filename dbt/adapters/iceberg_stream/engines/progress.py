"""Shows the progress of long statements: a live line in a terminal, otherwise log lines."""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Any

from dbt.adapters.iceberg_stream.errors.logger import Logger

QUIET_SECONDS = 5.0
LINE_EVERY_SECONDS = 30.0
BAR_WIDTH = 24

logger = Logger()


class Progress:
    """Watches and shows the progress of a connection's running statement.

    Nothing is shown for statements shorter than QUIET_SECONDS. Only one connection at a time has
    the live line, so that threads do not overwrite each other.

    Args:
        show: show the progress; otherwise only watch it.
    """

    _live_line = threading.Lock()

    def __init__(self, show: bool = True) -> None:
        self.tasks_run = threading.Event()
        self._show = show
        self._label = ""
        self._started = math.inf  # nothing runs
        self._last_line = 0.0
        self._live = False

    def start(self, label: str) -> None:
        """Begin a statement.

        Args:
            label: name of its model.
        """
        self.tasks_run.clear()
        self._label = label
        self._started = self._last_line = time.monotonic()

    def finish(self) -> None:
        """End the statement, and remove the live line."""
        self._started = math.inf
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._live = False
            self._live_line.release()

    def __call__(self, stages: Any, inflight_tasks: int, done: bool, **_: Any) -> None:
        """Handle Spark Connect's progress events; an exception here would end the statement."""
        if inflight_tasks:
            self.tasks_run.set()
        now = time.monotonic()
        if not self._show or done or not stages or now - self._started < QUIET_SECONDS:
            return
        text = describe(self._label, stages, inflight_tasks, now - self._started)
        if sys.stderr.isatty():
            self._live = self._live or self._live_line.acquire(blocking=False)
            if self._live:
                sys.stderr.write(f"\r\x1b[K{text}")
                sys.stderr.flush()
        elif now - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = now
            logger.info(text)


def describe(label: str, stages: Any, inflight_tasks: int, seconds: float) -> str:
    """Return one line: bar, completed and all tasks, running tasks, bytes read, time.

    Args:
        label: name of the model.
        stages: Spark's stages.
        inflight_tasks: number of running tasks.
        seconds: since the statement began.
    """
    total = sum(stage.num_tasks for stage in stages)
    completed = sum(stage.num_completed_tasks for stage in stages)
    read = sum(stage.num_bytes_read for stage in stages)
    filled = BAR_WIDTH * completed // max(total, 1)
    bar = "█" * filled + "·" * (BAR_WIDTH - filled)
    return (
        f"{label} {bar} {completed}/{total} tasks, {inflight_tasks} running, "
        f"{read / 1e6:,.0f} MB read, {seconds:,.0f} s"
    )
