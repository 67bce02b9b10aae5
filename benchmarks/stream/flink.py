"""Flink's Iceberg sink, in an environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from benchmarks.harness import BenchmarkError
from dbt.adapters.iceberg_stream.engines.jars import MAVEN_CENTRAL
from dbt.adapters.iceberg_stream.engines.java import find_java

FLINK, ICEBERG, HADOOP, KAFKA = "2.1.3", "1.11.0", "3.4.2", "4.0.1-2.0"
# The only one of Flink 2 that Maven Central has; it runs in this Flink.
PARQUET = "2.3.0"
# The newest of Flink 2.1 that Maven Central has.
AVRO = "2.1.0"
PEER = f"Flink {FLINK}, Iceberg {ICEBERG}"
JARS = (
    f"org/apache/iceberg/iceberg-flink-runtime-2.1/{ICEBERG}",
    f"org/apache/hadoop/hadoop-client-api/{HADOOP}",
    f"org/apache/hadoop/hadoop-client-runtime/{HADOOP}",
    f"org/apache/flink/flink-sql-connector-kafka/{KAFKA}",
    f"org/apache/flink/flink-sql-parquet/{PARQUET}",
    f"org/apache/flink/flink-sql-avro-confluent-registry/{AVRO}",
)
JOB = Path(__file__).with_name("flink_job.py")


@dataclass
class Flink:
    """A process whose JVM stays, so that only its first job finds it cold.

    Attributes:
        warehouse: of a Hadoop catalog.
        start_seconds: until Flink took jobs.
    """

    warehouse: Path
    process: subprocess.Popen[str]
    log: Path
    start_seconds: float = 0.0

    def run(self, table: str, source: Mapping[str, str]) -> float:
        """Upsert a bounded source into a new table: seconds from the job's submission to its end.

        Raises:
            BenchmarkError: Flink has failed; the end of its log.
        """
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"table": table, "source": source}) + "\n")
            self.process.stdin.flush()
        return float(self.answer()["seconds"])

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                return said
        raise BenchmarkError(f"Flink has ended:\n{self.log.read_text()[-3000:]}")

    def settings(self) -> dict[str, str]:
        """The catalog's for Spark, by the name of `flink`."""
        prefix = "spark.sql.catalog.flink"
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.type": "hadoop",
            f"{prefix}.warehouse": f"file://{self.warehouse}",
            f"{prefix}.cache-enabled": "false",
        }


@contextlib.contextmanager
def flink(folder: Path) -> Iterator[Flink]:
    """Start Flink with two slots and the heap that our engine has."""
    python = python_of_flink()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "flink.log"
    java = find_java().executable.resolve()
    environment = {
        **os.environ,
        "JAVA_HOME": str(java.parent.parent),
        "JVM_ARGS": "-Xmx2g",
        "FLINK_LOG_DIR": str(folder),
    }
    environment.pop("PYTHONPATH", None)
    begin = time.perf_counter()
    with open(log, "w") as file:
        process = subprocess.Popen(
            [str(python), str(JOB), str(folder / "warehouse")],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    made = Flink(folder / "warehouse", process, log)
    try:
        made.answer()
        made.start_seconds = time.perf_counter() - begin
        yield made
    finally:
        # The end of its input ends the process, and that its JVM.
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def files_source(folder: Path) -> dict[str, str]:
    return {"connector": "filesystem", "path": f"file://{folder}", "format": "parquet"}


def kafka_source(bootstrap: str, topic: str, registry: str = "") -> dict[str, str]:
    """All that the topic has now: JSON, or Avro if there is the address of a registry."""
    message_format = {"format": "json"}
    if registry:
        message_format = {"format": "avro-confluent", "avro-confluent.url": registry}
    return {
        "connector": "kafka",
        "topic": topic,
        "properties.bootstrap.servers": bootstrap,
        "properties.group.id": "bench",
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        **message_format,
    }


def python_of_flink() -> Path:
    """The Python that has Flink and the jars, made on first use."""
    cache = Path(platformdirs.user_cache_dir("dbt-iceberg-stream")) / "tests"
    home = cache / f"flink-{FLINK}-{ICEBERG}"
    cache.mkdir(parents=True, exist_ok=True)
    python = home / "bin" / "python"
    with FileLock(home.with_name(home.name + ".lock")):
        if not (home / "done").exists():
            print("  fetching Flink", flush=True)
            shutil.rmtree(home, ignore_errors=True)
            _make(home, python)
            (home / "done").touch()
        _fetch_jars(python)
    return python


def _make(home: Path, python: Path) -> None:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(home)], [*pip, f"apache-flink=={FLINK}"]):
        subprocess.run(command, check=True)


def _fetch_jars(python: Path) -> None:
    """Fetch what JARS has and Flink has not yet."""
    where = [str(python), "-c", "import pyflink; print(pyflink.__path__[0])"]
    output = subprocess.run(where, check=True, capture_output=True, text=True).stdout
    for jar in JARS:
        name, version = jar.rsplit("/", 2)[1:]
        file = f"{name}-{version}.jar"
        target = Path(output.strip()) / "lib" / file
        if target.exists():
            continue
        part = target.with_suffix(".part")
        with (
            urllib.request.urlopen(f"{MAVEN_CENTRAL}{jar}/{file}") as source,
            open(part, "wb") as opened,
        ):
            shutil.copyfileobj(source, opened)
        part.rename(target)
