"""Renewal of a Spark session's token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.token import Token


class Renewal:
    """Computes the settings that replace the token of one Spark session.

    Args:
        identity: the user's token.
        token: the token that the session has.
        settings: returns the session's settings for a token.
    """

    def __init__(
        self,
        identity: Identity,
        token: Token,
        settings: Callable[[Token], Mapping[str, str]],
    ) -> None:
        self.identity = identity
        self._token = token
        self._settings = settings

    @property
    def owner(self) -> str:
        """Digest of the owner of the session's token."""
        return self._token.owner

    @property
    def principal(self) -> str:
        """The owner of the session's token and when it expires, for messages."""
        expires = self._token.expires
        if expires is None:
            return self.identity.principal
        return f"{self.identity.principal}, whose token expires at {expires:%Y-%m-%d %H:%M:%S} UTC"

    def after_refusal(self) -> Mapping[str, str] | None:
        """Return settings with a new token after the catalog refused the session's.

        Returns:
            The settings; None if the source has no new token.

        Raises:
            IdentityError: the source of tokens fails.
        """
        if not self.identity.source.renewable or not self.identity.renew(self._token):
            return None
        return self.due()

    def due(self) -> Mapping[str, str] | None:
        """Return settings with the current token; None if the session has it already.

        Raises:
            IdentityError: the token has expired and cannot be renewed.
        """
        token = self.identity.token()
        if token.value == self._token.value:
            return None
        self._token = token
        return self._settings(token)
