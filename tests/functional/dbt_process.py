"""dbt as processes of their own, beside the one of the tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Start = Callable[..., subprocess.Popen[str]]


@contextmanager
def dbt_processes(project: Any) -> Iterator[Start]:
    """Yield what starts dbt with some arguments; the processes are killed at the end."""
    processes = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        dbt = [sys.executable, "-m", "dbt.cli.main", *arguments]
        process = subprocess.Popen(
            [*dbt, "--profiles-dir", str(project.profiles_dir)],
            cwd=project.project_root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell has its background jobs ignore Ctrl-C, and so what the tests start in one.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        processes.append(process)
        return process

    try:
        yield start
    finally:
        for process in processes:
            process.kill()
            process.wait()
