"""Give Kafka's clients the tokens that a command prints (`token_command`).

librdkafka and Java's client run no command, but both get tokens from an authorization server by the
client credentials grant (RFC 6749, section 4.4). So this process is one, for clients on this
machine that know its secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote_plus

from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.sources import TokenCommand
from dbt.adapters.iceberg_stream.catalog.identity.token import Token
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.client_options import OAUTHBEARER, OIDC

TOKEN_COMMAND = "token_command"
CLIENT = "dbt"
# A token is given out in the first part of its life. Both clients ask for the next one when a fifth
# of it is left.
USED_SHARE = 0.5


def with_token_command(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of Kafka's clients with which they get the tokens of a command.

    Args:
        options: options by librdkafka's names, and maybe `token_command`.

    Raises:
        StreamError: other options contradict it.
    """
    left = dict(options)
    command = left.pop(TOKEN_COMMAND, None)
    if command is None:
        return left
    mechanism = left.pop("sasl.mechanisms", None) or left.pop("sasl.mechanism", OAUTHBEARER)
    others = sorted(name for name in left if name.startswith((OIDC, "sasl.username", "sasl.pass")))
    if mechanism != OAUTHBEARER or others:
        contrary = ", ".join(others) or f"sasl.mechanism: {mechanism}"
        raise StreamError(
            f"`{TOKEN_COMMAND}` of a Kafka connection logs in with the tokens that it prints "
            f"({OAUTHBEARER}). Remove `{TOKEN_COMMAND}`, or {contrary}."
        )
    server = _server()
    return {
        **left,
        "sasl.mechanism": OAUTHBEARER,
        f"{OIDC}method": "oidc",
        f"{OIDC}client.id": CLIENT,
        f"{OIDC}client.secret": server.secret,
        f"{OIDC}token.endpoint.url": server.address_of(command),
    }


class _Tokens:
    """The tokens of a command. Thread-safe."""

    def __init__(self, command: str) -> None:
        self._source = TokenCommand(command)
        self._guard = threading.Lock()
        self._token: Token | None = None
        self._seconds = 0.0

    def token(self) -> Token:
        """Return a token that has most of its life left.

        Raises:
            IdentityError: the command failed, or printed no token that the clients accept.
        """
        with self._guard:
            if self._token is None or self._token.seconds_left() < self._seconds * USED_SHARE:
                token = self._source.fetch()
                if token.expires is None:
                    raise IdentityError(
                        f"`{TOKEN_COMMAND}` must print a JWT with an expiry (`exp`)."
                    )
                if token.seconds_left() <= 0:
                    raise IdentityError(f"`{TOKEN_COMMAND}` printed a token that has expired.")
                self._token, self._seconds = token, token.seconds_left()
            return self._token


class _TokenServer(ThreadingHTTPServer):
    """An authorization server for the clients that this process and its Spark open."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.secret = secrets.token_urlsafe()
        self.tokens: dict[str, _Tokens] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def address_of(self, command: str) -> str:
        """Return the token endpoint of a command.

        Args:
            command: the command.
        """
        path = f"/{hashlib.sha256(command.encode()).hexdigest()[:16]}"
        self.tokens.setdefault(path, _Tokens(command))
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: _TokenServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        tokens = self.server.tokens.get(self.path)
        if tokens is None or not self._knows_secret():
            self._answer(401, {"error": "invalid_client"})
            return
        try:
            token = tokens.token()
        except IdentityError as error:
            self._answer(400, {"error": "invalid_grant", "error_description": str(error)})
            return
        seconds = int(token.seconds_left())
        self._answer(
            200, {"access_token": token.value, "token_type": "Bearer", "expires_in": seconds}
        )

    def _knows_secret(self) -> bool:
        """Return whether the request has the client's password (section 2.3.1)."""
        kind, _, encoded = (self.headers["Authorization"] or "").partition(" ")
        try:
            login = base64.b64decode(encoded).decode()
        except ValueError:
            return False
        password = unquote_plus(login.partition(":")[2])
        is_own = hmac.compare_digest(password.encode(), self.server.secret.encode())
        return kind == "Basic" and is_own

    def _answer(self, status: int, body: Mapping[str, object]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Write no log of the requests."""


@cache
def _server() -> _TokenServer:
    return _TokenServer()
