"""After a committed write: cached results are dropped, and the user's own hook is told.

Spark refreshes its cached plans by itself for each write that goes through it, whatever session
made them, and reads a table's metadata anew for every statement (`cache-enabled` is false).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from dbt.adapters.contracts.relation import RelationType

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.impl import IcebergStreamAdapter
    from dbt.adapters.iceberg_stream.response import IcebergStreamResponse

USER_HOOK = "iceberg_stream__on_write"


class WriteNotice:
    """Tells those who keep something about a relation that it has changed."""

    def __init__(self, adapter: IcebergStreamAdapter) -> None:
        self._adapter = adapter
        self._telling = threading.local()

    def after_write(self, response: IcebergStreamResponse) -> None:
        """Called once for each statement that changed a relation, hooks and operations included."""
        schema, identifier = (response.relation or "").rsplit(".", 1)
        self._adapter.connections.forget_results((schema, identifier))
        relation = self._adapter.Relation.create(
            database=self._adapter.lake.name,
            schema=schema,
            identifier=identifier,
            type=RelationType.Table,
        )
        if response.snapshot_id is not None:
            self._call_user_hook(relation, response.snapshot_id)

    def _call_user_hook(self, relation: Any, snapshot_id: int) -> None:
        resolver = self._adapter.get_macro_resolver()
        project = self._adapter.config.project_name
        if resolver is None or getattr(self._telling, "active", False):
            return
        if resolver.find_macro_by_name(USER_HOOK, project, None) is None:
            return
        # Writes of the hook itself do not call it again.
        self._telling.active = True
        try:
            arguments = {"relation": relation, "snapshot_id": snapshot_id}
            self._adapter.execute_macro(USER_HOOK, kwargs=arguments)
        finally:
            self._telling.active = False
