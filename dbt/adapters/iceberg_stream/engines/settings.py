"""What an engine is asked to be, where it answers, and what is known of the one that runs."""

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
from urllib.parse import quote

import psutil

from dbt.adapters.iceberg_stream.__version__ import version

# The last two are Spark's Kafka source. Its 4.1.1 asks for a token provider 4.1.1, which nobody has
# published. It must be there when the server starts: jars that a session adds have a class loader
# of their own, and a second one in the same JVM fails ("Config entry … already registered").
DEFAULT_PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
)

# The JVM's cloud clients read these once, when the server starts: only where the profile lets them,
# and a warm server must not go on with the credentials of an earlier shell.
CLOUD_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")

# Names of settings whose values nobody may see. Spark's own expression knows the first three.
SECRET = (
    r"(?i)secret|password|token|credential|authorization|connection-string|jaas|keystore\.key"
    r"|(access|api|account|sse)[.-]?key|header\.(?!x-iceberg)"
)


class EngineError(Exception):
    """The engine cannot do its work: what is wrong, where, and what to do about it."""


def prepare_home(home: Path) -> None:
    """Make the folder of the engine's state; git does not see it."""
    if not home.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        (home / ".gitignore").write_text("*\n")


@dataclass(frozen=True)
class Endpoint:
    """Where a Spark Connect server answers, and the token that opens it."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    tls: bool = False

    @property
    def url(self) -> str:
        """Spark's connection string; it holds the token."""
        token = f";token={quote(self.token, safe='')}" if self.token else ""
        tls = ";use_ssl=true" if self.tls else ""
        return f"sc://{self.host}:{self.port}/{tls}{token}"


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
        start_timeout: seconds until a start has failed.
        java_home: Java to use instead of the one that is found.
        ambient_credentials: whether the server sees the cloud credentials of the environment.
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
        """A hash of everything that a running server cannot change any more."""
        seen = os.environ.items() if self.ambient_credentials else ()
        cloud = {k: v for k, v in seen if k.startswith(CLOUD_VARIABLES)}
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
        """The settings in words, without values that may be secret."""
        names = sorted(name for name, _ in self.spark_conf)
        return (
            f"driver_memory={self.driver_memory}, packages={list(self.packages)}, "
            f"spark_conf={names}, python={sys.executable}, version={version}"
        )


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
    """A server, as its supervisor describes it in `server.json`."""

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
    def read(cls, home: Path) -> EngineStatus | None:
        try:
            record: dict[str, Any] = json.loads((home / "server.json").read_text())
            record |= {name: Process(**record[name]) for name in ("supervisor", "jvm")}
            return cls(home=home, **record)
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            # Absent, damaged, or of another version: in each case not a server to use.
            return None

    def alive(self) -> bool:
        return self.supervisor.alive() and self.jvm.alive()

    def answers(self) -> bool:
        if not (self.ready and self.alive()):
            return False
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def endpoint(self) -> Endpoint:
        # Spark's client sends a token in plain text to the word `localhost` only.
        return Endpoint("localhost", self.port, self.token)

    @property
    def clients(self) -> tuple[int, ...]:
        """The living processes that took a lease since the server was last idle."""
        try:
            lines = (self.home / "clients.lock").read_text().splitlines()
        except OSError:
            return ()
        pids = dict.fromkeys(int(line.split()[0]) for line in lines if line)
        return tuple(pid for pid in pids if psutil.pid_exists(pid))
