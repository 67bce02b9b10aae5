"""Keeps the token of one Spark session fresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.token import Token


class Renewal:
    """Tells when a session's catalog holds an old token, and what settings it needs instead."""

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
        """Tells the owner of the session's token from all others."""
        return self._token.owner

    @property
    def whose(self) -> str:
        """Whose token the session has, and when it ends, for messages."""
        ends = self._token.expires
        if ends is None:
            return self.identity.principal
        return f"{self.identity.principal}, whose token expires at {ends:%Y-%m-%d %H:%M:%S} UTC"

    def after_refusal(self) -> Mapping[str, str] | None:
        """Settings with a new token in the place of one that was refused; None if there is none.

        Raises:
            IdentityError: the source of tokens fails.
        """
        if not self.identity.source.renewable or not self.identity.renew(self._token):
            return None
        return self.due()

    def due(self) -> Mapping[str, str] | None:
        """Settings with the new token; None if the session has it already.

        Raises:
            IdentityError: the token has ended and cannot be renewed.
        """
        token = self.identity.token()
        if token.value == self._token.value:
            return None
        self._token = token
        return self._settings(token)
