"""Renewal of the tokens of a Spark session, one for each catalog that has users."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.token import Token


class Renewal:
    """Computes the settings with which one Spark session gets new tokens.

    Args:
        identities: the user's tokens, by the catalog's name; the profile's own catalog first.
        tokens: the tokens that the session has.
        settings: returns the session's settings for tokens.
    """

    def __init__(
        self,
        identities: Mapping[str, Identity],
        tokens: Mapping[str, Token],
        settings: Callable[[Mapping[str, Token]], Mapping[str, str]],
    ) -> None:
        self._identities = dict(identities)
        self._tokens = dict(tokens)
        self._settings = settings

    @property
    def owner(self) -> str:
        """Digest of the owners of the session's tokens."""
        if len(self._tokens) == 1:
            return next(iter(self._tokens.values())).owner
        owners = [f"{name}={token.owner}" for name, token in self._tokens.items()]
        return hashlib.sha256(" ".join(owners).encode()).hexdigest()

    def principal_of(self, catalog: str) -> str:
        """Return the owner of the token for a catalog; empty if the catalog has no users.

        Args:
            catalog: the catalog's name, as the profile writes it.
        """
        identity = self._identities.get(catalog)
        return identity.principal if identity else ""

    @property
    def principal(self) -> str:
        """The owners of the session's tokens and when they expire, for messages."""
        if len(self._identities) == 1:
            return self._with_expiry(next(iter(self._identities)))
        owners = (f"{self._with_expiry(n)} (catalog `{n}`)" for n in self._identities)
        return ", ".join(owners)

    def _with_expiry(self, catalog: str) -> str:
        principal, expires = self._identities[catalog].principal, self._tokens[catalog].expires
        if expires is None:
            return principal
        return f"{principal}, whose token expires at {expires:%Y-%m-%d %H:%M:%S} UTC"

    def after_refusal(self) -> Mapping[str, str] | None:
        """Return settings with new tokens after a catalog refused the session's.

        Returns:
            The settings; None if no source has a new token.

        Raises:
            IdentityError: a source of tokens fails.
        """
        renewed = [
            identity.source.renewable and identity.renew(self._tokens[name])
            for name, identity in self._identities.items()
        ]
        return self.due() if any(renewed) else None

    def due(self) -> Mapping[str, str] | None:
        """Return settings with the current tokens; None if the session has them already.

        Raises:
            IdentityError: a token has expired and cannot be renewed.
        """
        tokens = {name: identity.token() for name, identity in self._identities.items()}
        if all(tokens[name].value == self._tokens[name].value for name in tokens):
            return None
        self._tokens = tokens
        return self._settings(tokens)
