"""Settings of an engine, its address, and the status of a running one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dbt.adapters.iceberg_stream.__version__ import version
from dbt.adapters.iceberg_stream.engines.private_files import (
    create_private_folder,
    read_private,
    require_private_folder,
)
from dbt.adapters.iceberg_stream.errors.redacted import RedactedError

DEFAULT_PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)

# The JVM's cloud clients read these once, when the server starts. They are passed on only if the
# profile allows it, and a warm server must not keep the credentials of an earlier shell.
CLOUD_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")

# Names of settings whose values must not be shown. Spark's own default has the first three.
SECRET = (
    r"(?i)secret|password|token|credential|authorization|connection-string|jaas|keystore\.key"
    r"|(access|api|account|sse)[.-]?key|header\.(?!x-iceberg)"
)


LOCAL = "localhost"
LOOPBACK = "127.0.0.1"


class EngineError(RedactedError):
    """The engine cannot run: what is wrong, where, and what to do."""


def prepare_home(home: Path) -> None:
    """Create the folder of the engine's state, which git ignores and other users cannot enter.

    Raises:
        OSError: it cannot be created, or belongs to another user.
    """
    create_private_folder(home)
    ignored = home / ".gitignore"
    if not ignored.exists():
        ignored.write_text("*\n")


@dataclass(frozen=True)
class Endpoint:
    """The address of a Spark Connect server: a host and a port, or a Unix domain socket.

    Attributes:
        host: its host; empty for a socket.
        port: its port.
        token: its token, if it has one.
        tls: whether it uses TLS.
        socket: path of its socket.
    """

    host: str = ""
    port: int = 0
    token: str | None = field(default=None, repr=False)
    tls: bool = False
    socket: Path | None = None

    @property
    def target(self) -> str:
        """Its address, in gRPC's form."""
        if self.socket is not None:
            return f"unix:{self.socket}"
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def address(self) -> tuple[str, int]:
        """The host and port to connect to."""
        # Clients try ::1 first, where any user of the machine may listen on the same port. With
        # TLS the certificate proves who listens, and it has the name.
        return LOOPBACK if self.host == LOCAL and not self.tls else self.host, self.port

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, so that nothing crosses the network."""
        return self.socket is not None or self.host == LOCAL


@dataclass(frozen=True)
class EngineSettings:
    """The local server of one project.

    Attributes:
        home: folder of the engine's state.
        driver_memory: heap of the JVM, e.g. `2g`.
        keep_alive: seconds an idle server stays warm; 0 stops it with its last client.
        packages: Maven coordinates on the class path.
        maven_repository: mirror to use instead of Maven Central.
        spark_conf: settings of the server.
        start_timeout: seconds that the server may take to start.
        java_home: folder of the Java to use; None to search for one.
        ambient_credentials: whether the server gets the environment's cloud credentials.
    """

    home: Path
    driver_memory: str = "2g"
    keep_alive: float = 300.0
    packages: tuple[str, ...] = DEFAULT_PACKAGES
    maven_repository: str | None = None
    spark_conf: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    start_timeout: float = 120.0
    java_home: Path | None = None
    ambient_credentials: bool = False

    def fingerprint(self) -> str:
        """Return a hash of all settings that a running server cannot change."""
        variables = os.environ.items() if self.ambient_credentials else ()
        cloud = {k: v for k, v in variables if k.startswith(CLOUD_VARIABLES)}
        facts = [
            version,
            sys.executable,
            self.driver_memory,
            sorted(self.packages),
            sorted(self.spark_conf),
            str(self.java_home),
            self.ambient_credentials,
            sorted(cloud.items()),
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def summary(self) -> str:
        """Return the settings as text, without values that may be secret."""
        names = sorted(name for name, _ in self.spark_conf)
        return (
            f"driver_memory={self.driver_memory}, packages={list(self.packages)}, "
            f"spark_conf={names}, python={sys.executable}, version={version}"
        )


@dataclass(frozen=True)
class Process:
    """A process, identified by its number and the time of its start.

    Attributes:
        pid: its number, which a later process may reuse.
        created: time of its start, in seconds since 1970.
    """

    pid: int
    created: float

    def alive(self) -> bool:
        """Return whether the process is running."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.created) < 2
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process is running."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(frozen=True)
class EngineStatus:
    """A server, as its supervisor records it in `server.json`."""

    home: Path
    ready: bool
    socket: Path
    supervisor: Process
    jvm: Process
    started: float
    fingerprint: str
    settings: str
    java: str
    spark: str

    @classmethod
    def read(cls, home: Path) -> EngineStatus | None:
        """Read the record of a home's server; None if there is no valid one.

        Raises:
            EngineError: other users may have written the record.
        """
        try:
            record: dict[str, Any] = json.loads(read_private(home / "server.json"))
            record |= {name: Process(**record[name]) for name in ("supervisor", "jvm")}
            return cls(home=home, **record | {"socket": Path(record["socket"])})
        except PermissionError as error:
            raise EngineError(
                f"The engine's folder {home} cannot be trusted: {error}. Remove the file, or set "
                "another `engine_home`."
            ) from error
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            # Missing, damaged, or of another version: the server cannot be used.
            return None

    def alive(self) -> bool:
        """Return whether supervisor and JVM are running."""
        return self.supervisor.alive() and self.jvm.alive()

    def answers(self) -> bool:
        """Return whether the server accepts connections.

        Raises:
            EngineError: other users may have made its socket.
        """
        if not (self.ready and self.alive()):
            return False
        try:
            require_private_folder(self.socket.parent)
        except FileNotFoundError:
            return False
        except PermissionError as error:
            raise EngineError(
                f"The engine's socket cannot be trusted: {error}. Stop the engine with "
                "`iceberg-stream stop`."
            ) from error
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            return probe.connect_ex(str(self.socket)) == 0

    @property
    def endpoint(self) -> Endpoint:
        """The server's address."""
        return Endpoint(socket=self.socket)

    @property
    def clients(self) -> tuple[int, ...]:
        """The running processes that got a lease since the server was last idle."""
        import psutil

        try:
            lines = (self.home / "clients.lock").read_text().splitlines()
        except OSError:
            return ()
        pids = dict.fromkeys(int(line.split()[0]) for line in lines if line)
        return tuple(pid for pid in pids if psutil.pid_exists(pid))
