"""Attacks by another user of the machine, who may do all that the operating system allows."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dbt.adapters.iceberg_stream.catalog.sqlite import spark_settings
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine, EngineStatus, status, stop
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineError, EngineSettings
from dbt.adapters.iceberg_stream.flight.serve import _server_token

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
NOBODY = 65534
TOKEN = "eyJ.the-token-of-ada.x"


def as_another_user(attack: Callable[[], Any]) -> Any:
    """Run a function as another user, in a process of its own; its result."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = {"result": attack()}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        os.write(sender, json.dumps(answer).encode())
        os._exit(0)
    os.close(sender)
    with open(receiver, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert "error" not in answer, answer["error"]
    return answer["result"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An engine with a session that has a token, in a folder that others can reach."""
    project = tmp_path_factory.mktemp("project")
    for folder in (project, *project.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    home = project / ".iceberg_stream"
    engine = EmbeddedEngine(EngineSettings(home, driver_memory="1g", keep_alive=60))
    (project / "lake").mkdir()
    settings = spark_settings("lake", project / "lake") | {"spark.sql.catalog.lake.token": TOKEN}
    session = Session(engine.endpoint(), settings)
    session.run("create namespace lake.s")
    session.run("create table lake.s.t as select 1 as id")
    session.query("select * from lake.s.t join (select 1 as id) using (id)")
    _server_token(home)
    yield home
    session.close()
    engine.release()
    stop(home)


@pytest.fixture
def server(home: Path) -> EngineStatus:
    server = status(home)
    assert server is not None
    return server


def readable(folder: Path) -> list[str]:
    """The files below a folder that this user can read, and the folders that it can list."""
    found = []
    with contextlib.suppress(OSError):
        for entry in sorted(folder.iterdir()):
            found.append(str(entry))
            with contextlib.suppress(OSError):
                entry.read_bytes()
                found.append(f"content of {entry}")
            found += readable(entry)
    return found


def test_nothing_of_the_engine_can_be_read(home: Path, server: EngineStatus) -> None:
    folders = (home, server.socket.parent)
    assert as_another_user(lambda: [readable(folder) for folder in folders]) == [[], []]


def test_nobody_can_connect_to_the_socket_or_replace_it(server: EngineStatus) -> None:
    def connect() -> int:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(server.socket))

    def replace() -> list[str]:
        done = []
        for change in (
            lambda: os.unlink(server.socket),
            lambda: os.rename(server.socket.parent, f"{server.socket.parent}-elsewhere"),
            lambda: os.rmdir(server.socket.parent),
            lambda: socket.socket(socket.AF_UNIX).bind(str(server.socket) + "2"),
        ):
            with contextlib.suppress(PermissionError):
                change()
                done.append("changed")
        return done

    assert as_another_user(connect) == 13  # EACCES
    assert as_another_user(replace) == []


def test_nobody_can_hold_a_lock(home: Path) -> None:
    def lock() -> list[str]:
        held = []
        for name in ("clients.lock", "launch.lock", "server.json"):
            with contextlib.suppress(PermissionError), open(home / name) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(name)
        return held

    assert as_another_user(lock) == []


def test_processes_show_no_secret(server: EngineStatus) -> None:
    def look() -> list[str]:
        shown = []
        for process in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ", "maps", "mem"):
                with contextlib.suppress(OSError):
                    if TOKEN.encode() in (process / name).read_bytes():
                        shown.append(str(process / name))
        return shown

    assert as_another_user(look) == []


def test_the_ports_want_a_secret(server: EngineStatus) -> None:
    """Spark's RPC would take a Java object, and its block manager give out broadcast tokens."""
    process = psutil.Process(server.jvm.pid)
    ports = [c.laddr.port for c in process.net_connections() if c.status == psutil.CONN_LISTEN]

    def ask(port: int, message: bytes) -> str:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(len(message + b"12345678").to_bytes(8, "big") + message)
            client.settimeout(3)
            with contextlib.suppress(TimeoutError):
                return client.recv(10000).hex()
            return ""

    # The types of messages and answers are those of Spark's network protocol (Message.java).
    java = bytes.fromhex("aced000574000161")
    number, length = (1).to_bytes(8, "big"), len(java).to_bytes(4, "big")
    name = b"/classes/x"
    messages = {
        "rpc": b"\x03" + number + length + java,
        "one-way": b"\x09" + length + java,
        "chunk": b"\x00" + number + (0).to_bytes(4, "big"),
        "stream": b"\x06" + len(name).to_bytes(4, "big") + name,
    }
    failures = (2, 5, 8)
    assert len(ports) == 2
    for port in ports:
        for kind, message in messages.items():
            answer = as_another_user(lambda port=port, message=message: ask(port, message))
            answer = bytes.fromhex(answer)
            assert not answer or answer[8] in failures, (kind, answer)
            if kind == "rpc":
                assert b"SaslMessage" in answer or not answer
    assert server.alive()


def test_a_record_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Another user makes the folder first, with a record that leads to a socket of its own."""
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:-1]:
        folder.chmod(folder.stat().st_mode | 0o055)
    home = tmp_path / ".iceberg_stream"
    own = {"pid": os.getpid(), "created": psutil.Process().create_time()}
    record = {
        "ready": True, "socket": str(home / "server"), "supervisor": own, "jvm": own,
        "started": 0.0, "fingerprint": "f", "settings": "", "java": "17", "spark": "4.1.1",
    }  # fmt: skip

    def plant() -> None:
        home.mkdir(mode=0o777)
        (home / "server.json").write_text(json.dumps(record))
        (home / "server.json").chmod(0o600)

    as_another_user(plant)
    engine = EmbeddedEngine(EngineSettings(home))
    with pytest.raises(EngineError, match="belongs to another user .nobody"):
        engine.endpoint()
    for use in (status, stop):
        with pytest.raises(EngineError, match="cannot be trusted"):
            use(home)
