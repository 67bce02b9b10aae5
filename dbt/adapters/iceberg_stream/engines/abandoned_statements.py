"""Cancels statements of killed commands, which a Spark Connect server continues to run."""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path

from filelock import FileLock, Timeout

from dbt.adapters.iceberg_stream.engines.server_session import interrupt_session
from dbt.adapters.iceberg_stream.engines.settings import Endpoint
from dbt.adapters.iceberg_stream.errors.spark import StatementError

# Seconds after which a record is removed: servers close idle sessions long before.
RECORD_SECONDS = 86400.0


class SessionRecord:
    """Records the sessions of this process in a file, for the next command to clean up.

    The file is locked while the process lives; the kernel unlocks it when the process is killed.
    A line has a server's address and a session id, and no token.

    Args:
        folder: folder of the records.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{uuid.uuid4()}.sessions"
        self._lock = _lock(self._path)
        self._lock.acquire()
        self._path.touch()
        self._unreachable = False

    def add(self, endpoint: Endpoint, session_id: str) -> None:
        """Record a session.

        Args:
            endpoint: the server.
            session_id: the session's id.
        """
        with open(self._path, "a") as file:
            file.write(f"{endpoint.target} {session_id}\n")

    def lost_server(self) -> None:
        """Keep the file after the connection to the server was lost during a statement."""
        self._unreachable = True

    def close(self) -> None:
        """Remove the file, unless the connection to the server was lost."""
        if self._unreachable:
            self._lock.release()
        else:
            _remove(self._path, self._lock)


def end_orphans(folder: Path, endpoint: Endpoint) -> int:
    """Cancel the statements of killed commands on a server.

    Statements on other servers, or on one that does not answer, stay recorded for a day.

    Args:
        folder: folder of the records.
        endpoint: the server.

    Returns:
        How many statements were canceled.
    """
    ended = 0
    for path in folder.glob("*.sessions"):
        lock = _lock(path)
        with contextlib.suppress(Timeout, FileNotFoundError):
            lock.acquire(timeout=0)
            has_others, canceled = _end(path, endpoint)
            ended += canceled
            if not has_others or time.time() - path.stat().st_mtime > RECORD_SECONDS:
                _remove(path, lock)
            else:
                lock.release()
    return ended


def _end(path: Path, endpoint: Endpoint) -> tuple[bool, int]:
    """Return whether sessions on other servers remain, and how many statements were canceled."""
    has_others, ended = False, 0
    for line in path.read_text().splitlines():
        address, _, session_id = line.rpartition(" ")
        if address != endpoint.target:
            has_others = True
            continue
        try:
            ended += interrupt_session(endpoint, session_id)
        except StatementError as error:
            # For other errors the session has ended.
            has_others = has_others or error.engine_gone
    return has_others, ended


def _lock(path: Path) -> FileLock:
    # Not thread-local: any thread may release it.
    return FileLock(path.with_suffix(".lock"), thread_local=False)


def _remove(path: Path, lock: FileLock) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)
    lock.release()
