"""Statements that outlive a killed command: a Spark Connect server runs on without its client."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from dbt.adapters.iceberg_stream.engines.errors import StatementError
from dbt.adapters.iceberg_stream.engines.session import interrupt_session
from dbt.adapters.iceberg_stream.engines.settings import Endpoint


class SessionRecord:
    """The sessions of this process, in a file that tells the next one what to clean up.

    The file is locked as long as the process lives; the kernel unlocks it when it is killed. It
    holds the server's address in the first line, then a session id a line, and no token.
    """

    def __init__(self, folder: Path, endpoint: Endpoint) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{uuid.uuid4()}.sessions"
        self._lock = _lock(self._path)
        self._lock.acquire()
        self._path.write_text(f"{_address(endpoint)}\n")
        self._unreachable = False

    def add(self, session_id: str) -> None:
        with open(self._path, "a") as file:
            file.write(f"{session_id}\n")

    def lost_server(self) -> None:
        """The server was lost with a statement on it: the next command may find it again."""
        self._unreachable = True

    def close(self) -> None:
        if self._unreachable:
            self._lock.release()
        else:
            _remove(self._path, self._lock)


def end_orphans(folder: Path, endpoint: Endpoint) -> int:
    """Cancel what killed commands left running on the server; the number of statements."""
    return sum(
        _interrupted(endpoint, session_id)
        for address, ids in _abandoned(folder)
        for session_id in ids
        if address == _address(endpoint)
    )


def _abandoned(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for path in folder.glob("*.sessions"):
        lock = _lock(path)
        with contextlib.suppress(Timeout, FileNotFoundError):
            lock.acquire(timeout=0)
            address, *ids = path.read_text().splitlines() or [""]
            yield address, ids
            _remove(path, lock)


def _interrupted(endpoint: Endpoint, session_id: str) -> int:
    try:
        return interrupt_session(endpoint.url, session_id)
    except StatementError:
        return 0  # the session has ended


def _lock(path: Path) -> FileLock:
    # Not of a thread: the last one to go closes it.
    return FileLock(path.with_suffix(".lock"), thread_local=False)


def _remove(path: Path, lock: FileLock) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)
    lock.release()


def _address(endpoint: Endpoint) -> str:
    return f"{endpoint.host}:{endpoint.port}"
