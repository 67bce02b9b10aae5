"""What an engine is asked to be, and where it answers."""

import hashlib
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dbt.adapters.iceberg_stream.__version__ import version

DEFAULT_PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)

# The JVM's cloud clients read these once, when the server starts: a warm server must not go on
# with the credentials of an earlier shell.
CLOUD_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")


class EngineError(Exception):
    """The engine cannot do its work: what is wrong, where, and what to do about it."""


@dataclass(frozen=True)
class Endpoint:
    """Where a Spark Connect server answers, and the token that opens it."""

    host: str
    port: int
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        return f"sc://{self.host}:{self.port}/;token={self.token}"


@dataclass(frozen=True)
class EngineSettings:
    """The local server of one project."""

    home: Path
    driver_memory: str = "2g"
    keep_alive: float = 300.0
    packages: tuple[str, ...] = DEFAULT_PACKAGES
    maven_repository: str | None = None
    spark_conf: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    start_timeout: float = 120.0
    java_home: Path | None = None

    def fingerprint(self) -> str:
        """A hash of everything that a running server cannot change any more."""
        cloud = {k: v for k, v in os.environ.items() if k.startswith(CLOUD_VARIABLES)}
        facts = [
            version,
            sys.executable,
            self.driver_memory,
            sorted(self.packages),
            sorted(self.spark_conf),
            str(self.java_home),
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
