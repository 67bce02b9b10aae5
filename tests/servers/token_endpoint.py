"""A token endpoint for the client credentials grant (RFC 6749, section 4.4)."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


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
            if form["client_secret"] != secret:
                self._answer(401, {"error": "invalid_client"})
                return
            endpoint.given.append(mint(form["client_id"]))
            self._answer(200, {"access_token": endpoint.given[-1], "expires_in": 3600})

        def _answer(self, status: int, body: dict[str, object]) -> None:
            self.send_response(status)
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
