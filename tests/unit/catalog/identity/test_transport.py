"""Secrets go over TLS or stay on this machine, and never follow a redirect to another origin."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.identity import transport
from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.sources import ClientCredentials, LiteralToken
from dbt.adapters.iceberg_stream.catalog.identity.transport import is_loopback, is_private
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import SchemaRegistry

SECRET = "hush-hush"


@dataclass
class Listener:
    """A server that redirects, and one that takes what it gets."""

    uri: str
    overrides: dict[str, str] = field(default_factory=dict)
    redirect: Callable[[str], str | None] = lambda path: None
    status: int = 307
    got: list[str] = field(default_factory=list)


@pytest.fixture
def listen() -> Iterator[Callable[[], Listener]]:
    servers = []

    def start() -> Listener:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
                listener.got.append(f"{self.path} {dict(self.headers)} {body}")
                target = listener.redirect(self.path)
                self.send_response(listener.status if target else 200)
                if target:
                    self.send_header("Location", target)
                self.end_headers()
                answer: dict[str, Any] = {"defaults": {}, "overrides": listener.overrides}
                answer |= {"namespaces": [["shop"]], "access_token": "t", "schema": '"int"'}
                self.wfile.write(b"" if target else json.dumps(answer).encode())

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        listener = Listener(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return listener

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def rest(uri: str, allow_plaintext: bool = False, **properties: str) -> RemoteBackend:
    settings = CatalogSettings(
        "lake", {"type": "rest", "uri": uri, **properties}, allow_plaintext=allow_plaintext
    )
    return RemoteBackend(settings, Identity(LiteralToken(SECRET)))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_client_credentials(listen: Callable[[], Listener], status: int) -> None:
    first, other = listen(), listen()
    first.status, first.redirect = status, lambda path: f"{other.uri}{path}"
    source = ClientCredentials(f"{first.uri}/token", "job", SECRET)
    with pytest.raises(IdentityError, match=f"redirects to {other.uri}") as raised:
        source.fetch()
    assert not other.got
    assert SECRET not in str(raised.value)
    first.redirect = lambda path: "/v2/token" if path == "/token" else None
    first.status = 308
    assert source.fetch().value == "t"


@pytest.mark.parametrize(
    "spelling",
    [
        "http:////{}/",
        "http:/\\{}/",
        "//{}/",
        "///{}/",
        "http:{}",
        "HTTP://{}/",
        "\\\\{}/",
        "http://x@{}/",
    ],
)
def test_spellings_that_clients_read_differently(
    listen: Callable[[], Listener], spelling: str
) -> None:
    near, far = listen(), listen()
    target = spelling.format(far.uri.removeprefix("http://"))
    near.redirect = lambda path: target if path == "/token" else None
    login = ClientCredentials(f"{near.uri}/token", "me", SECRET)
    with pytest.raises(IdentityError):
        Identity(login).token()
    assert far.got == []


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_rest_catalog(listen: Callable[[], Listener], status: int) -> None:
    first, other = listen(), listen()
    backend = rest(first.uri, **{"header.X-Api-Key": SECRET})
    assert backend.namespaces() == ["shop"]
    first.status, first.redirect = status, lambda path: f"{other.uri}{path}"
    for ask in (backend.namespaces, lambda: backend.create_namespace("s")):
        with pytest.raises(CatalogError, match=f"redirects to {other.uri}"):
            ask()
    assert not other.got
    with pytest.raises(CatalogError, match="redirects to"):
        rest(first.uri).namespaces()
    assert not other.got


@pytest.mark.parametrize(
    "login", [{"basic.auth.user.info": f"me:{SECRET}"}, {"bearer.auth.token": SECRET}]
)
def test_a_schema_registry(listen: Callable[[], Listener], login: dict[str, str]) -> None:
    first, other = listen(), listen()
    first.redirect = lambda path: f"{other.uri}{path}"
    with pytest.raises(StreamError, match=f"redirects to {other.uri}"):
        SchemaRegistry({"url": first.uri, **login}).find(1)
    assert first.got
    assert not other.got


def test_another_address_from_the_catalog_itself(listen: Callable[[], Listener]) -> None:
    """Its configuration may name one, but the token is not sent there in plain text."""
    server = listen()
    server.overrides = {"uri": "http://catalog.example"}
    with pytest.raises(CatalogError, match="catalog.example:80 does not use TLS"):
        rest(server.uri).namespaces()


def test_plain_text_to_a_catalog() -> None:
    with pytest.raises(CatalogError, match="does not use TLS.*allow_plaintext"):
        rest("http://catalog.invalid").namespaces()
    with pytest.raises(CatalogError, match="does not answer"):
        rest("http://catalog.invalid", allow_plaintext=True).namespaces()


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.8.7", "::1", "[::1]"]
)
def test_hosts_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["localhost.evil.com", "127.0.0.1.evil.com", "evil.com", "0.0.0.0", "::", "10.0.0.1", "", None]
    + ["2130706433", "127.1", "0x7f.0.0.1", "localhost.", "xlocalhost", "127.0.0.1 "],
)
def test_other_hosts(host: str | None) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("https://evil.com/x", True),
        ("http://localhost:8080/x", True),
        ("http://[::1]:8080/x", True),
        ("http://evil.com", False),
        ("http://localhost@evil.com", False),
        ("http://localhost:80@evil.com:80/", False),
        ("http://evil.com\\@localhost/", False),
        ("http://evil.com#@localhost/", False),
        ("http://evil.com?@localhost/", False),
        ("http://[evil/", False),
        ("http:// localhost/", False),
        ("ftp://evil.com", False),
        ("evil.com", False),
    ],
)
def test_private_addresses(url: str, private: bool) -> None:
    assert is_private(url) is private


def test_all_requests_refuse_other_origins() -> None:
    """Each module that sends requests has the hook; PyIceberg makes the session of the catalog."""
    root = Path(transport.__file__).parents[2]
    sends = re.compile(
        r"\brequests\.(get|post|put|delete|request|Session)\(|_create_session\(|urlopen\("
    )
    sources = {path: path.read_text() for path in root.rglob("*.py")}
    senders = {path for path, text in sources.items() if sends.search(text)}
    assert len(senders) == 3
    assert {path for path in senders if "refuse_other_origin" not in sources[path]} == set()
