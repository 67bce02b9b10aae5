"""Temporary folders that are removed even if their process is killed."""

from __future__ import annotations

import shutil
import tempfile
import uuid
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

from filelock import FileLock

SUFFIX = ".lock"


class TemporaryFolder:
    """A folder in the system's temporary folder, removed when it is closed or garbage-collected.

    If its process is killed, the next process that creates a folder of the same kind removes it. A
    lock file beside the folder shows whether it is in use: the lock ends with the process.

    Args:
        kind: what the folder is for; part of its name.

    Attributes:
        path: the folder.

    Raises:
        OSError: the folder cannot be created.
    """

    def __init__(self, kind: str) -> None:
        parent, prefix = Path(tempfile.gettempdir()), f"iceberg-stream-{kind}-"
        _remove_abandoned(parent, prefix)
        self.path = parent / f"{prefix}{uuid.uuid4().hex}"
        # Locked before it is created: other processes remove a folder whose lock they get.
        lock = _lock(self.path)
        # Some network file systems have no locks: a folder that is left there stays.
        with suppress(NotImplementedError):
            lock.acquire()
        self._finalizer = weakref.finalize(self, _remove, self.path, lock)
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove the folder."""
        self._finalizer()


@cache
def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders of processes that have ended; runs once per process and kind."""
    for path in parent.glob(f"{prefix}*{SUFFIX}"):
        folder = path.with_suffix("")
        lock = _lock(folder)
        try:
            lock.acquire(blocking=False)
        except (OSError, NotImplementedError):
            # It is in use, another user's, or on a file system without locks.
            continue
        _remove(folder, lock)


def _lock(folder: Path) -> FileLock:
    return FileLock(folder.with_suffix(SUFFIX), thread_local=False)


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
