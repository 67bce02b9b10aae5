"""The local server for real: a few starts, each shared by several checks."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import (
    EmbeddedEngine,
    EngineStatus,
    status,
    stop,
)
from dbt.adapters.iceberg_stream.engines.jars import cache_root
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import Endpoint, EngineError, EngineSettings
from dbt.adapters.iceberg_stream.errors.spark import StatementError

CLIENT = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine
    from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
    settings = EngineSettings(Path(sys.argv[1]), driver_memory="1g", keep_alive=float(sys.argv[2]))
    engine = EmbeddedEngine(settings)
    print(engine.endpoint().socket, flush=True)
    time.sleep(120)
    """
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project") / ".iceberg_stream"
    yield folder
    stop(folder)


def heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def client(home: Path, keep_alive: float, **variables: str) -> subprocess.Popen[str]:
    """Another dbt process, as far as the engine can tell."""
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(home), str(keep_alive)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
        # A shell has its background jobs ignore Ctrl-C, and so what tests start in one.
        preexec_fn=heed_interrupts,
    )


def socket_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def engine(home: Path, **changes: Any) -> EmbeddedEngine:
    settings: dict[str, Any] = {"driver_memory": "1g", "keep_alive": 60.0} | changes
    return EmbeddedEngine(EngineSettings(home, **settings))


def running(home: Path) -> EngineStatus:
    server = status(home)
    assert server is not None
    return server


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def answer(endpoint: Endpoint, sql: str) -> Any:
    session = Session(endpoint, {})
    try:
        return session.query(sql).column(0)[0].as_py()
    finally:
        session.close()


def leftovers(home: Path) -> list[str]:
    """What a server must not leave: processes that name the home, its record, its scratch."""
    actual = [str(path) for path in [*home.glob("tmp/*"), *home.glob("server.json")]]
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(home) in line and ("supervisor.py" in line or "server.args" in line):
            actual.append(line)
    return actual


def test_one_server_for_two_processes_at_once(home: Path) -> None:
    clients = [client(home, 60) for _ in range(2)]
    try:
        sockets = {socket_of(process) for process in clients}
        assert sockets == {running(home).socket}
        assert set(running(home).clients) == {process.pid for process in clients}

        began = time.monotonic()
        endpoint = engine(home).endpoint()
        assert time.monotonic() - began < 0.5

        assert answer(endpoint, "select 1") == 1
        zone = answer(endpoint, "select current_timezone()")
        assert zone == "UTC"

        with pytest.raises(EngineError, match="runs with other settings") as error:
            engine(home, driver_memory="3g").endpoint()
        assert str(clients[0].pid) in str(error.value)
    finally:
        for process in clients:
            process.kill()
            process.wait()


def test_secrets_are_for_the_user_only(home: Path) -> None:
    server = running(home)
    assert (home / "server.json").stat().st_mode & 0o077 == 0
    assert next(home.glob("tmp/*")).stat().st_mode & 0o077 == 0
    for folder in (home, server.socket.parent):
        assert folder.stat().st_mode & 0o077 == 0


def test_no_port_of_the_engine_answers_strangers(home: Path) -> None:
    """What is open on loopback is Spark's RPC and its block manager, which want a secret."""
    server = running(home)
    processes = [psutil.Process(server.jvm.pid), *psutil.Process(server.jvm.pid).children(True)]
    listening = [
        c.laddr for p in processes for c in p.net_connections() if c.status == psutil.CONN_LISTEN
    ]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert len(listening) == 2
    for address in listening:
        with socket.create_connection(("127.0.0.1", address.port), timeout=10) as stranger:
            # A message of Spark's network protocol without the login: the frame's length, the type
            # of an RPC, its id, the body's length, and a Java object.
            stranger.sendall(struct.pack(">qbqi", 37, 3, 1, 16) + bytes.fromhex("aced0005") * 4)
            stranger.settimeout(10)
            reply = stranger.recv(1000)
        assert b"Expected SaslMessage" in reply or reply == b"", reply


def test_interrupt_of_a_client_leaves_the_server_warm(home: Path) -> None:
    process = client(home, 60)
    socket_path = socket_of(process)
    process.send_signal(signal.SIGINT)
    process.wait()
    assert running(home).socket == socket_path
    assert os.getsid(running(home).jvm.pid) != os.getsid(0)


def test_sessions_that_are_closed_leave_no_connection(home: Path, tmp_path: Path) -> None:
    """To the catalog: in days they would take all file descriptors."""
    server = engine(home)
    for _ in range(3):
        session = Session(server.endpoint(), spark_settings("lake", tmp_path))
        session.query("show namespaces in lake")
        session.close()
    process = psutil.Process(running(home).jvm.pid)

    def connections() -> list[str]:
        return [file.path for file in process.open_files() if file.path.endswith("catalog.db")]

    wait_until(lambda: not connections(), 10)
    server.release()


def test_other_settings_replace_an_idle_server(home: Path) -> None:
    before = running(home)
    other = engine(home, keep_alive=60.0, spark_conf=(("spark.sql.shuffle.partitions", "3"),))
    # The engines of this process have been dropped, so nobody else holds a lease.
    endpoint = other.endpoint()
    assert not before.jvm.alive()
    assert answer(endpoint, "select 1") == 1
    other.release()


def test_killed_supervisor_takes_the_jvm_with_it(home: Path) -> None:
    server = running(home)
    os.kill(server.supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not server.jvm.alive(), 5)
    assert status(home) is None
    assert (home / "server.json").exists()  # the next start has to see through it


def test_killed_client_leaves_nothing(home: Path, tmp_path: Path) -> None:
    """Also: the stale record of the server before is replaced."""
    (tmp_path / "jars").symlink_to(cache_root() / "jars")
    process = client(home, 0, DBT_ICEBERG_STREAM_CACHE=str(tmp_path))
    socket_of(process)
    process.kill()
    process.wait()
    wait_until(lambda: not leftovers(home), 10)


@pytest.mark.slow
def test_an_engine_with_an_unusable_class_ends(home: Path) -> None:
    """The class is for another operating system: its first use fails in itself, all later ones too."""
    one = engine(home)
    before = one.endpoint()
    query = "select reflect('io.netty.channel.kqueue.Native', 'x') from range(1)"
    for _ in range(2):
        with pytest.raises(StatementError, match="the next command starts a new") as error:
            answer(before, query)
        assert error.value.engine_gone
    wait_until(lambda: status(home) is None, 5)
    assert "a class of the engine is unusable" in (home / "server.log").read_text()
    assert answer(one.endpoint(), "select 1") == 1


def test_stop(home: Path) -> None:
    one = engine(home)
    one.endpoint()
    assert stop(home)
    assert leftovers(home) == []
    assert not stop(home)


def test_failed_start_says_why(home: Path) -> None:
    with pytest.raises(EngineError) as error:
        engine(home, driver_memory="100m").endpoint()
    message = str(error.value)
    assert "driver_memory" in message
    assert str(home / "server.log") in message
    assert len(message.splitlines()) < 10
    assert leftovers(home) == []
