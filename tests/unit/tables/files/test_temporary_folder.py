"""Temporary folders and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from dbt.adapters.iceberg_stream.tables.files import temporary_folder
from dbt.adapters.iceberg_stream.tables.files.temporary_folder import TemporaryFolder

PROCESS = """
import time
from dbt.adapters.iceberg_stream.tables.files.temporary_folder import TemporaryFolder
folder = TemporaryFolder("keys")
(folder.path / "run").write_bytes(bytes(1000))
print("ready", flush=True)
time.sleep(100)
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, in which this process has made no folder yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    temporary_folder._remove_abandoned.cache_clear()
    return tmp_path


@pytest.fixture
def other(parent: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS],
        env={**os.environ, "TMPDIR": str(parent)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_killed_process_leaves_its_folder_to_the_next(
    parent: Path, other: subprocess.Popen[str]
) -> None:
    (before,) = parent.glob("*/run")
    other.send_signal(signal.SIGKILL)
    other.wait()
    TemporaryFolder("diff").close()
    assert before.exists()
    TemporaryFolder("keys").close()
    assert list(parent.iterdir()) == []


def test_folders_in_use_stay(parent: Path, other: subprocess.Popen[str]) -> None:
    mine = TemporaryFolder("keys")
    temporary_folder._remove_abandoned.cache_clear()
    TemporaryFolder("keys").close()
    assert len(list(parent.glob("*/run"))) == 1
    assert mine.path.is_dir()


def test_a_forgotten_folder_is_removed(parent: Path) -> None:
    folder = TemporaryFolder("keys")
    (folder.path / "run").touch()
    assert oct(folder.path.stat().st_mode & 0o777) == "0o700"
    del folder
    assert list(parent.iterdir()) == []


def test_folders_without_a_lock_stay(parent: Path) -> None:
    """Nobody knows whether they are in use."""
    (parent / "iceberg-stream-keys-x").mkdir()
    TemporaryFolder("keys").close()
    assert [path.name for path in parent.iterdir()] == ["iceberg-stream-keys-x"]


def test_a_file_system_without_locks(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So filelock 3 says; version 4 locks by the file itself."""

    def refuse(lock: FileLock, **_: object) -> None:
        Path(lock.lock_file).touch()
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", refuse)
    first = TemporaryFolder("keys")
    temporary_folder._remove_abandoned.cache_clear()
    TemporaryFolder("keys").close()
    assert first.path.is_dir()
    first.close()
    assert list(parent.iterdir()) == []
