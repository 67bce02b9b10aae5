"""The user's identity towards the catalog while a command runs."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.identity.sources import LiteralToken, TokenSource
from dbt.adapters.iceberg_stream.catalog.identity.token import Token, digest

# A token is renewed so many seconds before it expires: a statement may take as long.
MARGIN_SECONDS = 60.0
# A token with a shorter life is renewed when this share of it is left.
MARGIN_SHARE = 0.25


class Identity:
    """The user's token, renewed before it expires. Thread-safe."""

    def __init__(self, source: TokenSource) -> None:
        self.source = source
        self._guard = threading.Lock()
        self._token: Token | None = None
        self._margin = 0.0

    def token(self) -> Token:
        """Return a token that does not expire within the margin, if the source has one.

        Raises:
            IdentityError: the token has expired, or the source returns none.
        """
        with self._guard:
            current = self._token
            expiring = current is None or current.seconds_left() < self._margin
            if current is None or expiring or self.source.changed():
                current = self._renewed(current)
            if current.seconds_left() <= 0:
                raise IdentityError(self._expired(current))
            return current

    def renew(self, refused: Token) -> bool:
        """Fetch a new token after the catalog refused one, unless another thread already has.

        Args:
            refused: the token that the catalog refused.

        Returns:
            Whether the token differs now.

        Raises:
            IdentityError: the source returns no token.
        """
        with self._guard:
            current = self._token
            if current is None or current.value == refused.value:
                current = self._renewed(current)
            return current.value != refused.value

    @property
    def principal(self) -> str:
        """The token's owner for messages; its fingerprint if it has no claims."""
        token = self._token
        if token is None:
            return "the owner of " + self.source.name
        return token.principal or f"the owner of token #{token.fingerprint}"

    def owner(self) -> str:
        """Return a digest of who the user is, which a renewed token does not change.

        A JWT has its issuer, subject and roles in its claims. Of other tokens only the source is
        known.

        Raises:
            IdentityError: there is no valid token.
        """
        token = self.token()
        return token.owner if token.has_claims else digest(self.source.user)

    def _renewed(self, current: Token | None) -> Token:
        if current is not None and not self.source.renewable:
            return current
        renewed = self.source.fetch()
        if current is None or renewed.value != current.value:
            self._margin = min(MARGIN_SECONDS, MARGIN_SHARE * renewed.seconds_left())
        self._token = renewed
        return renewed

    def _expired(self, token: Token) -> str:
        owner = token.principal or f"token #{token.fingerprint}"
        expired = (token.expires or datetime.now(timezone.utc)).strftime("%Y-%m-%d %H:%M:%S UTC")
        advice = (
            self.source.advice
            if isinstance(self.source, LiteralToken)
            else f"{self.source.name} still returns the expired token; check why it is not renewed"
        )
        return f"The token of {owner} expired at {expired}, from {self.source.name}. {advice}."
