"""Ports of test servers, where several test runs share a machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.servers import ports

OTHER = """
import sys
from tests.servers import ports
ports.candidates = lambda: [int(sys.argv[1])]
print(ports.free_port(), flush=True)
input()
"""


def test_no_two_processes_get_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ports.free_port(), ports.free_port()
    ports._taken.pop().release()
    ports._taken.pop().release()
    command = [sys.executable, "-c", OTHER, str(first)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"{first}\n"
        monkeypatch.setattr(ports, "candidates", lambda: [first, second])
        assert ports.free_port() == second
        other.communicate("\n")
