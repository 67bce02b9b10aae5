from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.cli.engine import HOME
from dbt.adapters.iceberg_stream.engines import embedded
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine, Lease, status, stop
from dbt.adapters.iceberg_stream.engines.scratch import sweep
from dbt.adapters.iceberg_stream.engines.settings import EngineError, EngineSettings, EngineStatus


class Launches:
    """Stands in for the start of a server: the socket is ours, the processes are this test's."""

    def __init__(self, home: Path) -> None:
        self.home, self.count = home, 0
        self.socket = Path(tempfile.mkdtemp()) / "server"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.socket))
        self.listener.listen()

    def __call__(self, settings: EngineSettings) -> Launches:
        self.settings = settings
        return self

    def run(self) -> EngineStatus:
        self.count += 1
        time.sleep(0.05)
        write_record(self.home, socket=str(self.socket), fingerprint=self.settings.fingerprint())
        server = EngineStatus.read(self.home)
        assert server is not None
        return server


@pytest.fixture(autouse=True)
def closed_leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a process would hold until it ends."""
    leases, initialize = [], Lease.__init__

    def initialize_and_note(lease: Lease, *arguments: Any) -> None:
        initialize(lease, *arguments)
        leases.append(lease)

    monkeypatch.setattr(Lease, "__init__", initialize_and_note)
    yield
    for lease in leases:
        lease.close()


def write_record(home: Path, **changes: Any) -> None:
    own = {"pid": os.getpid(), "created": psutil.Process().create_time()}
    record = {
        "ready": True,
        "socket": "/nowhere/server",
        "supervisor": own,
        "jvm": own,
        "started": 0.0,
        "fingerprint": "f",
        "settings": "driver_memory=1g",
        "java": "17",
        "spark": "4.1.1",
    }
    (home / "server.json").write_text(json.dumps(record | changes))
    (home / "server.json").chmod(0o600)


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    fake = Launches(tmp_path)
    monkeypatch.setattr(embedded, "Launch", fake)
    with fake.listener:
        yield fake


def engine(home: Path, **changes: Any) -> EmbeddedEngine:
    return EmbeddedEngine(EngineSettings(home=home, **changes))


def test_prestart_returns_at_once_and_threads_share_one_start(
    tmp_path: Path, launches: Launches
) -> None:
    one = engine(tmp_path)
    began = time.monotonic()
    one.prestart()
    assert time.monotonic() - began < 0.05
    threads = [threading.Thread(target=one.endpoint) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert launches.count == 1


def test_a_second_engine_attaches(tmp_path: Path, launches: Launches) -> None:
    assert engine(tmp_path).endpoint() == engine(tmp_path).endpoint()
    assert launches.count == 1


@pytest.mark.parametrize(
    "stale",
    [
        {"supervisor": {"pid": os.getpid(), "created": 1.0}},  # the number was given away
        {"supervisor": {"pid": 2**22 + 1, "created": 1.0}},
        {"jvm": {"pid": 2**22 + 1, "created": 1.0}, "supervisor": {"pid": 1, "created": 1.0}},
        {"version_of_a_later_release": 2},
    ],
)
def test_stale_record_is_replaced(
    tmp_path: Path, launches: Launches, stale: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    own = {"pid": os.getpid(), "created": 1.0}
    write_record(tmp_path, **{"jvm": own} | stale)
    assert engine(tmp_path).endpoint().socket == launches.socket
    assert killed == []


def test_damaged_record_is_replaced(tmp_path: Path, launches: Launches) -> None:
    (tmp_path / "server.json").write_text('{"port": 1')
    (tmp_path / "server.json").chmod(0o600)
    engine(tmp_path).endpoint()
    assert launches.count == 1


def test_other_settings_while_in_use(tmp_path: Path, launches: Launches) -> None:
    first = engine(tmp_path)
    first.endpoint()
    with pytest.raises(EngineError) as error:
        engine(tmp_path, driver_memory="7g").endpoint()
    for part in (str(os.getpid()), "driver_memory=7g", "iceberg-stream stop", str(tmp_path)):
        assert part in str(error.value)


def test_a_failure_reaches_every_waiter_and_gives_the_lease_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(settings: EngineSettings) -> None:
        raise EngineError("no Java")

    monkeypatch.setattr(embedded, "Launch", fail)
    one = engine(tmp_path)
    for _ in range(2):
        with pytest.raises(EngineError, match="no Java"):
            one.endpoint()
    assert Lease(tmp_path, 0).alone()


def test_home_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="cannot be used"):
        engine(tmp_path / "file" / "home").endpoint()


def test_release_during_a_start_gives_the_lease_back(tmp_path: Path, launches: Launches) -> None:
    one = engine(tmp_path)
    one.prestart()
    one.release()
    deadline = time.monotonic() + 5
    while not launches.count and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert Lease(tmp_path, 0).alone()


def test_lease_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import fcntl, sys, time\n"
        f"f = open({str(tmp_path / 'clients.lock')!r}, 'a'); fcntl.flock(f, fcntl.LOCK_SH)\n"
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"held\n"
        lease = Lease(tmp_path, 0)
        assert not lease.alone()
        other.kill()
    assert lease.alone()


def test_nothing_to_stop(tmp_path: Path) -> None:
    assert stop(tmp_path) is False
    assert status(tmp_path) is None


def test_new_home_is_hidden_from_git(tmp_path: Path, launches: Launches) -> None:
    launches.home = tmp_path / "new"
    engine(launches.home).endpoint()
    assert (launches.home / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o666])
def test_a_record_that_others_may_write_or_read_is_refused(tmp_path: Path, mode: int) -> None:
    write_record(tmp_path)
    (tmp_path / "server.json").chmod(mode)
    for use in (status, stop):
        with pytest.raises(EngineError, match="cannot be trusted: .* chmod 600"):
            use(tmp_path)


def test_a_record_that_others_may_read_is_told_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / HOME).mkdir()
    write_record(tmp_path / HOME)
    (tmp_path / HOME / "server.json").chmod(0o644)
    for command in ("status", "stop"):
        done = CliRunner().invoke(main, [command, "--project-dir", str(tmp_path)])
        assert done.exit_code == 1 and "Error: The engine's folder" in done.output


def test_a_record_that_is_a_link_is_refused(tmp_path: Path) -> None:
    write_record(tmp_path)
    (tmp_path / "server.json").rename(tmp_path / "another")
    (tmp_path / "server.json").symlink_to(tmp_path / "another")
    with pytest.raises(EngineError, match="is not a regular file"):
        status(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, launches: Launches) -> None:
    engine(tmp_path).endpoint()
    os.chown(tmp_path / "server.json", 12345, 12345)
    with pytest.raises(EngineError, match="belongs to another user"):
        status(tmp_path)
    os.chown(tmp_path / "server.json", 0, 0)
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(EngineError, match="belongs to another user"):
        engine(tmp_path).endpoint()
    os.chown(tmp_path, 0, 0)
    os.chown(launches.socket.parent, 12345, 12345)
    with pytest.raises(EngineError, match="socket cannot be trusted"):
        engine(tmp_path).endpoint()


def test_a_socket_that_was_removed_while_the_engine_is_used(
    tmp_path: Path, launches: Launches
) -> None:
    first = engine(tmp_path)
    first.endpoint()
    launches.socket.unlink()
    with pytest.raises(EngineError, match="socket of the engine .* was removed"):
        engine(tmp_path).endpoint()


def test_a_home_that_is_a_link_of_another_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    (tmp_path / "victim").mkdir(mode=0o755)
    (tmp_path / "home").symlink_to(tmp_path / "victim")
    os.chown(tmp_path / "home", 12345, 12345, follow_symlinks=False)
    with pytest.raises(EngineError, match="belongs to another user"):
        engine(tmp_path / "home").endpoint()
    assert (tmp_path / "victim").stat().st_mode & 0o777 == 0o755


def test_only_own_folders_are_swept(tmp_path: Path) -> None:
    for name in ("thesis", "0a1b2c3d", "4e5f6a7b"):
        (tmp_path / "tmp" / name).mkdir(parents=True)
    (tmp_path / "tmp" / "4e5f6a7b" / "log4j2.properties").touch()
    sweep(tmp_path)
    left = sorted(path.name for path in (tmp_path / "tmp").iterdir())
    assert left == ["0a1b2c3d", "thesis"]


def server_folder(home: Path, process: psutil.Process) -> Path:
    """The folder of a server whose supervisor is a process."""
    folder = home / "tmp" / "0a1b2c3d"
    folder.mkdir(parents=True)
    (folder / "log4j2.properties").touch()
    supervisor = {"pid": process.pid, "created": process.create_time()}
    (folder / "supervisor.json").write_text(json.dumps(supervisor))
    (folder / "supervisor.json").chmod(0o600)
    return folder


def test_folders_of_servers_that_run_stay(tmp_path: Path) -> None:
    folder = server_folder(tmp_path, psutil.Process())
    sweep(tmp_path)
    assert folder.exists()
    # A later process may have the number of one that has ended.
    record = {"pid": os.getpid(), "created": psutil.Process().create_time() - 100}
    (folder / "supervisor.json").write_text(json.dumps(record))
    sweep(tmp_path)
    assert not folder.exists()


def test_stop_waits_for_servers_that_are_ending(tmp_path: Path) -> None:
    """They have no record any more, and still remove files of the home."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit()))\n"
        "print('runs', flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as ending:
        assert ending.stdout and ending.stdout.readline() == b"runs\n"
        server_folder(tmp_path, psutil.Process(ending.pid))
        assert stop(tmp_path) is False
        assert ending.poll() == 0


def test_a_home_of_an_older_version_becomes_private(tmp_path: Path, launches: Launches) -> None:
    tmp_path.chmod(0o755)
    engine(tmp_path).endpoint()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_windows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.sys, "platform", "win32")
    with pytest.raises(EngineError, match="WSL"):
        engine(tmp_path)


def test_cli(tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert "No engine" in run(main, ["stop", "--project-dir", str(tmp_path)]).output
    (tmp_path / HOME).mkdir()
    write_record(tmp_path / HOME)
    output = run(main, ["status", "--project-dir", str(tmp_path)]).output
    assert "ready" in output and "4.1.1" in output
