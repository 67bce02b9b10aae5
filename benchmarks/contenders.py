"""The adapters that are compared: a dbt project each, every command a process of its own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.metadata import current_snapshot
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend, spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import status, stop
from dbt.adapters.iceberg_stream.engines.jars import resolve_packages
from dbt.adapters.iceberg_stream.engines.java import find_java
from dbt.adapters.iceberg_stream.engines.launch import ICEBERG_EXTENSIONS
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES
from tests.servers.tcp_proxy import TcpProxy

from .harness import BenchmarkError

CATALOG = "lake"
SCHEMA = "bench"
THREADS = 4
KEEP_ALIVE = 600
# A JVM that has just been told to end still takes the processor for a moment.
REST_SECONDS = 1.0
# Long enough to look at the engine before it ends.
ARCHIVE_KEEP_ALIVE = 5
ARCHIVE_SECONDS = 240.0

Files = Mapping[str, str]


class Done(NamedTuple):
    """A dbt command that went well."""

    seconds: float
    output: str


class Contender:
    """A project with one adapter's profile; all contenders get the same files."""

    label: ClassVar[str]

    def __init__(self, root: Path, files: Files, warehouse: Path | None = None) -> None:
        self.root = root
        self.warehouse = warehouse or root / "lakehouse"
        self.warehouse.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        self.write_profile()

    def write_profile(self) -> None:
        # JSON is YAML, too.
        output = {"schema": SCHEMA, "threads": THREADS, **self.profile()}
        profile = {"bench": {"target": "bench", "outputs": {"bench": output}}}
        (self.root / "profiles.yml").write_text(json.dumps(profile, indent=2))

    def profile(self) -> dict[str, Any]:
        """The adapter's part of the profile."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Variables that the adapter's commands get."""
        return {}

    def dbt(self, *arguments: str) -> Done:
        """Run a dbt command.

        Raises:
            BenchmarkError: the command failed.
        """
        command = [str(Path(sys.executable).with_name("dbt")), "--no-use-colors", *arguments]
        command += ["--project-dir", str(self.root), "--profiles-dir", str(self.root)]
        time.sleep(REST_SECONDS)
        begin = time.perf_counter()
        process = subprocess.run(
            command,
            cwd=self.root,
            env=_quiet_environment() | self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seconds = time.perf_counter() - begin
        if process.returncode:
            raise BenchmarkError(
                f"`dbt {' '.join(arguments)}` of {self.label} failed:\n{process.stdout[-4000:]}"
            )
        return Done(seconds, process.stdout)

    def seconds(self, *arguments: str) -> float:
        return self.dbt(*arguments).seconds

    def node_seconds(self) -> float:
        """The time that dbt counts for the nodes of the last command: no start-up in it."""
        results = json.loads((self.root / "target" / "run_results.json").read_text())["results"]
        return float(sum(result["execution_time"] for result in results))

    def lake(self) -> IcebergCatalog:
        """The catalog that the project writes to."""
        return IcebergCatalog(CATALOG, SqliteBackend(CATALOG, self.warehouse))

    def rows(self) -> dict[str, int | None]:
        """Row counts of all tables; None for a view."""
        lake = self.lake()
        try:
            return {
                name: _row_count(lake, name) if kind == "table" else None
                for name, kind in sorted(lake.relations(SCHEMA))
            }
        finally:
            lake.close()


class Ours(Contender):
    """iceberg_stream; its engine is left warm between commands."""

    label = "iceberg_stream"
    keep_alive = KEEP_ALIVE

    def __init__(
        self, root: Path, files: Files, engine: Path, warehouse: Path | None = None
    ) -> None:
        self.engine = engine
        super().__init__(root, files, warehouse)

    def profile(self) -> dict[str, Any]:
        return {
            "type": "iceberg_stream",
            "warehouse": str(self.warehouse),
            "engine_home": str(self.engine),
            "keep_alive": self.keep_alive,
        }


class Shell:
    """`iceberg-stream shell` on a project, which reads its lines from a pipe."""

    # It is refused at once, with a line of output.
    END = "init"
    ENDED = "Error: `init`"

    def __init__(self, contender: Ours) -> None:
        self._contender = contender

    def __enter__(self) -> Shell:
        root = str(self._contender.root)
        program = str(Path(sys.executable).with_name("iceberg-stream"))
        self._process = subprocess.Popen(
            [program, "shell", "--project-dir", root, "--profiles-dir", root],
            cwd=root,
            env=_quiet_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("exit\n")

    def seconds(self, *arguments: str) -> float:
        """Type a command, and return the seconds until it has ended.

        Raises:
            BenchmarkError: the command failed.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        time.sleep(REST_SECONDS)
        begin = time.perf_counter()
        stdin.write(f"{shlex.join(arguments)}\n{self.END}\n")
        stdin.flush()
        output = []
        while not (line := stdout.readline()).startswith(self.ENDED):
            output.append(line)
            if not line:
                raise BenchmarkError(f"The shell has ended:\n{''.join(output)}")
        seconds = time.perf_counter() - begin
        if not any("Completed successfully" in line for line in output):
            raise BenchmarkError(f"`{' '.join(arguments)}` failed:\n{''.join(output)}")
        return seconds


class OursCold(Ours):
    """iceberg_stream with no engine before and after each command."""

    label = "iceberg_stream, cold"
    keep_alive = 0

    def prepare(self) -> None:
        """Build the project once, untimed."""
        # An engine that ends by itself leaves the archive of JVM classes that every later start
        # uses: a user has it from the first command on.
        self.keep_alive = ARCHIVE_KEEP_ALIVE
        self.write_profile()
        super(Ours, self).dbt("build")
        server = status(self.engine)
        deadline = time.monotonic() + ARCHIVE_SECONDS
        while server and server.supervisor.alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.keep_alive = 0
        self.write_profile()
        # The changed profile makes dbt parse everything once more.
        self.dbt("run")

    def dbt(self, *arguments: str) -> Done:
        stop(self.engine)
        done = super().dbt(*arguments)
        stop(self.engine)
        return done


class Peer(Contender):
    """dbt-spark in the session mode, with the same jars, catalog and settings as ours."""

    label = "dbt-spark session"

    def profile(self) -> dict[str, Any]:
        jars = resolve_packages(DEFAULT_PACKAGES, find_java(), None)
        return self._spark_profile(
            {
                # Files, so that no Ivy run burdens the start.
                "spark.jars": ",".join(str(jar) for jar in jars),
                "spark.sql.extensions": ICEBERG_EXTENSIONS,
                "spark.master": "local[*]",
                "spark.driver.memory": "2g",
                "spark.ui.enabled": "false",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1)),
                **spark_settings(CATALOG, self.warehouse),
            }
        )

    def _spark_profile(self, parameters: dict[str, str]) -> dict[str, Any]:
        return {
            "type": "spark",
            "method": "session",
            "host": "NA",
            "server_side_parameters": parameters,
        }

    def environment(self) -> dict[str, str]:
        java_home = find_java().executable.resolve().parent.parent
        return {"JAVA_HOME": str(java_home), "PYSPARK_PYTHON": sys.executable}


class WarmPeer(Peer):
    """dbt-spark, unmodified, as a client of our own warm server: the stronger peer."""

    label = "dbt-spark on a warm Connect server"

    def __init__(
        self, root: Path, files: Files, engine: Path, warehouse: Path | None = None
    ) -> None:
        self._engine = engine
        super().__init__(root, files, warehouse)

    def profile(self) -> dict[str, Any]:
        return self._spark_profile(spark_settings(CATALOG, self.warehouse))

    def environment(self) -> dict[str, str]:
        server = status(self._engine)
        if server is None:
            raise BenchmarkError("The warm engine has gone.")
        # dbt-spark connects by TCP only.
        proxy = TcpProxy(server.socket)
        return super().environment() | {"SPARK_REMOTE": f"sc://127.0.0.1:{proxy.port}"}


def require_same_rows(contenders: list[Contender]) -> None:
    """Check that all have built the same relations with the same numbers of rows.

    Raises:
        BenchmarkError: they differ, or nothing was built.
    """
    counts = {contender.label: contender.rows() for contender in contenders}
    first = next(iter(counts.values()))
    if not first or any(count != first for count in counts.values()):
        raise BenchmarkError(f"The tables differ: {counts}")


def _row_count(lake: IcebergCatalog, name: str) -> int:
    metadata = lake.metadata((SCHEMA, name))
    snapshot = current_snapshot(metadata) if metadata else None
    return int(snapshot.properties["total-records"]) if snapshot else 0


def _quiet_environment() -> dict[str, str]:
    """The user's environment without what would redirect Spark or dbt, or slow down imports."""
    dropped = ("SPARK_", "PYSPARK_", "DBT_", "PYTHONDONTWRITEBYTECODE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    cache = os.environ.get("DBT_ICEBERG_STREAM_CACHE")
    kept |= {"DBT_ICEBERG_STREAM_CACHE": cache} if cache else {}
    return kept | {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
