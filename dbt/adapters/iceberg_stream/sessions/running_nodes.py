"""What the nodes of a command do at the moment, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dbt.adapters.iceberg_stream.sql.reads import NameParts
from dbt.adapters.iceberg_stream.tables.commit.read_set import ReadSet


class RunningNodes:
    """The nodes whose materializations run, and what ephemeral models have queried.

    Attributes:
        read_as: returns under which name a node reads its table, from its catalog, namespace and
            published identifier; a build may stage the table first.
    """

    def __init__(self) -> None:
        self.read_as: Callable[[str, str, str], NameParts] = lambda *name: name
        self._materializing: dict[int, str] = {}
        self._ephemeral: dict[int, list[str]] = {}
        self._queried: dict[str, list[ReadSet]] = {}

    def begin_materialization(self, node: str, ephemeral: Iterable[str]) -> None:
        """Note that what runs now in this thread are statements of a node's materialization.

        Args:
            node: its unique id.
            ephemeral: unique ids of the ephemeral models whose queries are part of the node's.
        """
        self._materializing[threading.get_ident()] = node
        self._ephemeral[threading.get_ident()] = list(ephemeral)

    def begin_hook(self) -> None:
        """Begin a hook: queries of this thread now belong to it."""
        self._materializing.pop(threading.get_ident(), None)

    def end_hook(self, node: str) -> None:
        """End a hook of a node.

        Args:
            node: its unique id.
        """
        self._materializing[threading.get_ident()] = node

    def end(self) -> None:
        """End the node of this thread."""
        self._materializing.pop(threading.get_ident(), None)
        self._ephemeral.pop(threading.get_ident(), None)

    def clear(self) -> None:
        """Forget the nodes of a command."""
        self._queried.clear()

    def is_materializing(self, node: str) -> bool:
        """Return whether the statements of this thread are those of a node's materialization.

        Args:
            node: its unique id.
        """
        return self._materializing.get(threading.get_ident()) == node

    def note_ephemeral(self, node: str, read_set: ReadSet) -> None:
        """Note what a query of an ephemeral model has read, which dbt may compile as a node.

        Args:
            node: the model's unique id.
            read_set: what the query has read.
        """
        self._queried.setdefault(node, []).append(read_set)

    def queried_by_ephemeral(self) -> list[ReadSet]:
        """Return what was queried by the ephemeral models in the query of this thread's node.

        Returns:
            The read sets; none while a hook runs.
        """
        if threading.get_ident() not in self._materializing:
            return []
        models = self._ephemeral.get(threading.get_ident(), [])
        return [read_set for model in models for read_set in self._queried.get(model, [])]
