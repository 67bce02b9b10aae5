"""Limits of what one caller of the Flight SQL server may take from the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.errors.spark import StatementError

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.engines.session import Session

MB = 1_000_000


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
    def time_limit(self, session: Session, expire: Callable[[], None]) -> Iterator[None]:
        """Cancel the statements of a session that take too long.

        Args:
            session: runs one statement.
            expire: is called when the time is over, because a client that reads no more rows keeps
                its statement from ending.

        Raises:
            LimitExceeded: the statement took too long.
        """
        expired = threading.Event()

        def cancel() -> None:
            expired.set()
            expire()
            # A failure to cancel leaves the statement to its own end.
            with suppress(StatementError):
                session.interrupt()

        timer = threading.Timer(self.seconds, cancel)
        timer.daemon = True
        timer.start()
        try:
            yield
        except StatementError as error:
            if expired.is_set():
                raise LimitExceeded(
                    f"The statement took longer than {self.seconds:,} s, which this server allows."
                ) from error
            raise
        finally:
            timer.cancel()
            # A cancellation that is on its way must not meet the session's next statement.
            timer.join()


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
