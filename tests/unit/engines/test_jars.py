from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.engines import jars
from dbt.adapters.iceberg_stream.engines.java import Java
from dbt.adapters.iceberg_stream.engines.settings import EngineError

JAVA = Java(Path("/java/bin/java"), "17.0.1")
PACKAGE = "org.xerial:sqlite-jdbc:3.50.3.0"


class Ivy:
    """Stands in for the run of Ivy: fetches empty jars, or fails with a text."""

    def __init__(self, fetched: tuple[str, ...] = (), output: str = "") -> None:
        self.fetched, self.output, self.calls = fetched, output, 0

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        self.command = command
        folder = Path(command[-1]).parent
        folder.mkdir()
        for name in self.fetched:
            (folder / name).write_text("")
        return subprocess.CompletedProcess(command, 0 if self.fetched else 1, self.output)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DBT_ICEBERG_STREAM_CACHE", str(tmp_path))
    return tmp_path


def use(monkeypatch: pytest.MonkeyPatch, ivy: Ivy) -> Ivy:
    monkeypatch.setattr(jars.subprocess, "run", ivy)
    return ivy


def test_fetches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ivy = use(monkeypatch, Ivy(("org.xerial_sqlite-jdbc-3.50.3.0.jar",)))
    first = jars.resolve_packages((PACKAGE,), JAVA, None)
    assert [jar.name for jar in first] == ["org.xerial_sqlite-jdbc-3.50.3.0.jar"]
    assert jars.resolve_packages((PACKAGE,), JAVA, None) == first
    assert ivy.calls == 1


def test_many_at_once_fetch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ivy = use(monkeypatch, Ivy(("org.xerial_sqlite-jdbc-3.50.3.0.jar",)))
    threads = [
        threading.Thread(target=jars.resolve_packages, args=((PACKAGE,), JAVA, None))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ivy.calls == 1


def test_no_packages_need_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    ivy = use(monkeypatch, Ivy())
    assert jars.resolve_packages((), JAVA, None) == []
    assert ivy.calls == 0


@pytest.mark.parametrize("package", ["sqlite-jdbc", "a:b", "a:b:c:d", "a:b:1 ", "../x:b:1/2"])
def test_refuses_what_is_no_coordinate(package: str) -> None:
    with pytest.raises(EngineError, match="group:artifact:version"):
        jars.resolve_packages((package,), JAVA, None)


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (":: org.xerial#sqlite-jdbc;3.50.3.0: not found", "the repository does not have it"),
        ("Host repo1.maven.org not found. url=x", "the host cannot be reached"),
        ("Server access error at url x (Connection refused)", "Connection refused"),
        ("java.io.IOException: No space left on device", "no space left"),
    ],
)
def test_failure_names_coordinate_repository_reason_and_cure(
    output: str, why: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Ivy(output=output))
    with pytest.raises(EngineError) as error:
        jars.resolve_packages((PACKAGE,), JAVA, "https://me:s3cret@mirror.example/maven")
    message = str(error.value)
    for part in (PACKAGE, "https://…@mirror.example/maven", why, "maven_repository", str(cache)):
        assert part in message
    assert "s3cret" not in message
    assert not list((cache / "jars").glob("fetch-*"))


def test_a_partial_fetch_is_no_fetch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Ivy(("other.jar",)))
    with pytest.raises(EngineError, match="Could not fetch org.xerial:sqlite-jdbc"):
        jars.resolve_packages((PACKAGE,), JAVA, None)
    assert not list((cache / "jars").glob("*/"))


def test_unwritable_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "jars").write_text("a file is in the way")
    with pytest.raises(EngineError, match="DBT_ICEBERG_STREAM_CACHE"):
        jars.resolve_packages((PACKAGE,), JAVA, None)


def test_never_a_second_copy_of_sparks_own_jars() -> None:
    bundled = [Path("slf4j-api-2.0.17.jar"), Path("spark-core_2.13-4.1.1.jar")]
    module = jars._ivy_module(("org.x:spark-core_2.13:4.1.0",), bundled)
    assert '<exclude module="slf4j-api"/>' in module
    assert '<exclude module="spark-core_2.13"/>' not in module  # it was asked for


def test_what_was_asked_for_comes_in_that_version() -> None:
    module = jars._ivy_module(("org.x:a:2", "org.y:b_2.13:1"), [])
    assert '<override org="org.y" module="b_2.13" rev="1"/>' in module


def test_archive_changes_with_java_and_jars(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_text("1")
    paths = {jars.class_archive(JAVA, [jar]).path}
    jar.write_text("22")
    paths.add(jars.class_archive(JAVA, [jar]).path)
    paths.add(jars.class_archive(Java(JAVA.executable, "21.0.8"), [jar]).path)
    assert len(paths) == 3


def test_archive_gets_a_base_where_java_has_none(tmp_path: Path) -> None:
    java = Java(tmp_path / "bin" / "java", "17.0.1")
    slim = jars.class_archive(java, [])
    assert slim.create_options(Path("/d"))[0] == f"-XX:SharedArchiveFile={slim.base}"
    server = tmp_path / "lib" / "server"
    server.mkdir(parents=True)
    (server / "classes.jsa").write_text("")
    assert jars.class_archive(java, []).create_options(Path("/d")) == [
        "-XX:ArchiveClassesAtExit=/d"
    ]
