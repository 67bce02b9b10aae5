"""After a commit: drops cached results of a table, records what changed, calls the project's hook.

Spark itself refreshes the cached plans of all sessions after each of its writes, and reads a
table's metadata again for every statement (`cache-enabled` is false).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.catalog import Name
from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome


@dataclass
class AfterCommit:
    """Does what has to follow each commit to a table.

    Attributes:
        refresh_spark: refreshes Spark's caches of tables, each an argument.
        forget_results: drops cached results of queries that read a table.
        record: records what a commit changed in a table.
        call_hook: calls the project's hook, if there is one, with the table, snapshot id and
            branch.
    """

    refresh_spark: Callable[..., None]
    forget_results: Callable[[QualifiedName], None]
    record: Callable[[QualifiedName, Outcome], None]
    call_hook: Callable[[QualifiedName, int, str | None], None]
    _calling: threading.local = field(default_factory=threading.local)

    def on_adapter_commit(self, name: QualifiedName, outcome: Outcome) -> None:
        """Handle a commit by the adapter itself.

        Args:
            name: the table.
            outcome: the commit's.
        """
        self.refresh_spark(name)
        self.on_spark_commit(name, outcome)

    def on_spark_commit(self, name: QualifiedName, outcome: Outcome | None) -> None:
        """Handle a statement by which Spark changed a table or view.

        Args:
            name: the relation.
            outcome: the commit's; None for a view.
        """
        self.forget_results(name)
        if outcome is None:
            return
        self.record(name, outcome)
        self._call_hook(name, outcome.snapshot_id, outcome.branch)

    def on_publication(self, tables: Mapping[Name, int], views: Iterable[Name]) -> None:
        """Handle the publication of a build, whose commits were recorded when it was staged.

        Args:
            tables: the published tables and their snapshots' ids.
            views: the published views.

        Raises:
            DbtRuntimeError: the hook failed for a table; it was called for the others, too.
        """
        if tables:
            self.refresh_spark(*tables)
        for name in (*tables, *views):
            self.forget_results(name)
        errors = []
        for name, snapshot_id in tables.items():
            try:
                self._call_hook(name, snapshot_id)
            except DbtRuntimeError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _call_hook(self, name: QualifiedName, snapshot_id: int, branch: str | None = None) -> None:
        # Writes by the hook itself must not call it again.
        if getattr(self._calling, "active", False):
            return
        self._calling.active = True
        try:
            self.call_hook(name, snapshot_id, branch)
        finally:
            self._calling.active = False
