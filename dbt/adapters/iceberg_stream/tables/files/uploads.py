"""Files that are sent to the storage side by side.

Worker code: the standard library and PyArrow only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow.fs as fs

# A storage far away takes as long for a small file as for a larger one.
AT_ONCE = 16
# What is larger goes out while it is made.
SMALL_FILE = 1024 * 1024


class Uploads:
    """Opens files whose last part, or all that is in a small one, goes out after they are closed.

    Not thread-safe itself. At most `AT_ONCE` files wait in memory.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="upload")
        self._sent: deque[Future[None]] = deque()
        self._ended = False

    def open(self, filesystem: fs.FileSystem, path: str) -> UploadStream:
        return UploadStream(filesystem, path, self._send)

    def finish(self) -> None:
        """Wait until all files are there.

        Raises:
            OSError: the storage has refused one.
        """
        while self._sent:
            self._sent.popleft().result()

    def shutdown(self) -> None:
        """Wait until nothing goes out any more, whatever becomes of it."""
        self._pool.shutdown()
        self._ended = True

    def _send(self, upload: Callable[[], None]) -> None:
        if self._ended:
            upload()
            return
        if len(self._sent) >= AT_ONCE:
            self._sent.popleft().result()
        self._sent.append(self._pool.submit(upload))


class UploadStream:
    """A file that is written to, as PyArrow wants it."""

    def __init__(
        self, filesystem: fs.FileSystem, path: str, send: Callable[[Callable[[], None]], None]
    ) -> None:
        self._filesystem = filesystem
        self._path = path
        self._send = send
        self._held: list[bytes] = []
        self._size = 0
        self._stream: Any = None
        self.closed = False

    def write(self, data: Any) -> int:
        """Take bytes.

        Raises:
            OSError: the storage refuses them, or is full.
        """
        self._size += len(data)
        if self._stream is None:
            self._held.append(bytes(data))
            if self._size > SMALL_FILE:
                self._open()
        else:
            self._stream.write(data)
        return len(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing: the file is there when the uploads have finished."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._send(self._finish)

    def _open(self) -> None:
        self._stream = self._filesystem.open_output_stream(self._path)
        self._stream.write(b"".join(self._held))
        self._held = []

    def _finish(self) -> None:
        if self._stream is None:
            self._open()
        self._stream.close()
