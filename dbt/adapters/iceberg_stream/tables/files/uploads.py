"""Uploads files to the storage in parallel.

Worker code: the standard library and PyArrow only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow.fs as fs

# Latency dominates: a remote storage takes as long for a small file as for a larger one.
AT_ONCE = 16
# Larger files are uploaded while they are written.
SMALL_FILE = 1024 * 1024


class Uploads:
    """Opens files that are uploaded in the background when they are closed.

    Larger files are uploaded while they are written, except for their last part. Not thread-safe.
    At most `AT_ONCE` files wait in memory.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="upload")
        self._pending: deque[Future[None]] = deque()
        self._ended = False

    def open(self, filesystem: fs.FileSystem, path: str) -> UploadStream:
        """Open a new file.

        Args:
            filesystem: where to upload it.
            path: its path on the filesystem.
        """
        return UploadStream(filesystem, path, self._send)

    def finish(self) -> None:
        """Wait until all files are uploaded.

        Raises:
            OSError: the storage refused one.
        """
        while self._pending:
            self._pending.popleft().result()

    def shutdown(self) -> None:
        """Wait until all uploads have ended, whether they succeeded or not."""
        self._pool.shutdown()
        self._ended = True

    def _send(self, upload: Callable[[], None]) -> None:
        if self._ended:
            upload()
            return
        if len(self._pending) >= AT_ONCE:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(upload))


class UploadStream:
    """A writable file for PyArrow, which uploads what is written."""

    def __init__(
        self, filesystem: fs.FileSystem, path: str, send: Callable[[Callable[[], None]], None]
    ) -> None:
        self._filesystem = filesystem
        self._path = path
        self._send = send
        self._buffer: list[bytes] = []
        self._size = 0
        self._stream: Any = None
        self.closed = False

    def write(self, data: Any) -> int:
        """Write bytes.

        Raises:
            OSError: the storage refuses the file, or is full.
        """
        self._size += len(data)
        if self._stream is None:
            self._buffer.append(bytes(data))
            if self._size > SMALL_FILE:
                self._open()
        else:
            self._stream.write(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def flush(self) -> None:
        """Do nothing: the file exists when the uploads have finished."""

    def close(self) -> None:
        """Finish the file, and hand it over to be uploaded."""
        if not self.closed:
            self.closed = True
            self._send(self._finish)

    def _open(self) -> None:
        self._stream = self._filesystem.open_output_stream(self._path)
        self._stream.write(b"".join(self._buffer))
        self._buffer = []

    def _finish(self) -> None:
        if self._stream is None:
            self._open()
        self._stream.close()
