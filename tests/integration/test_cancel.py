"""Ctrl-C ends what runs on the engine, and leaves the engine itself warm if it can."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dbt.adapters.iceberg_stream.engines import cancellation
from dbt.adapters.iceberg_stream.engines.cancellation import Cancellation
from dbt.adapters.iceberg_stream.engines.embedded import EmbeddedEngine, status, stop
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.engines.settings import EngineSettings
from dbt.adapters.iceberg_stream.errors.spark import StatementError

PROJECT = "name: slow\nversion: '1.0'\nprofile: slow\n"
PROFILE = """
slow:
  target: dev
  outputs:
    dev: {type: iceberg_stream, schema: s, keep_alive: 120}
"""
# Sums for minutes, on one core: other tests run at the same time.
SLOW = (
    "{{ config(materialized='table') }} select sum(sin(id)) as s from range(0, 100000000000, 1, 1)"
)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "models").mkdir()
    (tmp_path / "dbt_project.yml").write_text(PROJECT)
    (tmp_path / "profiles.yml").write_text(PROFILE)
    (tmp_path / "models" / "slow.sql").write_text(SLOW)
    yield tmp_path
    stop(tmp_path / ".iceberg_stream")


def task_time(jvm: psutil.Process) -> float:
    """CPU seconds that the threads of Spark's tasks have used."""
    seconds = 0.0
    for thread in jvm.threads():
        # A thread may end between the listing and this line.
        with suppress(FileNotFoundError, ProcessLookupError):
            name = Path(f"/proc/{jvm.pid}/task/{thread.id}/comm").read_text()
            if name.startswith("Executor task"):
                seconds += thread.user_time + thread.system_time
    return seconds


def tasks_run(jvm: psutil.Process, seconds: float = 2) -> bool:
    """Whether Spark's tasks use more CPU than idle threads do, on a busy machine too."""
    before = task_time(jvm)
    time.sleep(seconds)
    return task_time(jvm) - before > 0.1


def await_tasks(jvm: psutil.Process) -> None:
    """Wait until the statement's tasks run, and not those of the engine's start."""
    deadline = time.monotonic() + 180
    runs = 0
    while runs < 3:
        assert time.monotonic() < deadline
        runs = runs + 1 if tasks_run(jvm) else 0


def heed_interrupts() -> None:
    """A shell has its background jobs ignore Ctrl-C, and so what the tests start in one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(project: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """A dbt run whose engine is ready, and the engine's JVM."""
    command = [sys.executable, "-m", "dbt.cli.main", "run", "--profiles-dir", "."]
    run = subprocess.Popen(
        command, cwd=project, stdout=subprocess.DEVNULL, preexec_fn=heed_interrupts
    )
    deadline = time.monotonic() + 120
    while (engine := status(project / ".iceberg_stream")) is None or not engine.ready:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return run, psutil.Process(engine.jvm.pid)


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Makes a cold engine's analysis long, as on a small machine."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("busy_machine")
def test_ctrl_c_while_spark_is_still_analyzing(project: Path) -> None:
    run, _ = start(project)
    log = project / "logs" / "dbt.log"
    deadline = time.monotonic() + 120
    while not log.exists() or "On model.slow.slow" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    assert run.wait(60) != 0
    # Canceled, and not by an end of the engine.
    assert status(project / ".iceberg_stream") is not None


def test_ctrl_c_and_kill(project: Path) -> None:
    """Ctrl-C cancels the statement; what a killed command has left, the next one ends."""
    run, jvm = start(project)
    home = project / ".iceberg_stream"
    await_tasks(jvm)
    run.send_signal(signal.SIGINT)
    assert run.wait(60) != 0
    time.sleep(3)
    assert not tasks_run(jvm)
    run, same_jvm = start(project)
    assert same_jvm == jvm
    await_tasks(jvm)
    run.kill()
    run.wait()
    assert tasks_run(jvm)
    command = [sys.executable, "-m", "dbt.cli.main", "show", "--profiles-dir", "."]
    command += ["--inline", "select 1 as id"]
    subprocess.run(command, cwd=project, check=True, stdout=subprocess.DEVNULL)
    time.sleep(3)
    assert not tasks_run(jvm)
    assert not list((home / "sessions").iterdir())


def test_a_statement_that_ignores_the_request_ends_with_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EmbeddedEngine(EngineSettings(home=tmp_path / "engine", keep_alive=60))
    session = Session(engine.endpoint(), {})
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(StatementError):
            session.query("select sum(sin(id)) as s from range(100000000000)")
        ended.set()

    # Spark loses such requests now and then, not when a test wants it.
    monkeypatch.setattr(Session, "interrupt", lambda self: True)
    monkeypatch.setattr(cancellation, "GRACE", 2.0)
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    Cancellation(session, threading.Event(), ended).run(on_lost=engine.abandon)
    worker.join(30)
    assert ended.is_set()
    assert status(tmp_path / "engine") is None
