"""The tokens of a command, as Kafka's clients ask for them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jwt
import pytest
import requests

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.token_command import with_token_command
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source

OIDC = "sasl.oauthbearer."
BROKER = {"bootstrap.servers": "a:1", "security.protocol": "sasl_ssl"}


def ask(command: str, **changes: str) -> requests.Response:
    options = {**with_token_command({**BROKER, "token_command": command}), **changes}
    login = options[f"{OIDC}client.id"], options[f"{OIDC}client.secret"]
    form = {"grant_type": "client_credentials"}
    return requests.post(options[f"{OIDC}token.endpoint.url"], form, auth=login, timeout=10)


def printed(folder: Path, seconds: float) -> str:
    """Write a token to a file, and return the command that prints it."""
    claims = {"sub": "mina", "exp": time.time() + seconds, "jti": str(time.time_ns())}
    file = folder / "token"
    file.write_text(jwt.encode(claims, "k" * 32))
    return f"cat {file}"


def test_other_options_stay() -> None:
    assert with_token_command(BROKER) == BROKER
    options = with_token_command({**BROKER, "token_command": "any"})
    assert options.items() >= BROKER.items()
    assert "token_command" not in options
    assert options["sasl.mechanism"] == "OAUTHBEARER"


def test_a_token_is_used_for_half_of_its_life(tmp_path: Path) -> None:
    command = printed(tmp_path, 4)
    first = ask(command).json()
    assert first["access_token"] == (tmp_path / "token").read_text()
    assert first["expires_in"] <= 4
    printed(tmp_path, 3600)
    assert ask(command).json()["access_token"] == first["access_token"]
    time.sleep(2.5)
    assert ask(command).json()["access_token"] == (tmp_path / "token").read_text()


def test_each_command_has_its_own_tokens(tmp_path: Path) -> None:
    answers = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        answers.append(ask(printed(tmp_path / name, 60)).json()["access_token"])
    assert answers[0] != answers[1]


def test_others_get_no_token(tmp_path: Path) -> None:
    command = printed(tmp_path, 60)
    answer = ask(command, **{f"{OIDC}client.secret": "guessed"})
    assert (answer.status_code, answer.json()) == (401, {"error": "invalid_client"})
    address = with_token_command({**BROKER, "token_command": command})[f"{OIDC}token.endpoint.url"]
    for login in ("", "Basic %", "Basic w6k6w6k=", "Bearer guessed"):
        answer = requests.post(address, headers={"Authorization": login}, timeout=10)
        assert answer.status_code == 401, login


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo opaque", "must print a JWT"),
        ("no-such-command --secret", "cannot run the command `no-such-command`"),
        ("sh -c 'echo no access >&2; exit 3'", "exited with status 3: no access"),
    ],
)
def test_a_command_that_prints_no_token(command: str, words: str) -> None:
    answer = ask(command)
    assert answer.status_code == 400
    assert words in answer.json()["error_description"]
    assert "--secret" not in answer.text


def test_an_expired_token(tmp_path: Path) -> None:
    assert "has expired" in ask(printed(tmp_path, -5)).json()["error_description"]


@pytest.mark.parametrize(
    ("options", "contrary"),
    [
        ({"sasl.mechanism": "PLAIN"}, "sasl.mechanism: PLAIN"),
        ({f"{OIDC}client.id": "a"}, f"{OIDC}client.id"),
        ({"sasl.password": "p"}, "sasl.password"),
    ],
)
def test_options_that_contradict_it(options: dict[str, str], contrary: str) -> None:
    with pytest.raises(StreamError, match=f"Remove `token_command`, or {contrary}"):
        with_token_command({**BROKER, **options, "token_command": "any"})


def test_a_command_belongs_into_the_profile() -> None:
    options = {**BROKER, "token_command": "print --key x"}
    spec = {"type": "kafka", "topic": "t", "format": "raw", "options": options}
    definition = SourceDefinition(("s", "t"), "lake.s.t", spec)
    catalog: Any = None
    with pytest.raises(StreamError, match="hold a secret, token_command"):
        open_source(definition, catalog, Path(), {})
