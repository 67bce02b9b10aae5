"""The command that starts the server, and what its log says when that fails. No side effects."""

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .settings import EngineError, EngineSettings

MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

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

# They would change the server behind the profile's back.
FOREIGN_VARIABLES = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "HIVE_", "CLASSPATH")

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
"""


@dataclass(frozen=True)
class Archive:
    """An AppCDS archive: JVM classes ready to be mapped, which halves the start."""

    path: Path
    dump_to: Path | None = None  # set when this server is the one to make it

    def options(self) -> list[str]:
        if self.dump_to:
            return [f"-XX:ArchiveClassesAtExit={self.dump_to}"]
        # `auto`: an archive that does not fit is ignored.
        return [f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto"]


def archive_name(java_version: str, executable: Path, class_path: Iterable[Path]) -> str:
    """A name that changes with everything that would make the archive stale."""
    facts = [java_version, str(executable.resolve())]
    for jar in class_path:
        stat = jar.stat()
        facts.append(f"{jar}:{stat.st_size}:{stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16] + ".jsa"


def server_arguments(
    settings: EngineSettings,
    class_path: Iterable[Path],
    port: int,
    scratch: Path,
    archive: Archive | None = None,
) -> list[str]:
    """Everything after `java`."""
    conf = spark_settings(settings, port, scratch)
    heap = conf.pop("spark.driver.memory").lower().removesuffix("b")
    if not re.fullmatch(r"\d+[kmgt]", heap):
        raise EngineError(f"driver_memory `{heap}` is not a size: write for example 2g or 1500m.")
    extra = shlex.split(conf.pop("spark.driver.extraJavaOptions", ""))
    return [
        f"-Xmx{heap}",
        # Plans of long SQL recurse deeply.
        "-Xss4m",
        "-XX:-UsePerfData",
        *(archive.options() if archive else ()),
        # Quiet about an archive that does not fit; it only costs time.
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        # A crash must not litter the project.
        f"-XX:ErrorFile={settings.home / 'server.crash.log'}",
        "-XX:-CreateCoredumpOnCrash",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES),
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djava.net.preferIPv4Stack=true",
        f"-Djava.io.tmpdir={scratch}",
        f"-Dderby.system.home={scratch}",
        f"-Dlog4j2.configurationFile={scratch / 'log4j2.properties'}",
        *extra,
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
    cores = os.cpu_count() or 1
    defaults = {
        "spark.app.name": "dbt-iceberg-stream",
        "spark.master": "local[*]",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "false",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": (settings.home / "spark-warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        # Adaptive execution joins small partitions: the number only bounds the large ones.
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": str(max(16, 2 * cores)),
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


def server_environment(token: str, base: Mapping[str, str]) -> dict[str, str]:
    """The user's environment without what would redirect Spark, and with the token."""
    kept = {k: v for k, v in base.items() if not k.startswith(FOREIGN_VARIABLES)}
    return kept | {
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def argument_file(arguments: Iterable[str]) -> str:
    """The text of a java @file: it keeps settings, which may be secret, out of `ps`."""
    escaped = (argument.replace("\\", "\\\\").replace('"', '\\"') for argument in arguments)
    return "".join(f'"{argument}"\n' for argument in escaped)


CURES = (
    (
        r"No space left on device|ENOSPC",
        "The disk is full: free some space and run again.",
    ),
    (
        r"Could not reserve enough space|insufficient memory|Cannot allocate memory"
        r"|Invalid maximum heap size|Too small (?:maximum|initial) heap|OutOfMemoryError"
        r"|System memory \d+ must be at least|larger than the max",
        "The machine or the heap has the wrong size for this: change `driver_memory`.",
    ),
    (
        r"Address already in use|BindException",
        "Another program took the port in the same moment: run again.",
    ),
    (
        r"UnsupportedClassVersionError|getSubject is not supported",
        "This Java cannot run Spark: point `java_home` to a Java 17 or 21.",
    ),
    (
        r"ClassNotFoundException|NoClassDefFoundError|Could not find or load main class",
        "A class is missing: check `packages` and `spark_conf`, or clear the cache of jars.",
    ),
)


def diagnose(log: str) -> str:
    """The lines of a server's log that matter, and the cure if we know it."""
    lines = [line.strip() for line in log.splitlines()]
    lines = [line for line in lines if line and not re.match(r"at |\.\.\. \d+ |[*#]", line)]
    causes = [line for line in lines if re.search(r"Error|Exception|error|Caused by|ERROR", line)]
    # The first failure and the last: between them there are only its echoes.
    shown = list(dict.fromkeys([*causes[:2], *causes[-2:]])) or lines[-5:]
    cure = next((text for pattern, text in CURES if re.search(pattern, log)), "")
    return "\n".join(f"  {line[:300]}" for line in shown) + (f"\n{cure}" if cure else "")
