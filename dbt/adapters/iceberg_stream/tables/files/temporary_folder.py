"""Temporary folders that go even if their process is killed."""

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
    """A folder in the system's temporary folder, which is removed when it is closed or forgotten.

    If its process is killed, the next process that makes one of its kind removes it. The lock
    beside a folder, which ends with the process, shows whether it is in use.

    Args:
        kind: what it is for, in its name.

    Attributes:
        path: the folder.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, kind: str) -> None:
        parent, prefix = Path(tempfile.gettempdir()), f"iceberg-stream-{kind}-"
        _remove_abandoned(parent, prefix)
        self.path = parent / f"{prefix}{uuid.uuid4().hex}"
        # Before the folder: others remove a folder whose lock they get.
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
    """Remove the folders of processes that have ended, once for each process that makes some."""
    for path in parent.glob(f"{prefix}*{SUFFIX}"):
        folder = path.with_suffix("")
        lock = _lock(folder)
        try:
            lock.acquire(blocking=False)
        except (OSError, NotImplementedError):
            # It is in use or another user's, or nobody knows.
            continue
        _remove(folder, lock)


def _lock(folder: Path) -> FileLock:
    return FileLock(folder.with_suffix(SUFFIX), thread_local=False)


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
