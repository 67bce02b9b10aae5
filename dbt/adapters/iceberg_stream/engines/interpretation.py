"""Spark's two ways to run the queries of a session: with generated code, or interpreted.

For a few rows, generating and compiling code takes longer than all the rest of a query, and so do
the query stages of adaptive execution.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

# Spark runs its own SQL tests with these settings, too, and expects the same rows.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # Only adaptive execution merges partitions that are too many.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1)),
}
# Spark's defaults of these settings.
GENERATED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "200",
}
# Few rows may still take long to compute, which generated code does several times faster.
MOST_SECONDS = 4.0
AGAIN_SECONDS = 1.0


class SessionSettings(Protocol):
    """The settings of a session."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """Set several of them."""

    def settings(self, prefixes: tuple[str, ...]) -> Mapping[str, str]:
        """Return those that have one of the prefixes."""


class Interpretation:
    """Whether a session interprets its queries; it generates code at first."""

    def __init__(self) -> None:
        self._is_on = False
        self._generated: Mapping[str, str] | None = None

    def switch(self, session: SessionSettings, on: bool) -> None:
        """Interpret the next queries, or generate code for them.

        Args:
            session: the session.
            on: whether they are interpreted.

        Raises:
            StatementError: the server does not answer.
        """
        if on == self._is_on:
            return
        if self._generated is None:
            self._generated = {**GENERATED, **session.settings(tuple(INTERPRETED))}
        session.configure(INTERPRETED if on else self._generated)
        self._is_on = on


class RunningTasks:
    """Counts the running tasks of a session, as Spark Connect reports them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, inflight_tasks: int, **_: Any) -> None:
        """Handle an event."""
        self.count = inflight_tasks


class TimeLimit:
    """Interrupts a query that takes too long, but not while Spark plans it.

    Planning takes as long with generated code, and an interrupt may be lost in it.

    Args:
        seconds: the most that it may take.
        tasks: the tasks of its session.
        interrupt: interrupts it.
    """

    def __init__(
        self, seconds: float, tasks: RunningTasks, interrupt: Callable[[], object]
    ) -> None:
        self.exceeded = False
        self._seconds = seconds
        self._tasks = tasks
        self._interrupt = interrupt

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Run a query within the limit."""
        self._tasks.count = 0
        ended = threading.Event()
        threading.Thread(target=self._wait, args=(ended,), daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _wait(self, ended: threading.Event) -> None:
        seconds = self._seconds
        while not ended.wait(seconds):
            if self._tasks.count:
                self.exceeded = True
                self._interrupt()
            seconds = AGAIN_SECONDS
