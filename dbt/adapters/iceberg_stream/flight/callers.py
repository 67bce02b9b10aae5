"""Callers of the Flight SQL server: each token has its own catalog and Spark sessions."""

from __future__ import annotations

import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.flight.limits import Slots
from dbt.adapters.iceberg_stream.sessions.cursor import Handle

# The most callers whose sessions are kept, and for how many idle seconds.
MOST_CALLERS = 64
IDLE_SECONDS = 900.0


@dataclass
class Caller:
    """The owner of a token, with a catalog and sessions that no other caller uses.

    Attributes:
        catalog: the catalog, with the caller's token.
        open_handle: opens a session.
        slots: the statements that it may run at a time.
        used: time of the last call, by the monotonic clock.
        calls: number of running calls.
    """

    catalog: IcebergCatalog
    open_handle: Callable[[], Handle]
    slots: Slots
    used: float = 0.0
    calls: int = 0
    _idle: list[Handle] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def handle(self) -> Iterator[Handle]:
        """Provide a session for exclusive use."""
        with self._guard:
            handle = self._idle.pop() if self._idle else None
        if handle is None or not handle.session.lives():
            handle = self.open_handle()
        try:
            yield handle
        finally:
            if handle.reusable and handle.session.lives():
                with self._guard:
                    self._idle.append(handle)
            else:
                handle.session.close()

    def refresh(self, table: str) -> None:
        """Refresh Spark's caches of a table, if this caller uses Spark.

        Args:
            table: quoted name of the table.
        """
        with self._guard:
            used = bool(self._idle)
        if used:
            with self.handle() as handle:
                handle.session.refresh(table)

    def close(self) -> None:
        """Close the sessions and the catalog."""
        with self._guard:
            for handle in self._idle:
                handle.session.close()
            self._idle.clear()
        self.catalog.close()


class Callers:
    """Callers by their token; they share nothing. Thread-safe.

    Args:
        create: creates the caller of a token.
    """

    def __init__(self, create: Callable[[str], Caller]) -> None:
        self._create = create
        self._guard = threading.Lock()
        self._callers: OrderedDict[str, Caller] = OrderedDict()

    @contextmanager
    def calling(self, token: str) -> Iterator[Caller]:
        """Provide the caller of a token for the time of a call.

        Args:
            token: the caller's bearer token.
        """
        with self._guard:
            exists = token in self._callers
        # Outside the lock: a slow catalog must not block other callers.
        created = None if exists else self._create(token)
        surplus: list[Caller] = []
        with self._guard:
            caller = self._callers.get(token)
            if caller is None:
                caller = self._callers[token] = created or self._create(token)
            elif created is not None:
                # Another call of the same token was faster.
                surplus.append(created)
            caller.calls += 1
            self._callers.move_to_end(token)
            old = [self._callers.pop(t) for t, c in list(self._callers.items()) if self._is_old(c)]
        for idle_caller in (*old, *surplus):
            idle_caller.close()
        try:
            yield caller
        finally:
            with self._guard:
                caller.calls -= 1
                caller.used = time.monotonic()

    def _is_old(self, caller: Caller) -> bool:
        if caller.calls:
            return False
        return time.monotonic() - caller.used > IDLE_SECONDS or len(self._callers) > MOST_CALLERS

    def close(self) -> None:
        """Close all callers."""
        with self._guard:
            for caller in self._callers.values():
                caller.close()
            self._callers.clear()


def same_token(token: str, expected: str) -> bool:
    """Return whether two tokens are equal, in constant time.

    Args:
        token: the caller's token.
        expected: the server's token.
    """
    return hmac.compare_digest(token.encode(), expected.encode())
