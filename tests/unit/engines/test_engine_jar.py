"""The committed jar is what its sources say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines.jars import own_jar
from tests.engine_jar import RELEASE, build, contents


def has_compiler() -> bool:
    """Whether there is a compiler that makes the same bytes as that of the jar."""
    if shutil.which("javac") is None:
        return False
    done = subprocess.run(["javac", "-version"], capture_output=True, text=True)
    found = re.search(r"javac (\d+)", done.stdout + done.stderr)
    return found is not None and found[1] == RELEASE


@pytest.mark.skipif(not has_compiler(), reason=f"needs the compiler of a JDK {RELEASE}")
def test_the_jar_is_built_from_the_sources(tmp_path: Path) -> None:
    build(tmp_path / "built.jar")
    assert contents(tmp_path / "built.jar") == contents(own_jar())
