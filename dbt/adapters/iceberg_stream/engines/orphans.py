"""Statements that outlive a killed command: a Spark Connect server runs on without its client."""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path

from filelock import FileLock, Timeout

from dbt.adapters.iceberg_stream.engines.session import interrupt_session
from dbt.adapters.iceberg_stream.engines.settings import Endpoint
from dbt.adapters.iceberg_stream.errors.spark import StatementError

# Servers end forsaken sessions by themselves long before, seconds.
KEPT = 86400.0


class SessionRecord:
    """The sessions of this process, in a file that tells the next one what to clean up.

    The file is locked as long as the process lives; the kernel unlocks it when it is killed. A line
    has a server's address and a session id, and no token.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{uuid.uuid4()}.sessions"
        self._lock = _lock(self._path)
        self._lock.acquire()
        self._path.touch()
        self._unreachable = False

    def add(self, endpoint: Endpoint, session_id: str) -> None:
        with open(self._path, "a") as file:
            file.write(f"{_address(endpoint)} {session_id}\n")

    def lost_server(self) -> None:
        """The server was lost with a statement on it: the next command may find it again."""
        self._unreachable = True

    def close(self) -> None:
        if self._unreachable:
            self._lock.release()
        else:
            _remove(self._path, self._lock)


def end_orphans(folder: Path, endpoint: Endpoint) -> int:
    """Cancel what killed commands left running on the server; the number of statements.

    What they left on other servers, or on one that cannot be reached, stays recorded for a day.
    """
    ended = 0
    for path in folder.glob("*.sessions"):
        lock = _lock(path)
        with contextlib.suppress(Timeout, FileNotFoundError):
            lock.acquire(timeout=0)
            left, here = _end(path, endpoint)
            ended += here
            if not left or time.time() - path.stat().st_mtime > KEPT:
                _remove(path, lock)
            else:
                lock.release()
    return ended


def _end(path: Path, endpoint: Endpoint) -> tuple[bool, int]:
    """Whether sessions are left to others, and the number of statements canceled."""
    left, ended = False, 0
    for line in path.read_text().splitlines():
        address, _, session_id = line.partition(" ")
        if address != _address(endpoint):
            left = True
            continue
        try:
            ended += interrupt_session(endpoint.url, session_id)
        except StatementError as error:
            # Otherwise the server says that the session has ended.
            left = left or error.engine_gone
    return left, ended


def _lock(path: Path) -> FileLock:
    # Not of a thread: the last one to go closes it.
    return FileLock(path.with_suffix(".lock"), thread_local=False)


def _remove(path: Path, lock: FileLock) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)
    lock.release()


def _address(endpoint: Endpoint) -> str:
    return f"{endpoint.host}:{endpoint.port}"
