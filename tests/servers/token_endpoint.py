"""A token endpoint for the client credentials grant (RFC 6749, section 4.4)."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote_plus


@dataclass(frozen=True)
class TokenEndpoint:
    """A running endpoint, and the tokens that it has given."""

    uri: str
    secret: str
    given: list[str] = field(default_factory=list)


@contextlib.contextmanager
def token_endpoint(secret: str, mint: Callable[[str], str]) -> Iterator[TokenEndpoint]:
    """Give `mint(client_id)` to clients that know the secret."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    endpoint = TokenEndpoint(f"http://127.0.0.1:{server.server_port}/token", secret)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            form = {k: v[0] for k, v in parse_qs(self.rfile.read(length).decode()).items()}
            client, password = self._login() or (form.get("client_id"), form.get("client_secret"))
            if client is None or password != secret:
                self._answer(401, {"error": "invalid_client"})
                return
            endpoint.given.append(mint(client))
            self._answer(200, {"access_token": endpoint.given[-1], "expires_in": 3600})

        def _login(self) -> tuple[str, str] | None:
            """Return the client and its secret, if they are in the header (section 2.3.1)."""
            kind, _, encoded = (self.headers["Authorization"] or "").partition(" ")
            if kind != "Basic":
                return None
            client, _, password = base64.b64decode(encoded).decode().partition(":")
            return unquote_plus(client), unquote_plus(password)

        def _answer(self, status: int, body: dict[str, object]) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Keep the tests' output free of requests."""

    server.RequestHandlerClass = Handler
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
