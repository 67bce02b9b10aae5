"""Where a token comes from. None of them looks anywhere the profile does not name."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.token import Token, read_token
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets

if TYPE_CHECKING:
    from requests import PreparedRequest

COMMAND_SECONDS = 60
REQUEST_SECONDS = 30


class TokenSource(Protocol):
    """Gives a token each time it is asked."""

    @property
    def name(self) -> str:
        """Where the token comes from, as messages say it."""

    @property
    def renewable(self) -> bool:
        """Whether asking again can give a fresh token."""

    def changed(self) -> bool:
        """Whether a fresh token lies there already, whatever the last one says of its end."""

    def fetch(self) -> Token:
        """A token.

        Raises:
            IdentityError: there is none to be had.
        """


class _Unchanging:
    """Of a source that cannot be seen to change."""

    def changed(self) -> bool:
        return False


@dataclass(frozen=True)
class LiteralToken(_Unchanging):
    """`token`: the token itself, usually by `env_var`."""

    value: str = field(repr=False)
    name = "`token` of the profile"
    renewable = False

    def fetch(self) -> Token:
        return read_token(self.value)


@dataclass
class TokenFile:
    """`token_file`: a file that somebody else keeps fresh, as CI systems mount them."""

    path: Path
    renewable = True
    _read: float | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return f"the file {self.path}"

    def changed(self) -> bool:
        try:
            return self.path.stat().st_mtime != self._read
        except OSError:
            return False  # being replaced: the token we have is good until it ends

    def fetch(self) -> Token:
        try:
            self._read = self.path.stat().st_mtime
            text = self.path.read_text().strip()
        except OSError as error:
            raise IdentityError(
                f"`token_file: {self.path}` cannot be read ({error.strerror})."
            ) from error
        if not text:
            raise IdentityError(f"`token_file: {self.path}` is empty.")
        return read_token(text)


@dataclass(frozen=True)
class TokenCommand(_Unchanging):
    """`token_command`: a program that prints a token, e.g. `gcloud auth print-access-token`."""

    command: str
    renewable = True

    @property
    def name(self) -> str:
        return f"the command `{shlex.split(self.command)[0]}`"

    def fetch(self) -> Token:
        try:
            done = subprocess.run(
                shlex.split(self.command),
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                stdin=subprocess.DEVNULL,
            )
        # Not the errors' own texts: they have the arguments, which may be secret.
        except subprocess.TimeoutExpired:
            raise IdentityError(
                f"`token_command` gave no token within {COMMAND_SECONDS:.0f} s."
            ) from None
        except OSError as error:
            raise IdentityError(
                f"{self.name}, the `token_command`, cannot be run: {error.strerror}."
            ) from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise IdentityError(f"`token_command` ended with status {done.returncode}: {last}")
        token = done.stdout.strip()
        if not token or any(c.isspace() for c in token):
            raise IdentityError("`token_command` printed no token: one word on standard output.")
        return read_token(token)


@dataclass(frozen=True)
class ClientCredentials(_Unchanging):
    """`oauth2`: the client credentials grant (RFC 6749, section 4.4)."""

    token_uri: str
    client_id: str
    client_secret: str = field(repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict)
    renewable = True

    @property
    def name(self) -> str:
        return f"{without_secrets(self.token_uri)} for the client {self.client_id}"

    def fetch(self) -> Token:
        import requests

        form = {
            "grant_type": "client_credentials",
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            **self.parameters,
        }
        try:
            answer = requests.post(
                self.token_uri, data=form, timeout=REQUEST_SECONDS, auth=_no_netrc
            )
            body = answer.json()
        except requests.RequestException as error:
            reason = without_secrets(str(error))
            raise IdentityError(f"{self.name} gave no token: {reason}") from error
        value = body.get("access_token") if isinstance(body, dict) else None
        if not answer.ok or not value:
            cause = body.get("error_description") or body.get("error") if body else None
            raise IdentityError(
                f"{self.name} gave no token (HTTP {answer.status_code}): {cause or 'no reason'}"
            )
        seconds = body.get("expires_in")
        now = datetime.now(timezone.utc)
        token = read_token(value, now + timedelta(seconds=int(seconds)) if seconds else None)
        return Token(value, token.expires, token.principal or self.client_id)


def _no_netrc(request: PreparedRequest) -> PreparedRequest:
    """Keeps `requests` from looking for credentials in the user's ~/.netrc."""
    return request
