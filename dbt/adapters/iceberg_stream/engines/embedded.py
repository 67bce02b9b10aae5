"""The default engine: a Spark Connect server on this machine, shared by a project's commands.

A client holds a lease (a shared lock that the kernel releases with the process) from before it
looks for a server until it no longer needs one. A supervisor, detached from all clients, owns the
JVM and stops it when there are no leases. `server.json` in the engine's home has its address.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import IO

from dbt.adapters.iceberg_stream.engines.launch import POLL, Launch
from dbt.adapters.iceberg_stream.engines.scratch import supervisors
from dbt.adapters.iceberg_stream.engines.settings import (
    Endpoint,
    EngineError,
    EngineSettings,
    EngineStatus,
    Process,
    prepare_home,
)

if sys.platform != "win32":
    import fcntl

__all__ = ["EmbeddedEngine", "EngineStatus", "status", "stop"]

# Seconds that a killed process may take to end.
KILL_TIMEOUT = 10.0


class Lease:
    """A client's lease of the server of a home; the kernel ends it with the process.

    Args:
        home: folder of the engine's state.
        keep_alive: seconds that an idle server should stay warm.
    """

    def __init__(self, home: Path, keep_alive: float) -> None:
        self._file: IO[str] = open(home / "clients.lock", "a")  # noqa: SIM115 - held open
        # Waits while a supervisor decides to stop: afterwards the server's record is removed.
        fcntl.flock(self._file, fcntl.LOCK_SH)
        self._file.write(f"{os.getpid()} {keep_alive}\n")
        self._file.flush()

    def alone(self) -> bool:
        """Return whether there is no other client; this one keeps its lease."""
        for _ in range(5):  # the supervisor locks the file, too, for microseconds
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(self._file, fcntl.LOCK_SH)
                return True
            time.sleep(POLL)
        # The failed attempt may have released the lease.
        fcntl.flock(self._file, fcntl.LOCK_SH)
        return False

    def close(self) -> None:
        """End the lease."""
        self._file.close()


Attachment = Future[tuple[EngineStatus, Lease]]


class EmbeddedEngine:
    """Access to the local server. Thread-safe.

    Args:
        settings: what the server must be.
    """

    def __init__(self, settings: EngineSettings) -> None:
        if sys.platform == "win32":
            raise EngineError("The local engine runs on Linux and macOS only. On Windows, use WSL.")
        self._settings = replace(settings, home=settings.home.absolute())
        self._guard = threading.Lock()
        self._attachment: Attachment | None = None

    def prestart(self) -> None:
        """Begin to start the server, or to attach to it; returns at once."""
        self._attach()

    def endpoint(self) -> Endpoint:
        """Return the server's address, once it answers.

        Raises:
            EngineError: there is no server, and none can be started.
        """
        attachment = self._attach()
        server, _ = attachment.result()
        if not server.answers():  # it has ended since
            self._forget(attachment)
            server, _ = self._attach().result()
        return server.endpoint

    def release(self) -> None:
        """End this process's lease of the server."""
        self._forget(self._attachment)

    def abandon(self) -> None:
        """Stop the server, unless another process uses it."""
        attachment = self._attachment
        if attachment is None or not attachment.done() or attachment.exception() is not None:
            return
        server, lease = attachment.result()
        if lease.alone():
            stop(server.home)

    def _attach(self) -> Attachment:
        with self._guard:
            if self._attachment is None:
                self._attachment = Future()
                # A daemon thread: a command that needs no engine must not wait for its start.
                threading.Thread(
                    target=_fulfil, args=(self._attachment, self._settings), daemon=True
                ).start()
            return self._attachment

    def _forget(self, attachment: Attachment | None) -> None:
        with self._guard:
            if attachment is None or attachment is not self._attachment:
                return  # another thread has replaced it
            self._attachment = None
        # Called at once, or when a running start has ended.
        attachment.add_done_callback(_close_lease)


def _fulfil(attachment: Attachment, settings: EngineSettings) -> None:
    """Set the result or the error of the start."""
    try:
        attachment.set_result(_attach_or_start(settings))
    except OSError as error:
        attachment.set_exception(
            EngineError(
                f"The engine's folder {settings.home} cannot be used: {error}.\n"
                "Check its owner and the free space of its disk, or set another `engine_home`."
            )
        )
    except BaseException as error:  # raised in the threads that wait for the result
        attachment.set_exception(error)


def _close_lease(attachment: Attachment) -> None:
    if attachment.exception() is None:
        attachment.result()[1].close()


def _attach_or_start(settings: EngineSettings) -> tuple[EngineStatus, Lease]:
    home = settings.home
    prepare_home(home)
    with contextlib.ExitStack() as on_failure:
        lease = Lease(home, settings.keep_alive)
        on_failure.callback(lease.close)
        from filelock import FileLock

        with FileLock(home / "launch.lock"):
            server = _running(settings, lease) or Launch(settings).run()
        on_failure.pop_all()
    return server, lease


def _running(settings: EngineSettings, lease: Lease) -> EngineStatus | None:
    """Return the running server if it has the same settings; stop an idle one that has not."""
    server = EngineStatus.read(settings.home)
    if server is None:
        return None
    if not server.alive():
        _clear(server)
        return None
    if server.fingerprint != settings.fingerprint():
        if not lease.alone():
            raise _in_use(server, settings)
        stop(settings.home)
        return None
    if not server.ready:
        # Its client ended while it was starting.
        return _await(server)
    if server.answers():
        return server
    if not lease.alone():
        if server.socket.exists():
            return server  # it is busy
        raise EngineError(
            f"The socket of the engine in {settings.home} was removed from {server.socket.parent}. "
            "Stop the engine with `iceberg-stream stop`; processes that use it lose it."
        )
    stop(settings.home)
    return None


def _await(server: EngineStatus) -> EngineStatus | None:
    while server.alive():
        current = EngineStatus.read(server.home)
        if current is None or current.ready:
            return current
        time.sleep(POLL)
    return None


def _in_use(server: EngineStatus, settings: EngineSettings) -> EngineError:
    own_pid = os.getpid()
    pids = ", ".join(str(pid) for pid in server.clients if pid != own_pid)
    user = f"process {pids}" if pids else f"this process ({own_pid})"
    return EngineError(
        f"The engine in {server.home} runs with other settings, and {user} is using it.\n"
        f"  running: {server.settings}\n  wanted:  {settings.summary()}\n"
        "Wait until that process has finished, stop the engine with `iceberg-stream stop`, or set "
        "another `engine_home`."
    )


def stop(home: Path, timeout: float = 20.0) -> bool:
    """Stop the server of a home, even if processes use it.

    Args:
        home: folder of the engine's state.
        timeout: seconds to wait for its end; then it is killed.

    Returns:
        Whether there was a server.
    """
    server = EngineStatus.read(home)
    was_alive = server is not None and server.alive()
    # Those before it may not have ended yet, and still use the home.
    ending = [process for _, process in supervisors(home) if process is not None]
    ending += [server.supervisor] if server is not None else []
    for process in ending:
        process.signal(signal.SIGTERM)
    _await_end(ending, timeout)
    for process in ending:
        process.signal(signal.SIGKILL)
    _await_end(ending, KILL_TIMEOUT)
    if server is not None:
        _clear(server)
    return was_alive


def _await_end(processes: Sequence[Process], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while any(process.alive() for process in processes) and time.monotonic() < deadline:
        time.sleep(POLL)


def status(home: Path) -> EngineStatus | None:
    """Return the server of a home, starting or ready; None if there is none.

    Args:
        home: folder of the engine's state.
    """
    server = EngineStatus.read(home)
    return server if server and server.alive() else None


def _clear(server: EngineStatus) -> None:
    """Kill the remaining processes of a server, wait for their end, and remove its record."""
    server.supervisor.signal(signal.SIGKILL)
    server.jvm.signal(signal.SIGKILL)
    # A dying JVM still removes files of the home.
    _await_end([server.supervisor, server.jvm], KILL_TIMEOUT)
    current = EngineStatus.read(server.home)
    if current is None or current.supervisor == server.supervisor:
        (server.home / "server.json").unlink(missing_ok=True)
