"""Keeps the token of one Spark session fresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dbt.adapters.iceberg_stream.identity.identity import Identity
from dbt.adapters.iceberg_stream.identity.token import Token


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
