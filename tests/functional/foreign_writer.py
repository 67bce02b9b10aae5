"""A foreign writer that commits between any two calls of the catalog, or of Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.sql_client import SqlClient

OF_CATALOG = {IcebergCatalog: ("load", "metadata", "commit", "commit_all")}
# Statements, too.
ALL = {**OF_CATALOG, SqlClient: ("run", "stage", "rows")}


class Calls:
    """Counts the adapter's calls, and writes before one of them.

    Args:
        write: the foreign write; its own calls do not count.
        before: number of the call before which it is made, from 0; None for never.
    """

    def __init__(self, write: Callable[[], None], before: int | None) -> None:
        self.write, self.before = write, before
        self.names: list[str] = []
        self._lock = threading.Lock()

    def count(self, name: str) -> None:
        with self._lock:
            self.names.append(name)
            if len(self.names) - 1 != self.before:
                return
            self.before = None
        self.write()

    @property
    def has_written(self) -> bool:
        return self.before is None


@contextmanager
def foreign_writer(
    write: Callable[[], None],
    before: int | None,
    counted: Mapping[type, Sequence[str]] = OF_CATALOG,
) -> Iterator[Calls]:
    """Make a foreign write before one of the calls in a block.

    Args:
        write: the foreign write.
        before: number of the call, as `Calls` has it.
        counted: which methods are calls.
    """
    calls = Calls(write, before)

    def counting(owner: type, name: str) -> Callable[..., Any]:
        original = getattr(owner, name)

        def call(self: Any, *args: Any, **options: Any) -> Any:
            calls.count(name)
            return original(self, *args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, names in counted.items():
            for name in names:
                patch.setattr(owner, name, counting(owner, name))
        yield calls
