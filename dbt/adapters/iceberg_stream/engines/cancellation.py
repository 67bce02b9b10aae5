"""Cancel the statement of one session, for sure."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from dbt.adapters.events.logging import AdapterLogger

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError

# Until the first tasks of a statement run, seconds.
PATIENCE = 5.0
# From the request to cancel to the end of the statement, seconds.
GRACE = 10.0
# Until the server has answered the request itself: a dead network never does.
ANSWER = 5.0
ROUNDS = 6
PAUSE = 0.2

logger = AdapterLogger("Iceberg_Stream")


class Cancellation:
    """Spark interrupts the thread of a statement, and does so once.

    While a new engine analyzes its first statement, what it loads swallows the interrupt, and the
    statement goes on. So it is sent when tasks run, where it is heeded, or after PATIENCE. If the
    statement has not ended GRACE later, its server is left, and stopped if nobody else uses it.
    """

    def __init__(
        self, session: Session, tasks_run: threading.Event, ended: threading.Event
    ) -> None:
        self._session = session
        self._tasks_run = tasks_run
        self._ended = ended

    def run(self, on_lost: Callable[[], None]) -> None:
        """Cancel and wait for the end; `on_lost` is called if it does not come."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not self._tasks_run.is_set():
            if self._ended.wait(PAUSE):
                return
        # A statement that is on its way to a busy server may take long to arrive.
        for _ in range(ROUNDS):
            heeded = self._request()
            if heeded is not False or self._ended.is_set():
                break
        if heeded is False or self._ended.wait(GRACE):
            return  # nothing runs on the server, or not any more
        logger.warning(
            "Spark does not end a canceled statement. It is left alone; on a server of others it "
            "may still finish and commit."
        )
        on_lost()
        with contextlib.suppress(StatementError):
            self._session.abandon()

    def _request(self) -> bool | None:
        """Ask until there is something to cancel, for it may just be on its way.

        False: there was nothing for GRACE seconds. None: the server did not answer.
        """
        deadline = time.monotonic() + GRACE
        canceled: bool | None = None
        while time.monotonic() < deadline and not self._ended.wait(PAUSE):
            canceled = self._interrupt()
            if canceled:
                return True
        return canceled

    def _interrupt(self) -> bool | None:
        answers: list[bool] = []

        def ask() -> None:
            with contextlib.suppress(StatementError):
                answers.append(self._session.interrupt())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(ANSWER)
        return answers[0] if answers else None
