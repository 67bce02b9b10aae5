"""A Spark standalone cluster (a master and two workers) behind a Spark Connect server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dbt.adapters.iceberg_stream.engines.jars import own_jar, resolve_packages, spark_jars
from dbt.adapters.iceberg_stream.engines.java import find_java
from dbt.adapters.iceberg_stream.engines.launch import ICEBERG_EXTENSIONS, STATEMENT_GUARD
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES
from tests.servers.ports import free_port, wait_for

WORKERS = 2
TOKEN = "cluster-token"


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster; its Connect server answers on `localhost` to TOKEN only."""

    port: int
    server: subprocess.Popen[bytes]


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """Run a cluster whose logs and scratch files lie in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        master_port, port = free_port(), free_port()
        master = f"spark://127.0.0.1:{master_port}"

        def run(name: str, *arguments: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(_process(folder, name, arguments))

        process = run(
            "master",
            *("spark-class", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"),
            *("--port", str(master_port), "--webui-port", str(free_port())),
        )
        wait_for(master_port, process, folder / "master.log")
        for number in range(WORKERS):
            run(
                f"worker{number}",
                *("spark-class", "org.apache.spark.deploy.worker.Worker", master),
                *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g"),
                *("--webui-port", str(free_port()), "--work-dir", str(folder / f"work{number}")),
            )
        process = run("connect", "spark-submit", *_connect_options(master, port))
        wait_for(port, process, folder / "connect.log")
        yield SparkCluster(port, process)


@contextlib.contextmanager
def connect_server(
    folder: Path, port: int, python: str = sys.executable
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Spark Connect server without a cluster; it answers as a cluster's does.

    Args:
        folder: of logs and scratch files.
        port: it listens to.
        python: of Spark's tasks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = _connect_options("local[2]", port)
    with _process(folder, "connect", ("spark-submit", *options), python) as process:
        wait_for(port, process, folder / "connect.log")
        yield process


def _connect_options(master: str, port: int) -> list[str]:
    jars = [own_jar(), *resolve_packages(DEFAULT_PACKAGES, find_java(), None)]
    settings = {
        "spark.sql.extensions": f"{ICEBERG_EXTENSIONS},{STATEMENT_GUARD}",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.executor.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(WORKERS),
    }
    conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    return ["--master", master, "--jars", ",".join(map(str, jars)), *conf, *main]


@contextlib.contextmanager
def _process(
    folder: Path, name: str, arguments: tuple[str, ...], python: str = sys.executable
) -> Iterator[subprocess.Popen[bytes]]:
    program, *rest = arguments
    home = spark_jars()[0].parent.parent
    java_home = find_java().executable.resolve().parent.parent
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))},
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN,
        "PYSPARK_PYTHON": python,
    }
    with open(folder / f"{name}.log", "w") as log:
        process = subprocess.Popen(
            [str(home / "bin" / program), *rest],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # The scripts start Java as a child: the whole group ends.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
