"""A foreign writer that commits between any two calls of the catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog

CALLS = ("load", "metadata", "commit", "commit_all")


class Calls:
    """Counts the adapter's calls of its catalogs, and writes before one of them.

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
def foreign_writer(write: Callable[[], None], before: int | None) -> Iterator[Calls]:
    """Make a foreign write before one of the catalog's calls in a block."""
    calls = Calls(write, before)

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(IcebergCatalog, name)

        def call(self: IcebergCatalog, *args: Any, **options: Any) -> Any:
            calls.count(name)
            return original(self, *args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(IcebergCatalog, name, counted(name))
        yield calls
