"""After a commit: drop the cached results of a table, and call the project's own hook.

Spark refreshes its cached plans by itself for each write that goes through it, whatever session
made them, and reads a table's metadata anew for every statement (`cache-enabled` is false).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.catalog.catalog import Name


@dataclass
class AfterCommit:
    """Refresh and drop what is cached of a table after a commit, and call the hook.

    Attributes:
        refresh_spark: has Spark read the table anew.
        forget_results: drops cached results of queries that read the table.
        call_hook: calls the project's hook, if there is one, with the table and the snapshot.
    """

    refresh_spark: Callable[[Name], None]
    forget_results: Callable[[Name], None]
    call_hook: Callable[[Name, int], None]
    _calling: threading.local = field(default_factory=threading.local)

    def of_our_own(self, name: Name, snapshot_id: int) -> None:
        """Act on a commit that Spark did not make."""
        self.refresh_spark(name)
        self.of_spark(name, snapshot_id)

    def of_spark(self, name: Name, snapshot_id: int | None) -> None:
        """Act on a statement that changed a relation in Spark; a view has no snapshot."""
        self.forget_results(name)
        # Writes of the hook itself do not call it again.
        if snapshot_id is None or getattr(self._calling, "active", False):
            return
        self._calling.active = True
        try:
            self.call_hook(name, snapshot_id)
        finally:
            self._calling.active = False
