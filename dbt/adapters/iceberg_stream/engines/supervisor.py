"""Parent of the server's JVM: starts it, records it, and stops it when nobody needs it any more.

Runs detached, as a script: `python supervisor.py HOME`, with its orders as JSON on standard
input. It imports nothing of the adapter, whose package takes a second to load.
"""

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
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

START_POLL = 0.05
POLL = 0.25
# A server that nobody wants still waits this long: commands follow each other in scripts.
GRACE = 1.0
STOP_TIMEOUT = 10.0
DUMP_TIMEOUT = 180.0
PR_SET_PDEATHSIG = 1
FAILED, CRASHED = 1, 3  # exit codes
DUMPS_KEPT = 3


class Leases:
    """The clients: each holds a shared lock on one file, which the kernel drops when it dies.

    Each has also written a line, `pid keep_alive`, of which the last one counts.
    """

    def __init__(self, path: Path, keep_alive: float):
        self._file: IO[bytes] = open(path, "a+b")  # noqa: SIM115 - open for life
        self._idle_since: float | None = None
        self.keep_alive = keep_alive

    def expired(self) -> bool:
        """Whether nobody has been there for as long as the latest client wished."""
        if not self._lock():
            self._idle_since = None
            return False
        self._remember_wish()
        fcntl.flock(self._file, fcntl.LOCK_UN)
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= max(self.keep_alive, GRACE)

    @contextlib.contextmanager
    def nobody(self) -> Any:
        """Holds off new clients; yields False if one has just come."""
        locked = self._lock()
        try:
            yield locked
        finally:
            if locked:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _remember_wish(self) -> None:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        if len(lines) > 1:
            self.keep_alive = float(lines[-2].split()[1])
            self._file.truncate(0)
            # A client has been here between two looks: the idle time starts anew.
            self._idle_since = None


class Supervisor:
    """One server, from its start to its end."""

    def __init__(self, home: Path, orders: dict[str, Any]):
        self._orders = orders
        self._record_path = home / "server.json"
        self._scratch = Path(orders["scratch"])
        self._leases = Leases(home / "clients.lock", orders["keep_alive"])
        self._dump_to: str | None = orders["dump_to"]
        self._told_to_stop = False
        self._jvm: subprocess.Popen[bytes]

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        own = Path(self._scratch, "supervisor.pid")
        own.write_text(str(os.getpid()))
        self._jvm = subprocess.Popen(
            self._orders["command"],
            env=self._orders["environment"],
            cwd=self._orders["directory"],
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        try:
            return self._watch()
        finally:
            self._withdraw()
            self._stop_jvm()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._told_to_stop = True

    def _watch(self) -> int:
        """Until the JVM dies, or is not needed any more."""
        ready = False
        deadline = time.monotonic() + self._orders["start_timeout"]
        self._record(ready)
        while not self._told_to_stop:
            code = self._jvm.poll()
            if code is not None:
                print(f"The server's JVM ended with code {code}", flush=True)
                return CRASHED if code < 0 else FAILED
            if not ready:
                ready = self._listening()
                if ready:
                    self._record(ready)
                elif time.monotonic() > deadline:
                    print(f"ERROR no answer in {self._orders['start_timeout']} s", flush=True)
                    return FAILED
            if self._leases.expired():
                with self._leases.nobody() as alone:
                    if alone:
                        # From here on, a client that comes finds no server and starts its own.
                        self._withdraw()
                        return 0
            time.sleep(POLL if ready else START_POLL)
        # Somebody waits for the end: no time for an archive.
        self._dump_to = None
        return 0

    def _listening(self) -> bool:
        """Whether the port is open, and is our JVM's: the token must not go to anyone else."""
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", self._orders["port"])):
                return False
        try:
            connections = psutil.Process(self._jvm.pid).net_connections("tcp")
        except psutil.Error:
            return False
        return any(
            c.status == psutil.CONN_LISTEN and c.laddr.port == self._orders["port"]
            for c in connections
        )

    def _record(self, ready: bool) -> None:
        record = self._orders["record"] | {
            "ready": ready,
            "port": self._orders["port"],
            "supervisor": _identity(os.getpid()),
            "jvm": _identity(self._jvm.pid),
        }
        draft = self._record_path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            json.dump(record, file, indent=1)
        os.replace(draft, self._record_path)

    def _withdraw(self) -> None:
        """Removes the record, unless a later server has written its own."""
        with contextlib.suppress(OSError, ValueError):
            if json.loads(self._record_path.read_text())["supervisor"]["pid"] == os.getpid():
                self._record_path.unlink()

    def _stop_jvm(self) -> None:
        archive = Path(self._orders["archive"] or "")
        dump_to = Path(self._dump_to) if self._dump_to and not archive.exists() else None
        if self._orders["dump_to"] and dump_to is None:
            # It would write the archive before it goes.
            self._jvm.kill()
        else:
            if dump_to:
                # Nobody waits: make the archive, but let the user's other work go first.
                with contextlib.suppress(psutil.Error):
                    psutil.Process(self._jvm.pid).nice(19)
            self._jvm.terminate()
        try:
            self._jvm.wait(DUMP_TIMEOUT if dump_to else STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()
            dump_to = None
        if dump_to and dump_to.exists():
            os.replace(dump_to, archive)
            _prune(archive.parent)
        elif self._orders["dump_to"]:
            Path(self._orders["dump_to"]).unlink(missing_ok=True)


def _die_with_parent() -> None:
    """Linux kills the JVM when its supervisor is killed; elsewhere the next client does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _identity(pid: int) -> dict[str, float]:
    """A process, also after its number has been given to another one."""
    return {"pid": pid, "created": psutil.Process(pid).create_time()}


def _prune(folder: Path) -> None:
    """Archives are large, and of use only to the latest versions."""
    archives = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime)
    for old in archives[:-DUMPS_KEPT]:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(Supervisor(Path(sys.argv[1]), json.load(sys.stdin)).run())
