"""Spark's two ways to run the queries of a session: with generated code, or interpreted.

For a few rows, generating and compiling code takes longer than all the rest of a query, and so do
the query stages of adaptive execution.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

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
