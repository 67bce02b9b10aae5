"""The REST client against a server with a certificate of its own."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from requests import PreparedRequest

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.rest_client import set_last_column_ids
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings


class Catalog(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        config = {"defaults": {}, "overrides": {}}
        answer = config if self.path.startswith("/v1/config") else {"namespaces": [["shop"]]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def uri(certificate: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("localhost", 0), Catalog)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_new_schemas_of_commits_come_with_their_last_column_id() -> None:
    nested = {"id": 7, "name": "b", "required": False, "type": "int"}
    kind = {"type": "struct", "fields": [nested]}
    field = {"id": 3, "name": "a", "required": False, "type": kind}
    schema = {"type": "struct", "schema-id": 0, "fields": [field]}
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema"}]
    request = PreparedRequest()
    request.prepare("POST", "http://u/t", data=json.dumps({"updates": updates}).encode())
    set_last_column_ids(request)
    assert isinstance(request.body, bytes)
    assert json.loads(request.body)["updates"][0]["last-column-id"] == 7
    assert int(request.headers["Content-Length"]) == len(request.body)


def test_a_certificate_of_an_unknown_authority(uri: str) -> None:
    names = RemoteBackend(CatalogSettings("lake", {"type": "rest", "uri": uri}), None)
    with pytest.raises(CatalogError, match="(?s)The TLS connection to .* failed.*ssl.cabundle"):
        names.namespaces()


def test_the_authority_that_the_profile_names(uri: str, certificate: Path) -> None:
    bundle = str(certificate / "cert.pem")
    properties = {"type": "rest", "uri": uri, "ssl.cabundle": bundle}
    assert RemoteBackend(CatalogSettings("lake", properties), None).namespaces() == ["shop"]


def test_plain_text_to_a_server_with_tls(uri: str) -> None:
    plain = uri.replace("https", "http")
    names = RemoteBackend(CatalogSettings("lake", {"type": "rest", "uri": plain}), None)
    with pytest.raises(CatalogError, match="does not answer"):
        names.namespaces()
