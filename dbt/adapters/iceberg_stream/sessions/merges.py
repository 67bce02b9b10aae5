"""The turns of threads that merge into the same table."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import Name


class Merges:
    """Lets threads merge into the same table one after the other.

    Concurrent batches of a microbatch model compute their rows at the same time. Their merges would
    change the same files, and fail.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: defaultdict[Name, threading.Lock] = defaultdict(threading.Lock)

    @contextmanager
    def turn(self, table: Name) -> Iterator[None]:
        """Wait until no other thread merges into a table.

        Args:
            table: namespace and identifier.
        """
        with self._guard:
            lock = self._locks[table]
        with lock:
            yield
