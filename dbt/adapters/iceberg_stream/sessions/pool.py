"""Spark sessions of a command: one for each connection, reused when idle."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dbt.adapters.iceberg_stream.engines.settings import Endpoint, EngineError, prepare_home
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.spark import CANCELED, StatementError

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.engines.abandoned_statements import SessionRecord
    from dbt.adapters.iceberg_stream.sessions.session_handle import SessionHandle

logger = Logger()


class SessionPool:
    """Handles of sessions, in use or idle. Thread-safe.

    Args:
        open_handle: opens a session; its argument must be called when the connection closes.
    """

    def __init__(
        self, open_handle: Callable[[Callable[[SessionHandle], None]], SessionHandle]
    ) -> None:
        self._open_handle = open_handle
        self._lock = threading.Lock()
        self._idle: list[SessionHandle] = []
        self._handles: weakref.WeakSet[SessionHandle] = weakref.WeakSet()
        self._canceling_thread: int | None = None

    def take(self) -> SessionHandle:
        """Return an idle session that is still alive, or open a new one.

        Raises:
            StatementError: the command was canceled, or the server refuses a session.
        """
        handle = self._take_idle()
        if handle is None:
            handle = self._open_handle(self._give_back)
            with self._lock:
                self._handles.add(handle)
        try:
            self.refuse_if_canceled()
        except StatementError:
            self._give_back(handle)
            raise
        return handle

    def _take_idle(self) -> SessionHandle | None:
        while True:
            with self._lock:
                handle = self._idle.pop() if self._idle else None
            if handle is None:
                return None
            # The server may have been restarted, or have closed an idle session.
            if handle.session.lives():
                handle.reopen()
                return handle
            handle.reusable = False
            self._give_back(handle)

    def _give_back(self, handle: SessionHandle) -> None:
        """Keep a session for the next node, unless it has changed or a statement has failed."""
        if handle.reusable and not handle.views:
            with self._lock:
                self._idle.append(handle)
        else:
            with self._lock:
                self._handles.discard(handle)
            handle.session.close()

    def refuse_if_canceled(self) -> None:
        """Raise StatementError if another thread has canceled the command."""
        with self._lock:
            canceling_thread = self._canceling_thread
        if canceling_thread not in (None, threading.get_ident()):
            raise StatementError("Not run: the command was canceled.", CANCELED)

    def cancel_others(self, own: SessionHandle | None) -> None:
        """Cancel the statements of all other threads, and refuse their next ones.

        Args:
            own: the handle of the calling thread, if it has one.
        """
        with self._lock:
            self._canceling_thread = threading.get_ident()
            handles = [h for h in self._handles if h is not own and h not in self._idle]
        for handle in handles:
            handle.interrupt()

    def close(self) -> None:
        """Close idle sessions; another command can use the pool again."""
        with self._lock:
            for handle in self._idle:
                handle.session.close()
            self._idle.clear()
            self._canceling_thread = None


class SessionRecords:
    """Records this command's sessions, so that the next command can cancel them after a kill."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._record: SessionRecord | None = None

    def open(self, endpoint: Endpoint) -> SessionRecord:
        """Return the record; at first, cancel statements of commands that were killed.

        Args:
            endpoint: Spark's server.

        Raises:
            EngineError: the folder cannot be used.
        """
        from dbt.adapters.iceberg_stream.engines.abandoned_statements import (
            SessionRecord,
            end_orphans,
        )

        with self._lock:
            if self._record is None:
                folder = self._home / "sessions"
                try:
                    prepare_home(self._home)
                    if ended := end_orphans(folder, endpoint):
                        logger.info(f"Canceled {ended} statement(s) of commands that were killed.")
                    self._record = SessionRecord(folder)
                except OSError as error:
                    raise EngineError(
                        f"The folder {self._home} cannot be used: {error}. Set another one as "
                        "`engine_home` in the profile."
                    ) from error
            return self._record

    def lost_server(self) -> None:
        """Keep the record after the connection to the server was lost during a statement."""
        if self._record is not None:
            self._record.lost_server()

    def close(self) -> None:
        """Remove the record, unless the next command needs it."""
        with self._lock:
            if self._record is not None:
                self._record.close()
                self._record = None
