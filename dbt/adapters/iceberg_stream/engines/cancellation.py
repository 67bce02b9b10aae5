"""Cancel the statement of one session, for sure."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from dbt.adapters.events.logging import AdapterLogger

from dbt.adapters.iceberg_stream.engines.errors import StatementError
from dbt.adapters.iceberg_stream.engines.session import Session

# Until the first tasks of a statement run, seconds.
PATIENCE = 5.0
# From the request to cancel to the end of the statement, seconds.
GRACE = 10.0
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
        for pause in (*_pauses(PATIENCE), 0):
            if self._ended.wait(pause):
                return
            if self._tasks_run.is_set():
                break
        for pause in _pauses(GRACE):
            # Until there is something to cancel: the statement may just be on its way.
            with contextlib.suppress(StatementError):
                if self._session.interrupt():
                    break
            if self._ended.wait(pause):
                return
        if self._ended.wait(GRACE):
            return
        logger.warning(
            "Spark does not end a canceled statement. It is left alone; on a server of others it "
            "may still finish and commit."
        )
        on_lost()
        with contextlib.suppress(StatementError):
            self._session.abandon()


def _pauses(seconds: float) -> list[float]:
    return [PAUSE] * round(seconds / PAUSE)
