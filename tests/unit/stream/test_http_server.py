"""Who gets an answer of the port of `iceberg-stream run`, and for how long."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dbt.adapters.iceberg_stream.stream import http_server
from dbt.adapters.iceberg_stream.stream.http_server import MOST_CONNECTIONS, is_allowed_host
from dbt.adapters.iceberg_stream.stream.service import Service, endpoint

ADDRESS = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    with endpoint(Service(), ADDRESS, 0, lambda: "<p>secret</p>", ["streams.example"]) as port:
        yield port


def ask(port: int, host: str, path: str = "/") -> bytes:
    with socket.create_connection((ADDRESS, port), timeout=10) as client:
        client.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = b""
        while part := client.recv(65536):
            answer += part
    return answer


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:80", "10.1.2.3", "Streams.Example:443"],
)
def test_names_of_the_server(port: int, host: str) -> None:
    assert b"200 OK" in ask(port, host)
    assert b"secret" in ask(port, host)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.nip.io"])
@pytest.mark.parametrize("path", ["/", "/health", "/metrics"])
def test_names_of_others(port: int, host: str, path: str) -> None:
    answer = ask(port, host, path)
    assert answer.startswith(b"HTTP/1.0 421")
    assert b"secret" not in answer and b"streams" not in answer


def test_no_host() -> None:
    assert not is_allowed_host(None, ())


def test_half_open_connections_are_bounded_and_end(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "LONGEST_SILENCE", 0.5)
    monkeypatch.setattr(http_server, "LONGEST_CONNECTION", 1.0)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((ADDRESS, port), timeout=10))
            for _ in range(3 * MOST_CONNECTIONS)
        ]
        # The last ones are closed at once, and all of them soon.
        began = time.monotonic()
        assert silent[-1].recv(10) == b""
        assert time.monotonic() - began < 0.4
        # One sends a byte now and then, and is cut all the same.
        slow = silent[0]
        with pytest.raises(OSError):
            while time.monotonic() - began < 5:
                slow.sendall(b"G")
                time.sleep(0.2)
        assert time.monotonic() - began < 3
        assert b"200 OK" in ask(port, "localhost", "/health")
