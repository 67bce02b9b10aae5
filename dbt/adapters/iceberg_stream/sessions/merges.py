"""The turns of threads that merge into the same table."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName


class Merges:
    """Lets threads merge into the same table one after the other.

    Concurrent batches of a microbatch model compute their rows at the same time. Their merges would
    change the same files, and fail.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: defaultdict[QualifiedName, threading.Lock] = defaultdict(threading.Lock)

    @contextmanager
    def turn(self, table: QualifiedName) -> Iterator[None]:
        """Wait until no other thread merges into a table.

        Args:
            table: the table.
        """
        with self._guard:
            lock = self._locks[table]
        with lock:
            yield
