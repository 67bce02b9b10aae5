"""Who calls the Flight SQL server: each token has a catalog and a Spark session of its own."""

from __future__ import annotations

import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.sessions.cursor import Handle

# Callers that are remembered, and for how many idle seconds.
MOST_CALLERS = 64
IDLE_SECONDS = 900.0


@dataclass
class Caller:
    """The owner of a token, and the sessions that nobody else gets."""

    catalog: IcebergCatalog
    open_handle: Callable[[], Handle]
    used: float = 0.0
    calls: int = 0
    _idle: list[Handle] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def handle(self) -> Iterator[Handle]:
        """A session that nobody else uses meanwhile."""
        with self._guard:
            handle = self._idle.pop() if self._idle else None
        if handle is None or not handle.session.lives():
            handle = self.open_handle()
        try:
            yield handle
        finally:
            if handle.reusable:
                with self._guard:
                    self._idle.append(handle)
            else:
                handle.session.close()

    def refresh(self, table: str) -> None:
        """Have Spark forget what it has cached of a table, if this caller uses Spark."""
        with self._guard:
            used = bool(self._idle)
        if used:
            with self.handle() as handle:
                handle.session.run(f"refresh table {table}")

    def close(self) -> None:
        with self._guard:
            for handle in self._idle:
                handle.session.close()
            self._idle.clear()
        self.catalog.close()


class Callers:
    """Callers by their token; nothing of one is ever given to another. Thread-safe."""

    def __init__(self, make: Callable[[str], Caller]) -> None:
        self._make = make
        self._guard = threading.Lock()
        self._known: OrderedDict[str, Caller] = OrderedDict()

    @contextmanager
    def calling(self, token: str) -> Iterator[Caller]:
        """The caller with this token, who is kept for as long as the call takes."""
        with self._guard:
            known = token in self._known
        # Outside of the lock: a slow catalog must not hold up everybody.
        made = None if known else self._make(token)
        with self._guard:
            caller = self._known.get(token)
            if caller is None:
                caller = self._known[token] = made or self._make(token)
            caller.calls += 1
            self._known.move_to_end(token)
            old = [self._known.pop(t) for t, c in list(self._known.items()) if self._is_old(c)]
        for gone in old:
            gone.close()
        try:
            yield caller
        finally:
            with self._guard:
                caller.calls -= 1
                caller.used = time.monotonic()

    def _is_old(self, caller: Caller) -> bool:
        if caller.calls:
            return False
        return time.monotonic() - caller.used > IDLE_SECONDS or len(self._known) > MOST_CALLERS

    def close(self) -> None:
        with self._guard:
            for caller in self._known.values():
                caller.close()
            self._known.clear()


def same_token(given: str, expected: str) -> bool:
    """Whether a token is the server's own, without telling by the time it takes."""
    return hmac.compare_digest(given.encode(), expected.encode())
