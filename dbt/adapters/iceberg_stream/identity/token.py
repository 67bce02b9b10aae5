"""A bearer token, and what it says of its owner without asking anybody."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime, timezone

import jwt

# Claims that name a person or client, the most readable first (RFC 7519, OpenID Connect Core 5.1).
NAMES = ("preferred_username", "upn", "email", "sub", "client_id", "azp")


@dataclass(frozen=True)
class Token:
    """A bearer token; its value is shown nowhere.

    Attributes:
        value: what goes into the Authorization header.
        expires: when it ends (UTC); None where the token does not say.
        principal: whose it is; None where the token does not say.
    """

    value: str = field(repr=False)
    expires: datetime | None = None
    principal: str | None = None

    @property
    def fingerprint(self) -> str:
        """Tells tokens apart without showing them."""
        return hashlib.sha256(self.value.encode()).hexdigest()[:8]

    def seconds_left(self) -> float:
        """Seconds until it ends; infinite where it does not say."""
        if self.expires is None:
            return float("inf")
        return (self.expires - datetime.now(timezone.utc)).total_seconds()


def read_token(value: str, expires: datetime | None = None) -> Token:
    """A token with the principal and expiry of its claims, if it is a JWT.

    The signature is not checked: that is for the catalog, and the claims serve messages only.
    """
    try:
        claims = jwt.decode(value, options={"verify_signature": False, "verify_exp": False})
    except jwt.PyJWTError:
        return Token(value, expires)
    principal = next((str(claims[name]) for name in NAMES if claims.get(name)), None)
    if expires is None and isinstance(claims.get("exp"), int | float):
        expires = datetime.fromtimestamp(claims["exp"], tz=timezone.utc)
    return Token(value, expires, principal)
