"""Cancels the running statement of a session reliably."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.spark import StatementError

# Seconds to wait for the first tasks of a statement.
TASKS_SECONDS = 5.0
# Seconds from the request to cancel until the statement must have ended.
GRACE = 10.0
# Seconds to wait for the server's response to the request: a dead network never answers.
RESPONSE_SECONDS = 5.0
ROUNDS = 6
POLL_SECONDS = 0.2

logger = Logger()


class Cancellation:
    """Cancels the running statement of one session.

    Spark interrupts a statement's thread once. While a new engine analyzes its first statement,
    class loading swallows the interrupt, and the statement continues. So the request is sent when
    tasks run, which react to it, or after TASKS_SECONDS. If the statement has not ended GRACE
    later, the client disconnects, and the server is stopped if no other process uses it.

    Args:
        session: the session.
        tasks_run: is set when tasks of the statement run.
        ended: is set when the statement has ended.
    """

    def __init__(
        self, session: Session, tasks_run: threading.Event, ended: threading.Event
    ) -> None:
        self._session = session
        self._tasks_run = tasks_run
        self._ended = ended

    def run(self, on_lost: Callable[[], None]) -> None:
        """Cancel the statement, and wait for its end.

        Args:
            on_lost: is called if the statement does not end.
        """
        deadline = time.monotonic() + TASKS_SECONDS
        while time.monotonic() < deadline and not self._tasks_run.is_set():
            if self._ended.wait(POLL_SECONDS):
                return
        # A statement may take long to arrive at a busy server.
        for _ in range(ROUNDS):
            canceled = self._request()
            if canceled is not False or self._ended.is_set():
                break
        if canceled is False or self._ended.wait(GRACE):
            return  # nothing is running on the server
        logger.warning(
            "Spark did not end a canceled statement. If other processes use the server, the "
            "statement may still finish and commit."
        )
        on_lost()
        with contextlib.suppress(StatementError):
            self._session.abandon()

    def _request(self) -> bool | None:
        """Send requests until one cancels something, because the statement may arrive late.

        Returns:
            Whether something was canceled within GRACE seconds; None if the server did not answer.
        """
        deadline = time.monotonic() + GRACE
        canceled: bool | None = None
        while time.monotonic() < deadline and not self._ended.wait(POLL_SECONDS):
            canceled = self._interrupt()
            if canceled:
                return True
        return canceled

    def _interrupt(self) -> bool | None:
        responses: list[bool] = []

        def interrupt() -> None:
            with contextlib.suppress(StatementError):
                responses.append(self._session.interrupt())

        thread = threading.Thread(target=interrupt, daemon=True)
        thread.start()
        thread.join(RESPONSE_SECONDS)
        return responses[0] if responses else None
