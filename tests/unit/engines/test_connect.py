"""What is said of a server that is not what the profile expects, within seconds."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines.connect import PROBE_SECONDS, ConnectEngine
from dbt.adapters.iceberg_stream.engines.settings import Endpoint, EngineError

HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
Serve = Callable[[Callable[[socket.socket], None]], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answers one connection with a function; gives the port."""
    listeners = []

    def start(answer: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("localhost", 0))
        listeners.append(listener)

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                answer(connection)

        threading.Thread(target=run, daemon=True).start()
        port: int = listener.getsockname()[1]
        return port

    yield start
    for listener in listeners:
        listener.close()


def grpc(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(HTTP2_SETTINGS)


def tls(certificate: Path) -> Callable[[socket.socket], None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    def answer(connection: socket.socket) -> None:
        try:
            context.wrap_socket(connection, server_side=True).close()
        except ssl.SSLError:
            return

    return answer


def test_a_plain_server(serve: Serve) -> None:
    endpoint = Endpoint("localhost", serve(grpc))
    assert ConnectEngine(endpoint).endpoint() == endpoint


def test_plaintext_to_a_server_with_tls(serve: Serve, certificate: Path) -> None:
    engine = ConnectEngine(Endpoint("localhost", serve(tls(certificate))))
    with pytest.raises(EngineError, match="Set `use_ssl: true`"):
        engine.endpoint()


def test_tls_to_a_plain_server(serve: Serve) -> None:
    engine = ConnectEngine(Endpoint("localhost", serve(grpc), tls=True))
    with pytest.raises(EngineError, match="Set `use_ssl: false`"):
        engine.endpoint()


def test_a_certificate_that_nobody_signed(serve: Serve, certificate: Path) -> None:
    engine = ConnectEngine(Endpoint("localhost", serve(tls(certificate)), tls=True))
    with pytest.raises(EngineError, match="is not valid: self.signed certificate"):
        engine.endpoint()


def test_another_protocol(serve: Serve) -> None:
    engine = ConnectEngine(Endpoint("localhost", serve(lambda c: c.sendall(b"HTTP/1.1 400 Bad"))))
    with pytest.raises(EngineError, match="is not a Spark Connect server"):
        engine.endpoint()


def test_nobody_there() -> None:
    begin = time.monotonic()
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(EngineError, match="does not answer.*Check `host` and `port`"):
        ConnectEngine(Endpoint("localhost", port)).endpoint()
    assert time.monotonic() - begin < PROBE_SECONDS
