"""The default engine: a Spark Connect server on this machine, shared by a project's commands.

A client holds a lease (a shared lock that the kernel drops with the process) from before it looks
for a server until it has no more use for one; a supervisor, detached from all clients, owns the
JVM and stops it when no lease is left. `server.json` in the home tells clients where it is.
"""

import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
from filelock import FileLock

from .jars import cache_root, resolve_packages, spark_jars
from .java import find_java
from .launch import (
    LOG4J,
    Archive,
    archive_name,
    argument_file,
    diagnose,
    server_arguments,
    server_environment,
)
from .settings import Endpoint, EngineError, EngineSettings

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

SUPERVISOR = Path(__file__).with_name("supervisor.py")
JVM_CRASHED = 3  # the supervisor's exit code
POLL = 0.02
LOG_TAIL = 20_000


@dataclass(frozen=True)
class Process:
    """A process, told from a later one with the same number by the time of its start."""

    pid: int
    created: float

    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 2
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def signal(self, number: signal.Signals) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(frozen=True)
class EngineStatus:
    """A server as `server.json` describes it."""

    home: Path
    ready: bool
    port: int
    token: str = field(repr=False)
    supervisor: Process
    jvm: Process
    started: float
    fingerprint: str
    settings: str
    java: str
    spark: str

    @classmethod
    def read(cls, home: Path) -> "EngineStatus | None":
        try:
            record: dict[str, Any] = json.loads((home / "server.json").read_text())
            processes = {name: Process(**record.pop(name)) for name in ("supervisor", "jvm")}
            return cls(home=home, **processes, **record)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            # Absent, half gone, or of another version: in each case not a server to use.
            return None

    def alive(self) -> bool:
        return self.supervisor.alive() and self.jvm.alive()

    def answers(self) -> bool:
        return self.ready and _answers(self.port) and self.alive()

    @property
    def endpoint(self) -> Endpoint:
        # Spark's client sends a token in plain text to the word `localhost` only.
        return Endpoint("localhost", self.port, self.token)

    @property
    def clients(self) -> tuple[int, ...]:
        return _clients(self.home)


class Lease:
    """A client's claim on the server of a home; the kernel ends it with the process."""

    def __init__(self, home: Path, keep_alive: float):
        self._home = home
        self._file: IO[str] = open(home / "clients.lock", "a")  # noqa: SIM115 - held open
        # Waits while a supervisor decides that nobody is there: afterwards its record is gone.
        fcntl.flock(self._file, fcntl.LOCK_SH)
        self._file.write(f"{os.getpid()} {keep_alive}\n")
        self._file.flush()

    def alone(self) -> bool:
        """Whether no other client is there. Leaves this one with a shared lock if so."""
        for _ in range(5):  # the supervisor looks, too: for microseconds, a few times a second
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(self._file, fcntl.LOCK_SH)
                return True
            time.sleep(POLL)
        return False

    def close(self) -> None:
        self._file.close()


class EmbeddedEngine:
    """This process's access to the local server. Thread-safe."""

    def __init__(self, settings: EngineSettings):
        if sys.platform == "win32":
            raise EngineError(
                "The local engine runs on Linux and macOS. On Windows, work inside WSL."
            )
        self._settings = settings
        self._guard = threading.Lock()
        self._attachment: Future[tuple[EngineStatus, Lease]] | None = None

    def prestart(self) -> None:
        """Begin to start, or to attach to, the server; returns at once."""
        self._attach()

    def endpoint(self) -> Endpoint:
        """The server's address, once it answers."""
        server, _ = self._attach().result()
        if not server.answers():  # it has died since
            self.release()
            server, _ = self._attach().result()
        return server.endpoint

    def release(self) -> None:
        """This process needs the server no longer."""
        with self._guard:
            attachment, self._attachment = self._attachment, None
        if attachment:
            # At once, or when the start that is still under way has ended.
            attachment.add_done_callback(_close_lease)

    def _attach(self) -> Future[tuple[EngineStatus, Lease]]:
        with self._guard:
            if self._attachment is None:
                self._attachment = Future()
                # A daemon: a command that needs no engine after all must not wait for it.
                threading.Thread(
                    target=_fulfil, args=(self._attachment, self._settings), daemon=True
                ).start()
            return self._attachment


def _fulfil(attachment: Future[tuple[EngineStatus, Lease]], settings: EngineSettings) -> None:
    """Carries the outcome, whatever it is, to those who wait for it."""
    try:
        attachment.set_result(_attach_or_start(settings))
    except OSError as error:
        attachment.set_exception(
            EngineError(
                f"The engine's folder {settings.home} cannot be used: {error}.\n"
                "Check its owner and the free space of its disk, or choose another folder."
            )
        )
    except BaseException as error:  # raised again where it is awaited
        attachment.set_exception(error)


def _close_lease(attachment: Future[tuple[EngineStatus, Lease]]) -> None:
    if attachment.exception() is None:
        attachment.result()[1].close()


def _attach_or_start(settings: EngineSettings) -> tuple[EngineStatus, Lease]:
    home = settings.home
    if not home.is_dir():
        home.mkdir(parents=True)
        (home / ".gitignore").write_text("*\n")
    lease = Lease(home, settings.keep_alive)
    try:
        with FileLock(home / "launch.lock"):
            server = _running(settings, lease)
            return server or _Launch(settings).run(), lease
    except BaseException:
        lease.close()
        raise


def _running(settings: EngineSettings, lease: Lease) -> EngineStatus | None:
    """The warm server, if there is one and it is what these settings ask for."""
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
    if server.ready and not server.answers():
        stop(settings.home)
        return None
    # Started by a client that has died meanwhile, it may still be on its way.
    return server if server.ready else _await(server)


def _await(server: EngineStatus) -> EngineStatus | None:
    while server.alive():
        current = EngineStatus.read(server.home)
        if current is None:
            break
        if current.ready:
            return current
        time.sleep(POLL)
    return None


def _in_use(server: EngineStatus, settings: EngineSettings) -> EngineError:
    others = [str(pid) for pid in server.clients if pid != os.getpid()] or [str(os.getpid())]
    return EngineError(
        f"The engine in {server.home} runs with other settings, and process "
        f"{', '.join(others)} is using it.\n"
        f"  running: {server.settings}\n  wanted:  {settings.summary()}\n"
        "Wait for that process, end it with `iceberg-stream stop`, or use another home."
    )


class _Launch:
    """One start of a server, by the client that holds the launch lock."""

    def __init__(self, settings: EngineSettings):
        self._settings = settings
        self._java = find_java(settings.java_home)
        self._class_path = [
            *spark_jars(),
            *resolve_packages(settings.packages, self._java, settings.maven_repository),
        ]

    def run(self) -> EngineStatus:
        _sweep(self._settings.home / "tmp")
        archive = self._archive()
        exit_code, server = self._try(archive)
        if exit_code == JVM_CRASHED and archive and not archive.dump_to:
            # The archive is the one thing here that can crash a JVM.
            archive.path.unlink(missing_ok=True)
            exit_code, server = self._try(None)
        if server is None:
            log = self._settings.home / "server.log"
            text = log.read_text(errors="replace")[:LOG_TAIL]
            raise EngineError(f"The engine did not start:\n{diagnose(text)}\nIts log: {log}")
        return server

    def _archive(self) -> Archive | None:
        """The AppCDS archive to use, or else to make when this server stops."""
        folder = cache_root() / "cds"
        name = archive_name(self._java.version, self._java.executable, self._class_path)
        if (folder / name).exists():
            return Archive(folder / name)
        if self._settings.keep_alive == 0:
            return None  # making one takes seconds after the end, and nothing may be left then
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        return Archive(folder / name, dump_to=folder / f"{name}.{os.getpid()}.tmp")

    def _try(self, archive: Archive | None) -> tuple[int | None, EngineStatus | None]:
        scratch = self._settings.home / "tmp" / secrets.token_hex(4)
        scratch.mkdir(parents=True, mode=0o700)
        port = _free_port()
        arguments = server_arguments(self._settings, self._class_path, port, scratch, archive)
        (scratch / "java.args").write_text(argument_file(arguments))
        (scratch / "log4j2.properties").write_text(LOG4J)
        process = self._supervise(self._orders(scratch, port, archive))
        while process.poll() is None:
            server = EngineStatus.read(self._settings.home)
            if server and server.ready and server.supervisor.pid == process.pid:
                # Reaps it one day; a thread costs nothing and a zombie would look alive.
                threading.Thread(target=process.wait, daemon=True).start()
                return None, server
            time.sleep(POLL)
        return process.returncode, None

    def _orders(self, scratch: Path, port: int, archive: Archive | None) -> dict[str, Any]:
        token = secrets.token_urlsafe(24)
        spark = next((j.stem for j in self._class_path if j.stem.startswith("spark-core")), "")
        return {
            "command": [str(self._java.executable), f"@{scratch / 'java.args'}"],
            "environment": server_environment(token, os.environ),
            # Relative paths in SQL mean the same to every client of the project.
            "directory": str(self._settings.home.parent),
            "scratch": str(scratch),
            "port": port,
            "keep_alive": self._settings.keep_alive,
            "start_timeout": self._settings.start_timeout,
            "archive": str(archive.path) if archive else None,
            "dump_to": str(archive.dump_to) if archive and archive.dump_to else None,
            "record": {
                "token": token,
                "started": time.time(),
                "fingerprint": self._settings.fingerprint(),
                "settings": self._settings.summary(),
                "java": self._java.version,
                "spark": spark.rpartition("-")[2],
            },
        }

    def _supervise(self, orders: dict[str, Any]) -> subprocess.Popen[str]:
        log = self._settings.home / "server.log"
        if log.exists():
            os.replace(log, log.with_suffix(".log.1"))
        with open(log, "w") as output:
            process = subprocess.Popen(
                [sys.executable, str(SUPERVISOR), str(self._settings.home)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # Ctrl-C is for the command, not for the server
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            json.dump(orders, process.stdin)
        return process


def stop(home: Path, timeout: float = 20.0) -> bool:
    """Stop the server of a home; False if there was none."""
    server = EngineStatus.read(home)
    if server is None:
        return False
    was_alive = server.alive()
    server.supervisor.signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while server.supervisor.alive() and time.monotonic() < deadline:
        time.sleep(POLL)
    _clear(server)
    return was_alive


def status(home: Path) -> EngineStatus | None:
    """The server of a home, starting or ready; None if there is none."""
    server = EngineStatus.read(home)
    return server if server and server.alive() else None


def _clear(server: EngineStatus) -> None:
    """Ends what is left of a server, and its record."""
    server.supervisor.signal(signal.SIGKILL)
    server.jvm.signal(signal.SIGKILL)
    current = EngineStatus.read(server.home)
    if current is None or current.supervisor == server.supervisor:
        (server.home / "server.json").unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Removes the scratch folders of servers that could not do it themselves."""
    for scratch in folder.glob("*"):
        try:
            owner = int((scratch / "supervisor.pid").read_text())
        except (OSError, ValueError):
            owner = 0
        if not owner or not psutil.pid_exists(owner):
            shutil.rmtree(scratch, ignore_errors=True)


def _clients(home: Path) -> tuple[int, ...]:
    """The living processes that took a lease since the server was last idle."""
    try:
        lines = (home / "clients.lock").read_text().splitlines()
    except OSError:
        return ()
    pids = dict.fromkeys(int(line.split()[0]) for line in lines if line)
    return tuple(pid for pid in pids if psutil.pid_exists(pid))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
