"""The client of schema registries, with a server that answers as it is told."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats import schema_registry
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    Reference,
    RegisteredSchema,
    SchemaRegistry,
)
from tests.servers.certificates import Authority
from tests.servers.ports import free_port


class Server:
    """Answers by path; the last answer of a path is repeated."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                server.requests.append((self.path, dict(self.headers)))
                answers = server.answers.get(path, [(404, {"error_code": 40401})])
                status, content = answers[0] if len(answers) == 1 else answers.pop(0)
                self.send_response(status)
                self.end_headers()
                text = content if isinstance(content, str) else json.dumps(content)
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def has(self, subject: str, *versions: dict[str, Any]) -> None:
        path = f"/subjects/{subject}/versions"
        self.answers[path] = [(200, list(range(1, len(versions) + 1)))]
        for number, version in enumerate(versions, 1):
            self.answers[f"{path}/{number}"] = [(200, version)]


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def test_versions_are_asked_for_once(server: Server) -> None:
    server.has("s%2F1", {"id": 7, "schema": "a"}, {"id": 9, "schema": "b", "schemaType": "JSON"})
    registry = SchemaRegistry({"url": f"{server.url}/"})
    expected = [RegisteredSchema(7, "a"), RegisteredSchema(9, "b", "JSON")]
    assert registry.versions("s/1") == registry.versions("s/1") == expected
    assert registry.by_id(9) == expected[1]
    assert len(server.requests) == 4
    assert all(path.endswith("?deleted=true") for path, _ in server.requests)
    assert registry.versions("other") == []


def test_references_come_with_their_own(server: Server) -> None:
    first = {"name": "A", "subject": "a", "version": 1}
    server.has("a", {"id": 1, "schema": "A"})
    server.has("b", {"id": 2, "schema": "B", "references": [first]})
    second = {"name": "B", "subject": "b", "version": 1}
    server.answers["/schemas/ids/3"] = [(200, {"schema": "C", "references": [first, second]})]
    schema = SchemaRegistry({"url": server.url}).by_id(3)
    assert schema == RegisteredSchema(3, "C", references=(Reference("A", "A"), Reference("B", "B")))


def test_logins(server: Server) -> None:
    server.has("s")
    registry = SchemaRegistry({"url": server.url, "basic.auth.user.info": "al:p:w"})
    registry.versions("s")
    tokens = {"bearer.auth.token": "secret", "bearer.auth.logical.cluster": "lsrc-1"}
    token = SchemaRegistry({"url": server.url, **tokens})
    token.versions("s")
    SchemaRegistry({"url": server.url.replace("//", "//al:p%3Aw@")}).versions("s")
    (_, basic), (_, bearer), (_, address) = server.requests
    assert address["Authorization"] == basic["Authorization"]
    assert basic["Authorization"] == f"Basic {base64.b64encode(b'al:p:w').decode()}"
    assert (bearer["Authorization"], bearer["target-sr-cluster"]) == ("Bearer secret", "lsrc-1")
    assert "secret" not in repr(token) and "p:w" not in repr(registry)


def test_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("registry"))
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    server = Server(context)
    server.has("s")
    trust = {"url": server.url, "ssl.ca.location": str(authority.certificate)}
    certificate, key = map(str, authority.issue("client"))
    own = {"ssl.certificate.location": certificate, "ssl.key.location": key}
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificate)
    assert SchemaRegistry({**trust, **own}).versions("s") == []
    with pytest.raises(StreamError, match="is not trusted, or the registry refuses yours"):
        SchemaRegistry({"url": server.url, **own}).versions("s")
    server.stop()


def test_a_busy_registry_is_asked_again(server: Server) -> None:
    server.answers["/subjects/s/versions"] = [(503, ""), (429, ""), (200, [])]
    assert SchemaRegistry({"url": server.url}).versions("s") == []
    assert len(server.requests) == 3


def test_another_address_is_asked_if_one_does_not_answer(server: Server) -> None:
    server.has("s")
    addresses = f"http://127.0.0.1:{free_port()},{server.url}"
    assert SchemaRegistry({"url": addresses}).versions("s") == []


def test_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "RETRY_SECONDS", 0.1)
    registry = SchemaRegistry({"url": f"http://al:pw@127.0.0.1:{free_port()}"})
    with pytest.raises(StreamError, match="does not answer for the subject s: ") as raised:
        registry.versions("s")
    assert "pw@" not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (403, "no", "refuses the request for the subject s: 403 Forbidden. Check the login"),
        (404, "<html>", "has no Confluent interface"),
        (200, "<html>", "has no Confluent interface"),
    ],
)
def test_refusals(server: Server, status: int, content: str, words: str) -> None:
    server.answers["/subjects/s/versions"] = [(status, content)]
    with pytest.raises(StreamError, match=words):
        SchemaRegistry({"url": server.url}).versions("s")


def test_a_schema_that_is_gone(server: Server) -> None:
    with pytest.raises(StreamError, match="no longer has the schema 5, which the stream's"):
        SchemaRegistry({"url": server.url}).by_id(5)


def test_wrong_options(tmp_path: Any) -> None:
    with pytest.raises(StreamError, match=r"has no option schema\.registry\.ssl\.magic\. It has:"):
        SchemaRegistry({"url": "http://r", "ssl.magic": "1"})
    with pytest.raises(StreamError, match=r"needs `schema\.registry\.ssl\.certificate"):
        SchemaRegistry({"url": "http://r", "ssl.key.location": "k"})
    missing = str(tmp_path / "none.pem")
    with pytest.raises(StreamError, match=r"cannot be asked for the subject s.*none\.pem"):
        SchemaRegistry({"url": "https://127.0.0.1:1", "ssl.ca.location": missing}).versions("s")
    with pytest.raises(StreamError, match="cannot be asked for the subject s"):
        SchemaRegistry({"url": "registry"}).versions("s")
