"""Tokens: what they say of themselves, where they come from, when they are renewed."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import jwt
import pytest

from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.renewal import Renewal
from dbt.adapters.iceberg_stream.catalog.identity.sources import (
    ClientCredentials,
    LiteralToken,
    TokenCommand,
    TokenFile,
)
from dbt.adapters.iceberg_stream.catalog.identity.token import Token, read_token


def make(name: str = "ada", seconds: float = 3600, **claims: str) -> str:
    expires = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    return jwt.encode({"sub": name, "exp": expires, **claims}, "k" * 32)


def test_claims() -> None:
    token = read_token(make("ada", 100))
    assert token.principal == "ada"
    assert 90 < token.seconds_left() <= 100
    assert read_token(make("1234", preferred_username="ada@x")).principal == "ada@x"


def test_an_opaque_token_says_nothing() -> None:
    token = read_token("gho_opaque")
    assert (token.principal, token.expires) == (None, None)
    assert token.seconds_left() == float("inf")


def test_no_representation_shows_a_secret() -> None:
    shown = [
        repr(Token("hush")),
        repr(LiteralToken("hush")),
        repr(ClientCredentials("http://x", "me", "hush")),
        Identity(LiteralToken("hush")).principal,
        LiteralToken("hush").name,
    ]
    assert not any("hush" in text for text in shown)


def test_an_expired_token_says_whose_and_since_when() -> None:
    identity = Identity(LiteralToken(make("ada", -5)))
    with pytest.raises(IdentityError, match="of ada expired at .* from `token`.*token_file"):
        identity.token()


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    identity = Identity(TokenFile(file))
    assert identity.token().value == "first"
    file.write_text("second")
    os.utime(file, (1, 1))
    assert identity.token().value == "second"
    file.unlink()
    assert identity.token().value == "second"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="token_file.*nowhere.*No such file"):
        Identity(TokenFile(tmp_path / "nowhere")).token()


def test_a_command_runs_again_before_the_end(tmp_path: Path) -> None:
    script = tmp_path / "mint.py"
    key = "k" * 32
    script.write_text(
        "import jwt, pathlib, time\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "number = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(number))\n"
        "life = 0.5 if number == 1 else 100\n"
        f"print(jwt.encode({{'sub': f'ada{{number}}', 'exp': time.time() + life}}, {key!r}))\n"
    )
    identity = Identity(TokenCommand(f"{sys.executable} {script}"))
    settings = {"asked": 0}

    def renew(token: Token) -> dict[str, str]:
        settings["asked"] += 1
        return {"token": token.value}

    first = identity.source.fetch()
    assert first.principal == "ada1"
    second = identity.token()
    renewal = Renewal({"lake": identity}, {"lake": first}, lambda tokens: renew(tokens["lake"]))
    assert renewal.due() == {"token": second.value}
    assert renewal.due() is None
    assert (second.principal, settings["asked"]) == ("ada2", 1)


def test_each_catalog_has_its_own_token(tmp_path: Path) -> None:
    """A new token for one leaves those of the others, and messages say whose each is."""
    file = tmp_path / "token"
    file.write_text(make("nora"))
    identities = {"lake": Identity(LiteralToken("own")), "north": Identity(TokenFile(file))}
    tokens = {name: identity.token() for name, identity in identities.items()}
    renewal = Renewal(identities, tokens, lambda new: {n: t.value for n, t in new.items()})
    assert renewal.due() is None
    assert re.fullmatch(
        r".* \(catalog `lake`\), nora, whose token expires at .* UTC \(catalog `north`\)",
        renewal.principal,
    )
    owner = renewal.owner
    file.write_text(new := make("niko"))
    os.utime(file, (1, 1))
    assert renewal.due() == {"lake": "own", "north": new}
    assert renewal.owner != owner


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/no/such/program", "cannot run"),
        (f"{sys.executable} -c 'import sys; sys.exit(\"not logged in\")'", "not logged in"),
        (f"{sys.executable} -c 'print()'", "must print the token"),
    ],
)
def test_a_command_that_gives_none(command: str, message: str) -> None:
    with pytest.raises(IdentityError, match=message):
        Identity(TokenCommand(command)).token()


class TokenServer(BaseHTTPRequestHandler):
    """Gives tokens for the right secret."""

    asked: list[dict[str, list[str]]] = []

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.asked.append(form)
        right = form["client_secret"] == ["right"]
        token = make() if form["client_id"] == ["jwt"] else f"opaque{len(self.asked)}"
        answer = (
            {"access_token": token, "expires_in": 100}
            if right
            else {"error": "invalid_client", "error_description": "wrong secret"}
        )
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def token_uri() -> Iterator[str]:
    TokenServer.asked = []
    with HTTPServer(("127.0.0.1", 0), TokenServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()


def test_client_credentials(token_uri: str) -> None:
    source = ClientCredentials(token_uri, "job", "right", {"scope": "catalog"})
    identity = Identity(source)
    token = identity.token()
    assert (token.value, token.principal) == ("opaque1", "job")
    assert 90 < token.seconds_left() <= 100
    assert identity.token().value == "opaque1"
    assert identity.renew(token)
    # Another thread, whose request was refused at the same time.
    assert identity.renew(token)
    assert identity.token().value == "opaque2"
    assert TokenServer.asked[0]["scope"] == ["catalog"]
    assert TokenServer.asked[0]["grant_type"] == ["client_credentials"]


def test_owners(token_uri: str, tmp_path: Path) -> None:
    """Once, the name alone counted, and each opaque token was another user."""

    def owner(token: str) -> str:
        return Identity(LiteralToken(token)).owner()

    ada = owner(make("ada", iss="a", roles="x"))
    assert owner(make("ada", 1800, iss="a", roles="x", jti="2")) == ada
    others = {owner(make("ada", iss="b", roles="x")), owner(make("ada", iss="a", roles="y"))}
    assert len({ada, *others}) == 3
    assert owner("opaque1") != owner("opaque2")
    file = TokenFile(tmp_path / "token")
    owners = []
    for token in ("opaque1", "opaque2"):
        file.path.write_text(token)
        owners.append(Identity(file).owner())
    for scope in ("a", "a", "b"):
        client = ClientCredentials(token_uri, "job", "right", {"scope": scope})
        owners.append(Identity(client).owner())
    counter = tmp_path / "count"
    for command in ("echo", "echo", "printf %s"):
        counter.write_text(counter.read_text() + "x" if counter.exists() else "x")
        owners.append(Identity(TokenCommand(f"sh -c '{command} $(cat {counter})'")).owner())
    client = ClientCredentials(token_uri, "jwt", "right")
    assert client.fetch().owner == client.fetch().owner == owner(make())
    # The file twice, the client twice with one scope, and the command twice.
    assert [owners.index(each) for each in owners] == [0, 0, 2, 2, 4, 5, 5, 7]


def test_wrong_client_credentials(token_uri: str) -> None:
    with pytest.raises(
        IdentityError, match=r"client job returned no token \(HTTP 401\): wrong secret"
    ):
        Identity(ClientCredentials(token_uri, "job", "wrong")).token()
