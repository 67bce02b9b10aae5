"""Collects what the commits of one command changed, by table."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from dbt.adapters.iceberg_stream.builds.names import without_build
from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome
from dbt.adapters.iceberg_stream.tables.commit.table_change import TableChange


class Changes:
    """The changes of one dbt command, by the published names of its tables.

    dbt's threads share it.
    """

    def __init__(self) -> None:
        self._changes: dict[QualifiedName, TableChange] = {}
        self._lock = threading.Lock()

    def record(self, name: QualifiedName, outcome: Outcome) -> None:
        """Add a commit.

        Args:
            name: the table.
            outcome: the commit's.
        """
        with self._lock:
            self._changes.setdefault(without_build(name), TableChange()).add(outcome)

    def rename(self, name: QualifiedName, new_name: QualifiedName) -> None:
        """Follow a table that a model built under another name first.

        Args:
            name: the table's name.
            new_name: its new name.
        """
        with self._lock:
            if (change := self._changes.pop(without_build(name), None)) is not None:
                self._changes[without_build(new_name)] = change

    def get(self, name: QualifiedName) -> TableChange:
        """Return a copy of what the commits to a table changed so far.

        Args:
            name: the table.
        """
        with self._lock:
            return replace(self._changes.get(without_build(name), TableChange()))

    def mark_as_warned(self, name: QualifiedName) -> None:
        """Note that a table lost more rows than its model allows.

        Args:
            name: a table with a recorded commit.
        """
        with self._lock:
            self._changes[without_build(name)].is_warned = True

    def take(self) -> Mapping[QualifiedName, TableChange]:
        """Remove and return all changes, by table."""
        with self._lock:
            changes, self._changes = self._changes, {}
            return changes
