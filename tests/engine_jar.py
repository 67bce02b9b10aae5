"""Build the jar of the engine from its Java sources: `python -m tests.engine_jar`.

The jar is committed, because users have no Java compiler. The same sources and the same major version of
the JDK make the same bytes, so that a test can compare them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from dbt.adapters.iceberg_stream.engines.jars import own_jar, resolve_packages, spark_jars
from dbt.adapters.iceberg_stream.engines.java import find_java
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES

SOURCES = own_jar().parent / "src"
# Spark 4.1 runs on Java 17 and 21.
RELEASE = "17"
# The smallest date that a zip file can have.
DATE = (1980, 1, 1, 0, 0, 0)


def build(jar: Path) -> None:
    """Compile the sources and write the jar.

    Args:
        jar: the file to write.

    Raises:
        subprocess.CalledProcessError: the sources cannot be compiled.
    """
    with tempfile.TemporaryDirectory() as folder:
        jars = [*spark_jars(), *resolve_packages(DEFAULT_PACKAGES, find_java(), None)]
        class_path = ":".join(str(path) for path in jars)
        sources = [str(path) for path in sorted(SOURCES.rglob("*.java"))]
        options = ["--release", RELEASE, "-g:none", "-Xlint:none", "-proc:none", "-nowarn"]
        subprocess.run(["javac", *options, "-cp", class_path, "-d", folder, *sources], check=True)
        classes = Path(folder)
        files = {str(path.relative_to(classes)): path for path in classes.rglob("*.class")}
        files |= {str(path.relative_to(SOURCES)): path for path in SOURCES.rglob("*.txt")}
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                archive.writestr(
                    zipfile.ZipInfo(name, DATE), files[name].read_bytes(), zipfile.ZIP_DEFLATED
                )


def contents(jar: Path) -> dict[str, bytes]:
    """Return the files of a jar.

    Args:
        jar: the jar.
    """
    with zipfile.ZipFile(jar) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


if __name__ == "__main__":
    build(own_jar())
    print(f"{own_jar()}: {own_jar().stat().st_size:,} bytes")
    sys.exit()
