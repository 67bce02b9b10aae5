"""Free ports, and waiting for a server on one."""

from __future__ import annotations

import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

# Below those that systems give to outgoing connections.
PORTS = range(20_000, 32_000)
_taken: list[FileLock] = []


def candidates() -> Iterable[int]:
    """Ports to try, in another order each time."""
    return random.SystemRandom().sample(PORTS, len(PORTS))


def free_port() -> int:
    """A port that nobody listens on, and that no other test is given while this process lives."""
    folder = Path(tempfile.gettempdir()) / "dbt-iceberg-stream-ports"
    folder.mkdir(exist_ok=True)
    for port in candidates():
        lock = FileLock(folder / str(port))
        try:
            lock.acquire(blocking=False)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except Timeout:
            continue
        except OSError:
            lock.release()
            continue
        _taken.append(lock)
        return port
    raise RuntimeError(f"No port of {PORTS} is free.")


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path, seconds: float = 90) -> None:
    """Wait until a process listens.

    Raises:
        RuntimeError: with the end of its log, if it does not.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{log.stem} did not start:\n{log.read_text(errors='replace')[-4000:]}")
