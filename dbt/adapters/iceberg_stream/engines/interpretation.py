"""Spark's two ways to run the queries of a session: with generated code, or interpreted.

For a few rows, generating and compiling code takes longer than all the rest of a query, and so do
the query stages of adaptive execution.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

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


class Interpretation:
    """Whether a session interprets its queries; it generates code at first.

    Args:
        configure: sets settings of the session.
        settings: returns those settings of the session that have one of the prefixes.
    """

    def __init__(
        self,
        configure: Callable[[Mapping[str, str]], None],
        settings: Callable[[tuple[str, ...]], Mapping[str, str]],
    ) -> None:
        self._configure = configure
        self._settings = settings
        self._is_on = False
        self._generated: Mapping[str, str] | None = None

    def switch(self, on: bool) -> None:
        """Interpret the next queries, or generate code for them.

        Args:
            on: whether they are interpreted.

        Raises:
            StatementError: the server does not answer.
        """
        if on == self._is_on:
            return
        if self._generated is None:
            self._generated = {**GENERATED, **self._settings(tuple(INTERPRETED))}
        self._configure(INTERPRETED if on else self._generated)
        self._is_on = on


class TimeLimit:
    """Interrupts a query that takes too long.

    Args:
        seconds: the most that it may take.
        interrupt: interrupts it.
    """

    def __init__(self, seconds: float, interrupt: Callable[[], object]) -> None:
        self.exceeded = False
        self._seconds = seconds
        self._interrupt = interrupt

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Run a query within the limit."""
        ended = threading.Event()
        threading.Thread(target=self._wait, args=(ended,), daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _wait(self, ended: threading.Event) -> None:
        seconds = self._seconds
        while not ended.wait(seconds):
            self.exceeded = True
            self._interrupt()
            # Spark does not notice an interrupt while it plans the query.
            seconds = AGAIN_SECONDS
