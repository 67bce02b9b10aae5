"""What a command runs after it has published its build."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.errors.logger import Logger

logger = Logger()


class Deferred:
    """Actions that wait for a publication. Thread-safe.

    Args:
        build: name of the build.
    """

    def __init__(self, build: str) -> None:
        self._build = build
        self._lock = threading.Lock()
        self._actions: list[Callable[[], object]] = []
        self._calls: list[str] = []

    def add(self, action: Callable[[], object], sql: str | None = None) -> None:
        """Run an action after the build is published; not at all if it is not.

        Args:
            action: the action.
            sql: the statement that it runs, for users to run it themselves.
        """
        with self._lock:
            self._actions.append(action)
            if sql is not None:
                self._calls.append(sql.strip())

    def run(self, first: Callable[[], object]) -> None:
        """Run the actions; an error does not keep the rest from running.

        Args:
            first: runs before them.

        Raises:
            BuildError: some failed.
        """
        errors = []
        for action in (first, *self._actions):
            try:
                action()
            except (DbtRuntimeError, OSError) as error:
                errors.append(error)
        if errors:
            raise BuildError(
                f"The build `{self._build}` is published, but what runs after it failed: "
                + "\n".join(map(str, errors))
            ) from errors[0]

    def warn_of_calls(self) -> None:
        """Tell the user which statements do not run, because the build is not published."""
        if self._calls:
            logger.warning(
                f"Hooks call procedures for tables that the build `{self._build}` stages. They "
                "were not run. Run them after the build is published:\n" + ";\n".join(self._calls)
            )
            self._calls.clear()
