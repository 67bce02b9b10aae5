"""After a commit: drops the cached results of a table, and calls the project's hook.

Spark itself refreshes the cached plans of all sessions after each of its writes, and reads a
table's metadata again for every statement (`cache-enabled` is false).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.catalog.catalog import Name


@dataclass
class AfterCommit:
    """Invalidates caches of a table after a commit, and calls the project's hook.

    Attributes:
        refresh_spark: refreshes Spark's caches of a table.
        forget_results: drops cached results of queries that read a table.
        call_hook: calls the project's hook, if there is one, with the table and the snapshot id.
    """

    refresh_spark: Callable[[Name], None]
    forget_results: Callable[[Name], None]
    call_hook: Callable[[Name, int], None]
    _calling: threading.local = field(default_factory=threading.local)

    def on_adapter_commit(self, name: Name, snapshot_id: int) -> None:
        """Handle a commit by the adapter itself.

        Args:
            name: namespace and identifier of the table.
            snapshot_id: the committed snapshot's.
        """
        self.refresh_spark(name)
        self.on_spark_commit(name, snapshot_id)

    def on_spark_commit(self, name: Name, snapshot_id: int | None) -> None:
        """Handle a statement by which Spark changed a table or view.

        Args:
            name: namespace and identifier of the relation.
            snapshot_id: the committed snapshot's; None for a view.
        """
        self.forget_results(name)
        # Writes by the hook itself must not call it again.
        if snapshot_id is None or getattr(self._calling, "active", False):
            return
        self._calling.active = True
        try:
            self.call_hook(name, snapshot_id)
        finally:
            self._calling.active = False
