"""Starts the server: its command, its environment, and the supervisor that runs it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from dbt.adapters.iceberg_stream.engines.jars import (
    TRAINING,
    class_archive,
    resolve_packages,
    spark_jars,
)
from dbt.adapters.iceberg_stream.engines.java import diagnose, find_java
from dbt.adapters.iceberg_stream.engines.settings import (
    CLOUD_VARIABLES,
    SECRET,
    EngineError,
    EngineSettings,
    EngineStatus,
)

MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
SUPERVISOR = Path(__file__).with_name("supervisor.py")
POLL = 0.02
CRASH_LOG = "server.crash.log"

# What spark-submit opens for Spark (JavaModuleOptions). We write the command line ourselves
# because spark-submit also adds jdk.incubator.vector, which a slim Java does not have.
OPENED_PACKAGES = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)

COLLECTOR = "-XX:+UseParallelGC"
# Java starts with one collector only: the user's own takes the place of ours.
OTHER_COLLECTOR = re.compile(r"-XX:\+Use\w+GC$")
JVM_OPTIONS = (
    # Plans of long SQL recurse deeply.
    "-Xss4m",
    "-XX:-UsePerfData",
    "-XX:-CreateCoredumpOnCrash",
    # The optimizing compiler waits ten times longer than usual before it thinks a method hot:
    # that takes a fifth off the start, and a long query passes the limit in its first instants.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    # The collector with the cheapest writes: a tenth less work at the start, and no collection
    # because Spark's classes outgrow the space that Java begins with.
    COLLECTOR,
    "-XX:MetaspaceSize=512m",
    # Quiet about an archive that does not fit, which only costs time.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
)

# Where the AWS SDK would look for credentials besides its variables. Not by a setting of the
# catalog: `client.credentials-provider` goes before the keys that a catalog vends.
NO_CLOUD_CREDENTIALS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
# They would change the server behind the profile's back.
FOREIGN_VARIABLES = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "HIVE_", "CLASSPATH")
# dbt's name for what must not be shown: the server goes on for others, whose SQL can read it.
SECRET_VARIABLES = ("DBT_ENV_SECRET_",)

LOG4J = """status = error
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_OUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = error
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
"""


def server_arguments(
    settings: EngineSettings,
    class_path: Iterable[Path],
    port: int,
    scratch: Path,
    archive: Iterable[str] = (),
) -> list[str]:
    """Everything after `java`; `archive` are the options that use or make an AppCDS archive."""
    conf = spark_settings(settings, port, scratch)
    heap = conf.pop("spark.driver.memory").lower().removesuffix("b")
    if not re.fullmatch(r"\d+[kmgt]", heap):
        raise EngineError(f"driver_memory `{heap}` is not a size: write for example 2g or 1500m.")
    users = shlex.split(conf.pop("spark.driver.extraJavaOptions", ""))
    return [
        f"-Xmx{heap}",
        *(o for o in JVM_OPTIONS if o != COLLECTOR or not any(map(OTHER_COLLECTOR.match, users))),
        *archive,
        f"-XX:ErrorFile={settings.home / CRASH_LOG}",
        f"-Djava.io.tmpdir={scratch}",
        f"-Dderby.system.home={scratch}",
        f"-Dlog4j2.configurationFile={scratch / 'log4j2.properties'}",
        *users,
        *(f"-D{name}={value}" for name, value in conf.items()),
        "-cp",
        os.pathsep.join(str(jar) for jar in class_path),
        MAIN_CLASS,
    ]


def spark_settings(settings: EngineSettings, port: int, scratch: Path) -> dict[str, str]:
    """Our defaults, then the user's settings, then what the adapter stands on."""
    user = dict(settings.spark_conf)
    if "spark.jars.packages" in user:
        raise EngineError("Write the coordinates of `spark.jars.packages` under `packages`.")
    defaults = {
        "spark.app.name": "dbt-iceberg-stream",
        "spark.master": "local[*]",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "false",
        "spark.redaction.regex": SECRET,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": (settings.home / "spark-warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        # A partition for each core: small models took twice as long with sixteen.
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1)),
    }
    extensions = user.get("spark.sql.extensions", "")
    if ICEBERG_EXTENSIONS not in extensions:
        extensions = f"{ICEBERG_EXTENSIONS},{extensions}".rstrip(",")
    ours = {
        "spark.sql.extensions": extensions,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    return defaults | user | ours


def server_environment(
    token: str, base: Mapping[str, str], ambient: bool = False
) -> dict[str, str]:
    """The user's environment with the server's token, without secrets and what redirects Spark.

    `ambient` leaves the cloud credentials in it.
    """
    cloud = () if ambient else CLOUD_VARIABLES
    dropped = (*FOREIGN_VARIABLES, *SECRET_VARIABLES, *cloud)
    kept = {k: v for k, v in base.items() if not k.startswith(dropped)}
    return (
        kept
        | ({} if ambient else NO_CLOUD_CREDENTIALS)
        | {
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
    )


def argument_file(arguments: Iterable[str]) -> str:
    """The text of a java @file: it keeps settings, which may be secret, out of `ps`."""
    escaped = (argument.replace("\\", "\\\\").replace('"', '\\"') for argument in arguments)
    return "".join(f'"{argument}"\n' for argument in escaped)


class Launch:
    """One start of a server, by the client that holds the launch lock."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._java = find_java(settings.java_home)
        self._class_path = [
            *spark_jars(),
            *resolve_packages(settings.packages, self._java, settings.maven_repository),
        ]
        self._archive = class_archive(self._java, self._class_path)

    def run(self) -> EngineStatus:
        """The server, ready; its supervisor goes on without us.

        Raises:
            EngineError: with what the log says, if it does not start.
        """
        _sweep(self._settings.home / "tmp")
        crash = self._settings.home / CRASH_LOG
        crash.unlink(missing_ok=True)
        archived = self._archive.path.exists()
        server = self._try(archived)
        if archived and crash.exists():
            # A broken archive is the one thing here that crashes a JVM; a new one will be made.
            self._archive.path.unlink(missing_ok=True)
            server = self._try(archived=False)
        if server is None:
            log = self._settings.home / "server.log"
            text = log.read_text(errors="replace")
            raise EngineError(f"The engine did not start:\n{diagnose(text)}\nIts log: {log}")
        return server

    def _try(self, archived: bool) -> EngineStatus | None:
        scratch = self._settings.home / "tmp" / secrets.token_hex(4)
        scratch.mkdir(parents=True, mode=0o700)
        (scratch / "log4j2.properties").write_text(LOG4J)
        used = self._archive.used() if archived else []
        orders = self._orders(scratch) | self._command(scratch, "server", used)
        # Making the archive takes a while after the end, when 0 says that nothing may be left.
        if not archived and self._settings.keep_alive > 0:
            orders["training"] = self._training(scratch)
        process = self._supervise(orders)
        while process.poll() is None:
            server = EngineStatus.read(self._settings.home)
            if server and server.ready and server.supervisor.pid == process.pid:
                # Its exit status must be collected one day, or it would look alive for ever.
                threading.Thread(target=process.wait, daemon=True).start()
                return server
            time.sleep(POLL)
        return None

    def _command(self, scratch: Path, name: str, archive: list[str]) -> dict[str, Any]:
        port = _free_port()
        file = scratch / f"{name}.args"
        arguments = server_arguments(self._settings, self._class_path, port, scratch, archive)
        file.write_text(argument_file(arguments))
        return {"command": [str(self._java.executable), f"@{file}"], "port": port}

    def _training(self, scratch: Path) -> dict[str, Any]:
        draft = scratch / "classes.jsa"
        command = self._command(scratch, "training", self._archive.made(draft))
        base = self._archive.base
        dump = [str(self._java.executable), "-Xshare:dump"]
        return command | {
            "base": [*dump, f"-XX:SharedArchiveFile={base}"] if base else None,
            "client": [sys.executable, "-c", TRAINING, str(command["port"]), str(scratch)],
            "draft": str(draft),
            "archive": str(self._archive.path),
        }

    def _orders(self, scratch: Path) -> dict[str, Any]:
        token = secrets.token_urlsafe(24)
        spark = next((j.stem for j in self._class_path if j.stem.startswith("spark-core")), "")
        return {
            "environment": server_environment(
                token, os.environ, self._settings.ambient_credentials
            ),
            # Relative paths in SQL mean the same to every client of the project.
            "directory": str(self._settings.home.parent),
            "scratch": str(scratch),
            "keep_alive": self._settings.keep_alive,
            "start_timeout": self._settings.start_timeout,
            "training": None,
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


def _sweep(folder: Path) -> None:
    """Removes the scratch folders of servers that could not do it themselves."""
    for scratch in folder.glob("*"):
        try:
            owner = int((scratch / "supervisor.pid").read_text())
        except (OSError, ValueError):
            owner = 0
        if not owner or not psutil.pid_exists(owner):
            shutil.rmtree(scratch, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
