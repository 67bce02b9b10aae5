"""A program on a pseudo-terminal, as a user has it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# Colors, movements of the cursor, titles.
ESCAPES = re.compile(rb"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>])|\r")
CTRL_C = b"\x03"
CTRL_D = b"\x04"
UP = b"\x1b[A"
SECONDS = 90
# Makes the standard input the terminal of the session, which turns Ctrl-C into a signal. A shell has
# its background jobs ignore that one, and so what the tests start in one.
START = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """Starts a program on a terminal of its own; the program leads its session.

    Args:
        command: the program and its arguments.
        folder: in which it runs.
        environment: its environment.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._terminal, end = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *command],
            cwd=folder,
            # The tests answer no questions about the cursor's position.
            env={**environment, "TERM": "xterm", "COLUMNS": "120", "PROMPT_TOOLKIT_NO_CPR": "1"},
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
        )
        os.close(end)
        self._pending = ""

    def type(self, keys: bytes | str) -> None:
        """Type keys; the terminal turns Ctrl-C into a signal where the program does not read it."""
        os.write(self._terminal, keys.encode() if isinstance(keys, str) else keys)

    def enter(self, line: str) -> None:
        self.type(f"{line}\r")

    def read_until(self, pattern: str, seconds: float = SECONDS) -> str:
        """Return what the program shows up to a text, the text included."""
        deadline = time.monotonic() + seconds
        while (shown := re.search(pattern, self._pending)) is None:
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} is not in {self._pending!r}"
            if select.select([self._terminal], [], [], left)[0]:
                self._pending += ESCAPES.sub(b"", self._read()).decode(errors="replace")
        text, self._pending = self._pending[: shown.end()], self._pending[shown.end() :]
        return text

    def _read(self) -> bytes:
        try:
            return os.read(self._terminal, 65536)
        except OSError as error:  # what Linux says when the program has closed the terminal
            raise AssertionError(f"The program ended after {self._pending!r}") from error

    def wait(self, seconds: float = SECONDS) -> int:
        """Return the exit code of the program."""
        return self._process.wait(seconds)

    def close(self) -> None:
        """End the program if it still runs."""
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)
