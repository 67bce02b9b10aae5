"""A stream that runs as a service beside the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEADLINE = 90.0


class Running:
    """A service that has said where it listens."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log
        self.address = ""

    def wait_until_listening(self) -> None:
        wait_for(lambda: "Health and metrics at" in self.said() or self.process.poll() is not None)
        self.address = self.said().split("Health and metrics at ")[1].split()[0]

    def said(self) -> str:
        return self.log.read_text()

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.address}/{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)


@contextmanager
def service(project: Any, name: str, *arguments: str) -> Iterator[Running]:
    log = Path(project.project_root) / f"{name}.out"
    command = [sys.executable, "-m", "dbt.adapters.iceberg_stream", "run", *arguments]
    place = ["--project-dir", project.project_root, "--profiles-dir", project.profiles_dir]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, *place], stdout=out, stderr=subprocess.STDOUT, text=True, env=os.environ
        )
        running = Running(process, log)
        try:
            running.wait_until_listening()
            yield running
        finally:
            process.kill()
            process.wait()
            # Shown where the test fails.
            print(running.said())


def wait_for(what: Callable[[], bool], seconds: float = DEADLINE) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.2)
