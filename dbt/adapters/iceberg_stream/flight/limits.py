"""Limits of what one caller of the Flight SQL server may take from the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.errors.spark import StatementError

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.engines.session import Session

MB = 1_000_000
# Seconds from one look at whether a client still waits to the next.
POLL_SECONDS = 0.5


class LimitExceeded(ValueError):
    """A statement or its caller has reached a limit of the server."""


@dataclass(frozen=True)
class Limits:
    """The limits of each caller.

    Attributes:
        statements: how many run at a time.
        seconds: how long one may take, its rows included.
        result_bytes: size of the rows of one, as Arrow.
    """

    statements: int = 8
    seconds: int = 3600
    result_bytes: int = 10_000 * MB

    def require_size(self, result_bytes: int) -> None:
        """Require that a result is not too large.

        Args:
            result_bytes: its size so far.

        Raises:
            LimitExceeded: it is too large.
        """
        if result_bytes > self.result_bytes:
            raise LimitExceeded(
                f"The result is larger than {self.result_bytes // MB:,} MB, which this server "
                "allows. Select fewer rows or columns, or read the table's files."
            )

    @contextmanager
    def time_limit(
        self,
        session: Session,
        expire: Callable[[], None],
        is_canceled: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Cancel a statement that takes too long, or whose client is gone.

        Args:
            session: runs one statement.
            expire: is called when the time is over, because a client that reads no more rows keeps
                its statement from ending.
            is_canceled: returns whether the client has canceled the statement, or is gone.

        Raises:
            LimitExceeded: the statement took too long.
        """
        ended, expired = threading.Event(), threading.Event()

        def watch() -> None:
            deadline = time.monotonic() + self.seconds
            while not ended.wait(min(POLL_SECONDS, max(deadline - time.monotonic(), 0))):
                is_over = time.monotonic() >= deadline
                if is_over:
                    expired.set()
                    expire()
                if is_over or is_canceled():
                    # A failure to cancel leaves the statement to its own end.
                    with suppress(StatementError):
                        session.interrupt()
                if is_over:
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        except StatementError as error:
            if expired.is_set():
                raise LimitExceeded(
                    f"The statement took longer than {self.seconds:,} s, which this server allows."
                ) from error
            raise
        finally:
            ended.set()
            # A cancellation that is on its way must not meet the session's next statement.
            thread.join()


class Slots:
    """The statements that a caller may run at a time. Thread-safe.

    Args:
        limits: the caller's limits.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.statements
        self._free = threading.Semaphore(limits.statements)

    @contextmanager
    def taken(self) -> Iterator[Callable[[], None]]:
        """Take a slot for the time of a statement; yields what gives it back earlier.

        Raises:
            LimitExceeded: all are taken.
        """
        if not self._free.acquire(blocking=False):
            raise LimitExceeded(
                f"{self._most} statements of this caller are running, which is the most that this "
                "server allows. Send the statement again when one of them has ended."
            )
        guard, released = threading.Lock(), threading.Event()

        def release() -> None:
            with guard:
                if not released.is_set():
                    released.set()
                    self._free.release()

        try:
            yield release
        finally:
            release()
