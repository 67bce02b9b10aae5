"""Collects what the commits of one command changed, by table."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from dbt.adapters.iceberg_stream.catalog.catalog import Name
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome
from dbt.adapters.iceberg_stream.tables.commit.table_change import TableChange


class Changes:
    """The changes of one dbt command. dbt's threads share it."""

    def __init__(self) -> None:
        self._changes: dict[Name, TableChange] = {}
        self._lock = threading.Lock()

    def record(self, name: Name, outcome: Outcome) -> None:
        """Add a commit.

        Args:
            name: namespace and identifier of the table.
            outcome: the commit's.
        """
        with self._lock:
            self._changes.setdefault(name, TableChange()).add(outcome)

    def rename(self, name: Name, new_name: Name) -> None:
        """Follow a table that a model built under another name first.

        Args:
            name: the table's name.
            new_name: its new name.
        """
        with self._lock:
            if name in self._changes:
                self._changes[new_name] = self._changes.pop(name)

    def get(self, name: Name) -> TableChange:
        """Return a copy of what the commits to a table changed so far.

        Args:
            name: namespace and identifier of the table.
        """
        with self._lock:
            return replace(self._changes.get(name, TableChange()))

    def mark_as_warned(self, name: Name) -> None:
        """Note that a table lost more rows than its model allows.

        Args:
            name: namespace and identifier of a table with a recorded commit.
        """
        with self._lock:
            self._changes[name].is_warned = True

    def take(self) -> Mapping[Name, TableChange]:
        """Remove and return all changes, by table."""
        with self._lock:
            changes, self._changes = self._changes, {}
            return changes
