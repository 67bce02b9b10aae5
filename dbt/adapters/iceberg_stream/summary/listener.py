"""Prints the build summary when dbt has finished running the nodes of a command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from dbt_common.events.functions import fire_event
from dbt_common.events.types import Formatting, Note

from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.summary.changes import Changes
from dbt.adapters.iceberg_stream.summary.text import (
    CHANGED,
    FAILED,
    SKIPPED,
    UNCHANGED,
    Line,
    as_json,
    as_text,
)

logger = Logger()

BUILT = ("model", "seed", "snapshot")
# These have no rows of their own.
WITHOUT_ROWS = ("view", "ephemeral")
FAILURES = ("error", "fail", "partial success", "runtime error")


class BuildSummary:
    """Listens to dbt's events, and prints what the command changed.

    dbt reports each ended node from its thread. `FinishedRunningStats` comes once, when all have
    ended, in commands that write only.

    Args:
        listen: registers a callback for dbt's events.
        changes: what the command committed.
        catalog: name of the profile's own catalog, which names of tables leave out.
        in_json: print JSON objects, for `--log-format json`.
    """

    def __init__(
        self,
        listen: Callable[[Callable[[Any], None]], None],
        changes: Changes,
        catalog: str,
        in_json: bool = False,
    ) -> None:
        self._changes = changes
        self._catalog = catalog
        self._in_json = in_json
        # The last event of each node: a microbatch model also reports its batches.
        self._ended: dict[str, Any] = {}
        self._lock = threading.Lock()
        listen(self._on_event)

    def _on_event(self, event: Any) -> None:
        if event.info.name == "NodeFinished":
            with self._lock:
                self._ended[str(event.data.node_info.unique_id)] = event.data
        elif event.info.name == "FinishedRunningStats":
            try:
                self._print()
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # Figures of an unexpected form; the tables are written, so the command goes on.
                logger.info(f"The build summary cannot be printed: {error!r}")

    def _print(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, {}
        lines = list(self._lines(ended))
        if all(line.result in (FAILED, SKIPPED) and line.change is None for line in lines):
            return
        if self._in_json:
            for line in lines:
                fire_event(Note(msg=as_json(line)))
            return
        fire_event(Formatting(""))
        for text in as_text(lines):
            fire_event(Note(msg=text))

    def _lines(self, ended: dict[str, Any]) -> Iterator[Line]:
        """Return the nodes in the order in which they ended, and other tables that they changed."""
        changes = dict(self._changes.take())
        if not any(data.node_info.resource_type in BUILT for data in ended.values()):
            return
        for node, data in ended.items():
            relation = data.node_info.node_relation
            name = self._name(relation)
            # Also of tests: what they store of failing rows is no line of its own.
            change = changes.pop(name, None)
            if data.node_info.resource_type not in BUILT:
                continue
            result = _result(str(data.run_result.status), change is not None)
            if result == UNCHANGED and data.node_info.materialized in WITHOUT_ROWS:
                continue
            yield Line(".".join(name), result, node, data.run_result.execution_time, change)
        for name, change in changes.items():
            yield Line(".".join(name), CHANGED, change=change)

    def _name(self, relation: Any) -> QualifiedName:
        is_own = (relation.database or "").lower() in ("", self._catalog.lower())
        name = (relation.schema, relation.alias)
        return name if is_own else (relation.database, *name)


def _result(status: str, is_changed: bool) -> str:
    if status == "skipped":
        return SKIPPED
    if status in FAILURES:
        return FAILED
    return CHANGED if is_changed else UNCHANGED
