"""Starts the server: its command, its environment, and the supervisor that runs it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dbt.adapters.iceberg_stream.engines.jars import (
    TRAINING,
    class_archive,
    own_jar,
    resolve_packages,
    spark_jars,
)
from dbt.adapters.iceberg_stream.engines.java import diagnose, find_java
from dbt.adapters.iceberg_stream.engines.scratch import FOLDER, LOG_SETTINGS, SOCKETS, sweep
from dbt.adapters.iceberg_stream.engines.settings import (
    CLOUD_VARIABLES,
    SECRET,
    EngineError,
    EngineSettings,
    EngineStatus,
)

MAIN_CLASS = "icebergstream.SocketServer"
# The longest path of a Unix domain socket on macOS; on Linux, 107 bytes.
LONGEST_SOCKET = 103
STATEMENT_GUARD = "icebergstream.StatementGuard"
# The first two end an engine that can no longer be used.
LISTENERS = (
    "icebergstream.StuckTasks",
    "icebergstream.BrokenClasses",
    "icebergstream.ClosedSessions",
)
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
SUPERVISOR = Path(__file__).with_name("supervisor.py")
POLL = 0.02
CRASH_LOG = "server.crash.log"

# The packages that spark-submit opens for Spark (JavaModuleOptions). spark-submit itself is not
# used because it also adds jdk.incubator.vector, which a slim Java does not have.
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
# Java accepts one collector only, so a user's option replaces ours.
OTHER_COLLECTOR = re.compile(r"-XX:\+Use\w+GC$")
JVM_OPTIONS = (
    # Plans of long SQL recurse deeply.
    "-Xss4m",
    "-XX:-UsePerfData",
    "-XX:-CreateCoredumpOnCrash",
    # The optimizing compiler waits for ten times as many calls as by default, which makes the
    # start a fifth shorter; a long query reaches the thresholds almost at once.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    # The collector with the cheapest write barriers: a tenth less work at the start. The initial
    # metaspace fits Spark's classes, so that loading them causes no collection.
    COLLECTOR,
    "-XX:MetaspaceSize=512m",
    # No warnings about an unusable archive, which only costs time.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
)

# Prevents the AWS SDK from using credentials of files and metadata services. The catalog's setting
# `client.credentials-provider` is no alternative: it overrides vended credentials.
NO_CLOUD_CREDENTIALS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
# These variables would override the profile's settings.
FOREIGN_VARIABLES = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "HIVE_", "CLASSPATH")
LOOPBACK = "127.0.0.1"
# dbt's prefix of secrets: the server serves other clients, too, whose SQL can read its environment.
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
logger.socket.name = io.netty.bootstrap.ServerBootstrap
logger.socket.level = error
"""


def server_arguments(
    settings: EngineSettings,
    class_path: Iterable[Path],
    socket: Path,
    scratch: Path,
    archive: Iterable[str] = (),
) -> list[str]:
    """Return the arguments of `java`.

    Args:
        settings: the engine's settings.
        class_path: the jars.
        socket: path of the server's socket.
        scratch: folder of temporary files.
        archive: JVM options that use or create an AppCDS archive.

    Raises:
        EngineError: a setting is invalid.
    """
    conf = spark_settings(settings, socket.parent, scratch)
    heap = conf.pop("spark.driver.memory").lower().removesuffix("b")
    if not re.fullmatch(r"\d+[kmgt]", heap):
        raise EngineError(f"`driver_memory` must be a size such as 2g or 1500m; got {heap!r}.")
    user_options = shlex.split(conf.pop("spark.driver.extraJavaOptions", ""))
    own_collector = any(map(OTHER_COLLECTOR.match, user_options))
    return [
        f"-Xmx{heap}",
        *(o for o in JVM_OPTIONS if o != COLLECTOR or not own_collector),
        *archive,
        f"-XX:ErrorFile={settings.home / CRASH_LOG}",
        f"-Djava.io.tmpdir={scratch}",
        f"-Dderby.system.home={scratch}",
        f"-Dlog4j2.configurationFile={scratch / 'log4j2.properties'}",
        *user_options,
        *(f"-D{name}={value}" for name, value in conf.items()),
        "-cp",
        os.pathsep.join(str(jar) for jar in class_path),
        MAIN_CLASS,
        str(socket),
    ]


def spark_settings(settings: EngineSettings, sockets: Path, scratch: Path) -> dict[str, str]:
    """Return the server's settings: defaults, overridden by the user's, then required ones.

    Args:
        settings: the engine's settings.
        sockets: folder of the server's sockets.
        scratch: folder of temporary files.

    Raises:
        EngineError: `spark_conf` has packages.
    """
    user = dict(settings.spark_conf)
    if "spark.jars.packages" in user:
        raise EngineError(
            "`spark_conf` must not have `spark.jars.packages`: move its coordinates to `packages`."
        )
    defaults = {
        "spark.app.name": "dbt-iceberg-stream",
        "spark.master": "local[*]",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.ui.enabled": "false",
        # Staged rows leave memory and disk when Java collects their objects.
        "spark.cleaner.periodicGC.interval": "5min",
        "spark.eventLog.enabled": "false",
        "spark.redaction.regex": SECRET,
        "spark.local.dir": str(scratch),
        # A task that runs out of memory fails, and does not end the engine for all its users.
        "spark.executor.killOnFatalError.depth": "0",
        "spark.sql.warehouse.dir": (settings.home / "spark-warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        # Sessions share no compiled code, and what is cached keeps the class loaders of sessions
        # that have ended, some 60 kB for each entry.
        "spark.sql.codegen.cache.maxEntries": "300",
        # One partition per core: small models took twice as long with sixteen.
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1)),
    }
    extensions = user.get("spark.sql.extensions", "")
    if ICEBERG_EXTENSIONS not in extensions:
        extensions = f"{ICEBERG_EXTENSIONS},{extensions}".rstrip(",")
    # The last one has the last word on what the parsers of the others return.
    extensions = f"{extensions},{STATEMENT_GUARD}"
    listeners = [*filter(None, user.get("spark.extraListeners", "").split(",")), *LISTENERS]
    required = {
        "spark.sql.extensions": extensions,
        "spark.extraListeners": ",".join(listeners),
        # The driver's two ports on the loopback address take Java objects, and give out broadcast
        # tokens. Spark makes up the secret itself, and keeps it where no session can read it.
        "spark.authenticate": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(sockets),
    }
    return defaults | user | required


def server_environment(base: Mapping[str, str], ambient: bool = False) -> dict[str, str]:
    """Return the server's environment: the user's, without secrets and Spark's variables.

    Args:
        base: the user's environment.
        ambient: keep cloud credentials.
    """
    cloud = () if ambient else CLOUD_VARIABLES
    dropped = (*FOREIGN_VARIABLES, *SECRET_VARIABLES, *cloud)
    inherited = {k: v for k, v in base.items() if not k.startswith(dropped)}
    return (
        inherited
        | ({} if ambient else NO_CLOUD_CREDENTIALS)
        | {
            # The address of Spark's web pages, which have no setting for it.
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
    )


def argument_file(arguments: Iterable[str]) -> str:
    """Return the text of a java @file, which hides settings from `ps`.

    Args:
        arguments: the arguments of `java`.
    """
    escaped = (argument.replace("\\", "\\\\").replace('"', '\\"') for argument in arguments)
    return "".join(f'"{argument}"\n' for argument in escaped)


class Launch:
    """One start of a server, by the client that holds the launch lock.

    Args:
        settings: the engine's settings.

    Raises:
        EngineError: there is no Java, or a package cannot be downloaded.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._java = find_java(settings.java_home)
        self._class_path = [
            own_jar(),
            *spark_jars(),
            *resolve_packages(settings.packages, self._java, settings.maven_repository),
        ]
        self._archive = class_archive(self._java, self._class_path)

    def run(self) -> EngineStatus:
        """Start the server and wait until it is ready; its supervisor outlives this process.

        Raises:
            EngineError: the server did not start; the message has the log's errors.
        """
        sweep(self._settings.home)
        crash = self._settings.home / CRASH_LOG
        crash.unlink(missing_ok=True)
        archived = self._archive.path.exists()
        server = self._try(archived)
        if archived and crash.exists():
            # Only a damaged archive crashes a JVM at its start; a new one will be created.
            self._archive.path.unlink(missing_ok=True)
            server = self._try(archived=False)
        if server is None:
            log = self._settings.home / "server.log"
            text = log.read_text(errors="replace")
            raise EngineError(f"The engine did not start:\n{diagnose(text)}\nIts log: {log}")
        return server

    def _try(self, archived: bool) -> EngineStatus | None:
        scratch = self._settings.home / FOLDER / secrets.token_hex(4)
        scratch.mkdir(parents=True, mode=0o700)
        (scratch / LOG_SETTINGS).write_text(LOG4J)
        (scratch / SOCKETS).symlink_to(_sockets_folder())
        archive_options = self._archive.use_options() if archived else []
        orders = self._orders(scratch) | self._command(scratch, "server", archive_options)
        # Creating the archive takes a while after the end; with 0 no process may remain.
        if not archived and self._settings.keep_alive > 0:
            orders["training"] = self._training(scratch)
        process = self._supervise(orders)
        while process.poll() is None:
            server = EngineStatus.read(self._settings.home)
            if server and server.ready and server.supervisor.pid == process.pid:
                # Collect its exit status, or it would stay a zombie.
                threading.Thread(target=process.wait, daemon=True).start()
                return server
            time.sleep(POLL)
        return None

    def _command(self, scratch: Path, name: str, archive: list[str]) -> dict[str, Any]:
        socket = (scratch / SOCKETS).readlink() / name
        file = scratch / f"{name}.args"
        arguments = server_arguments(self._settings, self._class_path, socket, scratch, archive)
        file.write_text(argument_file(arguments))
        return {"command": [str(self._java.executable), f"@{file}"], "socket": str(socket)}

    def _training(self, scratch: Path) -> dict[str, Any]:
        draft = scratch / "classes.jsa"
        command = self._command(scratch, "training", self._archive.create_options(draft))
        base = self._archive.base
        dump = [str(self._java.executable), "-Xshare:dump"]
        return command | {
            "base": [*dump, f"-XX:SharedArchiveFile={base}"] if base else None,
            "client": [sys.executable, "-c", TRAINING, command["socket"], str(scratch)],
            "draft": str(draft),
            "archive": str(self._archive.path),
        }

    def _orders(self, scratch: Path) -> dict[str, Any]:
        spark = next((j.stem for j in self._class_path if j.stem.startswith("spark-core")), "")
        return {
            "environment": server_environment(os.environ, self._settings.ambient_credentials),
            # So relative paths in SQL are the same for every client of the project.
            "directory": str(self._settings.home.parent),
            "scratch": str(scratch),
            "sockets": str((scratch / SOCKETS).readlink()),
            "keep_alive": self._settings.keep_alive,
            "start_timeout": self._settings.start_timeout,
            "training": None,
            "record": {
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
                start_new_session=True,  # Ctrl-C must end the command, not the server
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            json.dump(orders, process.stdin)
        return process


def _sockets_folder() -> Path:
    """Create a folder for the user alone; the engine's home may be too deep for a socket."""
    folder = tempfile.mkdtemp(prefix="iceberg-stream-")
    # The longest name is one of Spark's, for a Python worker: a dot, a UUID and `.sock`.
    if len(os.fsencode(folder)) + 43 > LONGEST_SOCKET:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="iceberg-stream-", dir="/tmp")
    return Path(folder)
