"""Parent of the server's JVM: starts it, records it, and stops it when no client needs it.

Runs detached, as a script: `python supervisor.py HOME`, with its orders as JSON on standard
input. It imports nothing of the adapter, because loading that takes a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

START_POLL = 0.05
POLL = 0.25
# An idle server waits at least this long, because scripts run several commands in a row.
GRACE = 1.0
STOP_TIMEOUT = 10.0
PR_SET_PDEATHSIG = 1
FAILED = 1  # exit code
TERMINATED = 143  # exit code of a JVM that ended properly on SIGTERM
# Seconds that the creation of an archive may take.
TRAINING_TIMEOUT = 300.0
ARCHIVES_KEPT = 3


class Leases:
    """The leases of clients: shared locks on one file, which the kernel releases with a process.

    Each client also appends a line `pid keep_alive` to the file; the last line counts.
    """

    def __init__(self, path: Path, keep_alive: float) -> None:
        self._file: IO[bytes] = open(path, "a+b")  # noqa: SIM115 - open for life
        self._idle_since: float | None = None
        self._keep_alive = keep_alive

    def expired(self) -> bool:
        """Return whether there was no client for the last client's `keep_alive`."""
        with self.no_clients() as idle:
            if not idle:
                self._idle_since = None
                return False
            self._read_keep_alive()
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= max(self._keep_alive, GRACE)

    @contextlib.contextmanager
    def no_clients(self) -> Iterator[bool]:
        """Block new clients; yields False if there is a client."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _read_keep_alive(self) -> None:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        if len(lines) > 1:
            self._keep_alive = float(lines[-2].split()[1])
            self._file.truncate(0)
            # A client came and went between two checks: the idle time begins again.
            self._idle_since = None


class Jvm:
    """A Spark Connect server that must not outlive this process."""

    def __init__(self, orders: dict[str, Any], common: dict[str, Any], log: int | None) -> None:
        self.socket: str = orders["socket"]
        self._process = subprocess.Popen(
            orders["command"],
            env=common["environment"],
            cwd=common["directory"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,
        )

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._process.poll()

    def listening(self) -> bool:
        """Return whether the server listens; only this user can enter its socket's folder."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            return probe.connect_ex(self.socket) == 0

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Terminate the process; kill it after the timeout, in seconds."""
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


class Supervisor:
    """One server, from its start to its end."""

    def __init__(self, home: Path, orders: dict[str, Any]) -> None:
        self._orders = orders
        self._record_path = home / "server.json"
        self._scratch = Path(orders["scratch"])
        self._leases = Leases(home / "clients.lock", orders["keep_alive"])
        self._stop_requested = False

    def run(self) -> int:
        """Run the server until it is no longer needed; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            _write_private(self._scratch / "supervisor.json", _identity(os.getpid()))
            jvm = Jvm(self._orders, self._orders, log=None)
            try:
                code = self._watch(jvm)
            finally:
                self._withdraw()
                jvm.stop()
            if self._orders["training"] and not (code or self._stop_requested):
                self._train(self._orders["training"])
            return code
        finally:
            shutil.rmtree(self._orders["sockets"], ignore_errors=True)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True

    def _watch(self, jvm: Jvm) -> int:
        """Wait until the JVM ends or is no longer needed; return the exit code."""
        ready = False
        deadline = time.monotonic() + self._orders["start_timeout"]
        self._record(jvm, ready)
        while not self._stop_requested:
            code = jvm.exit_code()
            if code is not None:
                _log(f"ERROR the server's JVM exited with code {code}")
                return FAILED
            if not ready and jvm.listening():
                ready = True
                self._record(jvm, ready)
            if not ready and time.monotonic() > deadline:
                _log(f"ERROR no answer within start_timeout, {self._orders['start_timeout']} s")
                return FAILED
            if self._leases.expired():
                with self._leases.no_clients() as idle:
                    if idle:
                        # From here on, a new client finds no server and starts one.
                        self._withdraw()
                        return 0
            time.sleep(POLL if ready else START_POLL)
        return 0

    def _record(self, jvm: Jvm, ready: bool) -> None:
        record = self._orders["record"] | {
            "ready": ready,
            "socket": jvm.socket,
            "supervisor": _identity(os.getpid()),
            "jvm": _identity(jvm.pid),
        }
        draft = self._record_path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        _write_private(draft, record)
        os.replace(draft, self._record_path)

    def _withdraw(self) -> None:
        """Remove the record, unless a later server has written its own."""
        with contextlib.suppress(OSError, ValueError):
            if json.loads(self._record_path.read_text())["supervisor"]["pid"] == os.getpid():
                self._record_path.unlink()

    def _train(self, orders: dict[str, Any]) -> None:
        """Create the AppCDS archive by a second server, for which no client waits."""
        archive, draft = Path(orders["archive"]), Path(orders["draft"])
        os.nice(19)
        with contextlib.suppress(OSError):  # no space or no permission: then without an archive
            archive.parent.mkdir(parents=True, exist_ok=True)
            with open(archive.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if archive.exists():
                    return
                if self._dump(orders) and draft.exists():
                    # It may be on another disk, so it is copied first and then renamed.
                    part = shutil.move(draft, archive.with_suffix(".part"))
                    os.replace(part, archive)
                    _prune(archive.parent)

    def _dump(self, orders: dict[str, Any]) -> bool:
        """Run the statements; return whether the JVM ended properly, with a complete archive."""
        deadline = time.monotonic() + TRAINING_TIMEOUT
        if orders["base"]:
            subprocess.run(orders["base"], capture_output=True, preexec_fn=_die_with_parent)
        jvm = Jvm(orders, self._orders, log=subprocess.DEVNULL)
        try:
            while not jvm.listening() and self._may_train(jvm, deadline):
                time.sleep(POLL)
            client = subprocess.Popen(
                orders["client"],
                env=self._orders["environment"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=_die_with_parent,
            )
            while client.poll() is None and self._may_train(jvm, deadline):
                time.sleep(POLL)
            client.kill()
            client.wait()
            if self._may_train(jvm, deadline):
                jvm.stop(TRAINING_TIMEOUT)
            return jvm.exit_code() == TERMINATED
        finally:
            jvm.kill()

    def _may_train(self, jvm: Jvm, deadline: float) -> bool:
        running = jvm.exit_code() is None
        return running and not self._stop_requested and time.monotonic() < deadline


def _die_with_parent() -> None:
    """Let Linux kill the child with its supervisor; elsewhere the next client kills it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _write_private(path: Path, record: dict[str, Any]) -> None:
    """Write a new file that only this user can read."""
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        json.dump(record, file, indent=1)


def _identity(pid: int) -> dict[str, float]:
    """Return what identifies a process even if its number is reused."""
    return {"pid": pid, "created": psutil.Process(pid).create_time()}


def _prune(folder: Path) -> None:
    """Remove all but the newest archives, because archives are large."""
    archives = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime)
    for old in archives[:-ARCHIVES_KEPT]:
        for path in (old, old.with_suffix(".base"), old.with_suffix(".lock")):
            path.unlink(missing_ok=True)


def _log(message: str) -> None:
    sys.stderr.write(message + "\n")  # standard error is the server's log


if __name__ == "__main__":
    sys.exit(Supervisor(Path(sys.argv[1]), json.load(sys.stdin)).run())
