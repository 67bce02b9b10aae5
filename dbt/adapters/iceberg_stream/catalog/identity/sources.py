"""Sources of tokens. They read only what the profile names, never the environment."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.token import Token, read_token
from dbt.adapters.iceberg_stream.catalog.identity.transport import refuse_other_origin
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets

if TYPE_CHECKING:
    from requests import PreparedRequest

COMMAND_SECONDS = 60
REQUEST_SECONDS = 30


class TokenSource(Protocol):
    """Returns a token each time it is asked."""

    @property
    def name(self) -> str:
        """The source's name for messages."""

    @property
    def renewable(self) -> bool:
        """Return whether a second `fetch` can return another token."""

    @property
    def user(self) -> str:
        """What identifies the user if the tokens do not say whose they are; may be secret."""

    def changed(self) -> bool:
        """Return whether the source has another token already, even before the last expires."""

    def fetch(self) -> Token:
        """Return a token.

        Raises:
            IdentityError: the source has none.
        """


class _Unchanging:
    """Base of sources that do not show whether they changed."""

    def changed(self) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True)
class LiteralToken(_Unchanging):
    """`token`: the token itself, usually by `env_var`; or that of a caller."""

    value: str = field(repr=False)
    name: str = "`token` of the profile"
    advice: str = "Get a new token, or use `token_file`, `token_command` or `oauth2` for long runs"
    renewable = False

    @property
    def user(self) -> str:
        """The token itself."""
        return self.value

    def fetch(self) -> Token:
        """Return the token."""
        return read_token(self.value)


@dataclass
class TokenFile:
    """`token_file`: a file that another process renews, as CI systems mount them."""

    path: Path
    renewable = True
    _modified: float | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """The source's name for messages."""
        return f"the file {self.path}"

    @property
    def user(self) -> str:
        """The file: who writes it decides for whom."""
        return f"file {self.path}"

    def changed(self) -> bool:
        """Return whether the file's modification time differs from that of the last `fetch`."""
        try:
            return self.path.stat().st_mtime != self._modified
        except OSError:
            return False  # being replaced: the current token is valid until it expires

    def fetch(self) -> Token:
        """Read the token from the file."""
        try:
            self._modified = self.path.stat().st_mtime
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
        """The source's name for messages."""
        return f"the command `{shlex.split(self.command)[0]}`"

    @property
    def user(self) -> str:
        """The command, as the user of the machine runs it."""
        return f"command {self.command} of {os.getuid()}"

    def fetch(self) -> Token:
        """Run the command and return the token that it prints."""
        try:
            process = subprocess.run(
                shlex.split(self.command),
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                stdin=subprocess.DEVNULL,
            )
        # The errors' own texts have the command's arguments, which may be secret.
        except subprocess.TimeoutExpired:
            raise IdentityError(
                f"`token_command` printed no token within {COMMAND_SECONDS:.0f} s. Run it in a "
                "terminal: it must not wait for input."
            ) from None
        except OSError as error:
            raise IdentityError(
                f"`token_command` cannot run {self.name}: {error.strerror}. Check its path and "
                "`PATH`."
            ) from None
        if process.returncode:
            last = (process.stderr.strip().splitlines() or ["no error output"])[-1]
            raise IdentityError(f"`token_command` exited with status {process.returncode}: {last}")
        token = process.stdout.strip()
        if not token or any(c.isspace() for c in token):
            raise IdentityError(
                "`token_command` must print the token, and nothing else, to standard output."
            )
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
        """The source's name for messages."""
        return f"{without_secrets(self.token_uri)} for the client {self.client_id}"

    @property
    def user(self) -> str:
        """The client, and for what it asks."""
        return json.dumps([self.token_uri, self.client_id, sorted(self.parameters.items())])

    @property
    def _advice(self) -> str:
        return "Check `oauth2` in the profile, and that the token server is running."

    def fetch(self) -> Token:
        """Request an access token from the token endpoint."""
        import requests

        form = {
            "grant_type": "client_credentials",
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            **self.parameters,
        }
        try:
            response = requests.post(
                self.token_uri,
                data=form,
                timeout=REQUEST_SECONDS,
                auth=_no_netrc,
                hooks={"response": refuse_other_origin},
            )
            body = response.json()
        except requests.RequestException as error:
            reason = without_secrets(str(error))
            raise IdentityError(
                f"{self.name} returned no token. {reason}\n{self._advice}"
            ) from error
        value = body.get("access_token") if isinstance(body, dict) else None
        if not response.ok or not value:
            cause = body.get("error_description") or body.get("error") if body else None
            raise IdentityError(
                f"{self.name} returned no token (HTTP {response.status_code}): "
                f"{cause or 'no reason given'}\n{self._advice}"
            )
        seconds = body.get("expires_in")
        now = datetime.now(timezone.utc)
        token = read_token(value, now + timedelta(seconds=int(seconds)) if seconds else None)
        return token if token.principal else Token(value, token.expires, self.client_id)


def _no_netrc(request: PreparedRequest) -> PreparedRequest:
    """Prevent `requests` from using credentials of the user's ~/.netrc."""
    return request
