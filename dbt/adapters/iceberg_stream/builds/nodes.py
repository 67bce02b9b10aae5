"""The nodes of one command of a build: which it is to run, and how those ended."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timezone

from dbt.adapters.iceberg_stream.builds.commands import CommandRecord, unresolved
from dbt.adapters.iceberg_stream.catalog.catalog import Name

# Statuses after which a build is not published.
FAILURES = {"error", "fail", "skipped", "runtime error", "partial success"}
# Nodes that dbt skips without a failure.
UNCHECKED = ("exposure.", "saved_query.")
# Before the statement of a hook, which has no id of its own.
HOOK = "operation.hook."


class CommandNodes:
    """The nodes of a command, by dbt's unique ids.

    Args:
        command: dbt's id of the command.
        nodes: returns the nodes that the command is to run, and all nodes of the project.
    """

    def __init__(
        self, command: str, nodes: Callable[[], tuple[Collection[str], Collection[str]]]
    ) -> None:
        self.command = command
        self._all = nodes
        # Whether those that have ended failed, and how many of a node run: itself, and its batches.
        self._ended: dict[str, bool] = {}
        self._running: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def have_run(self) -> bool:
        """Return whether any node has ended that is not a hook or an operation."""
        return any(not node.startswith("operation.") for node in self._ended)

    def begin(self, node: str) -> bool:
        """Note that a node, or a batch of it, begins; return whether it is the first of all."""
        with self._lock:
            is_first = not self._running
            self._running[node] += 1
            return is_first

    def end(self, node: str, status: str) -> None:
        """Note that a node, or a batch of it, has ended.

        Args:
            node: its id.
            status: dbt's status of it.
        """
        with self._lock:
            self._running[node] -= 1
            # A batch of a model has the model's id.
            if self._running[node] <= 0:
                self._ended[node] = status in FAILURES and not node.startswith(UNCHECKED)

    def record(
        self,
        has_ended: bool,
        others: Iterable[CommandRecord] = (),
        relations: Iterable[Name] = (),
    ) -> CommandRecord:
        """Return the record of this command.

        Args:
            has_ended: whether it has ended.
            others: the records of the other commands, oldest first.
            relations: all relations of the build.
        """
        with self._lock:
            ended = dict(self._ended)
        selected, known = map(set, self._all())
        failed = {node for node, has_failed in ended.items() if has_failed}
        planned = {n for n in selected - ended.keys() if not n.startswith(UNCHECKED)}
        if has_ended:
            # Those that `--fail-fast` has kept from running.
            failed, planned = failed | planned if failed else failed, set()

        def is_resolved(node: str) -> bool:
            if node.startswith(HOOK):
                return has_ended  # each command runs the hooks that the project has
            return ended.get(node) is False or (bool(known) and node not in known)

        unsolved = {*itertools.chain(*unresolved(others))} - failed - planned
        return CommandRecord(
            command=self.command,
            at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            has_ended=has_ended,
            failed=tuple(sorted(failed)),
            planned=tuple(sorted(planned)),
            resolved=tuple(sorted(filter(is_resolved, unsolved))),
            relations=tuple(sorted(relations)),
        )
