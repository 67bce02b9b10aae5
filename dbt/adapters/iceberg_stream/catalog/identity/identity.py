"""Who the user is to the catalog, for as long as a command runs."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.sources import TokenSource
from dbt.adapters.iceberg_stream.catalog.identity.token import Token

# A token is renewed when less of its life is left than a statement may well take.
MARGIN_SECONDS = 60.0
# Of a short-lived token a quarter must do.
MARGIN_SHARE = 0.25


class Identity:
    """The user's token, renewed before it ends. Thread-safe."""

    def __init__(self, source: TokenSource) -> None:
        self.source = source
        self._guard = threading.Lock()
        self._token: Token | None = None
        self._margin = 0.0

    def token(self) -> Token:
        """A token that is good for a while yet.

        Raises:
            IdentityError: it has ended and cannot be renewed, or none can be had at all.
        """
        with self._guard:
            current = self._token
            ending = current is None or current.seconds_left() < self._margin
            if current is None or ending or self.source.changed():
                current = self._renewed(current)
            if current.seconds_left() <= 0:
                raise IdentityError(self._expired(current))
            return current

    def renew(self, refused: Token) -> bool:
        """Fetch anew because the catalog refused a token; False if that gives no other one.

        Another thread may have done so already.

        Raises:
            IdentityError: none can be had.
        """
        with self._guard:
            current = self._token
            if current is None or current.value == refused.value:
                current = self._renewed(current)
            return current.value != refused.value

    @property
    def principal(self) -> str:
        """Whose token it is, for messages; a fingerprint where the token does not say."""
        token = self._token
        if token is None:
            return "the owner of " + self.source.name
        return token.principal or f"the owner of token #{token.fingerprint}"

    def _renewed(self, current: Token | None) -> Token:
        if current is not None and not self.source.renewable:
            return current
        fresh = self.source.fetch()
        if current is None or fresh.value != current.value:
            self._margin = min(MARGIN_SECONDS, MARGIN_SHARE * fresh.seconds_left())
        self._token = fresh
        return fresh

    def _expired(self, token: Token) -> str:
        owner = token.principal or f"token #{token.fingerprint}"
        ended = (token.expires or datetime.now(timezone.utc)).strftime("%Y-%m-%d %H:%M:%S UTC")
        cure = (
            f"{self.source.name} still gives the old one: find out why it is not renewed"
            if self.source.renewable
            else "Get a new one, or use `token_file`, `token_command` or `oauth2` for long runs"
        )
        return f"The token of {owner} expired at {ended}, from {self.source.name}. {cure}."
