"""A bearer token, and what it says of its owner without asking anybody."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timezone

import jwt

# Claims that name a person or client, the most readable first (RFC 7519, OpenID Connect Core 5.1).
NAMES = ("preferred_username", "upn", "email", "sub", "client_id", "azp")
# Claims of the token itself: a renewed one of the same owner has others (RFC 7519, 4.1).
PASSING = {"exp", "nbf", "iat", "jti", "auth_time", "nonce", "at_hash", "c_hash", "sid", "uti"}


@dataclass(frozen=True)
class Token:
    """A bearer token; its value is shown nowhere.

    Attributes:
        value: what goes into the Authorization header.
        expires: when it ends (UTC); None where the token does not say.
        principal: whose it is; None where the token does not say.
        owner: a digest that tells its owner, roles included, from all others.
    """

    value: str = field(repr=False)
    expires: datetime | None = None
    principal: str | None = None
    owner: str = ""

    def __post_init__(self) -> None:
        if not self.owner:
            object.__setattr__(self, "owner", _digest(self.value))

    @property
    def fingerprint(self) -> str:
        """Tells tokens apart without showing them."""
        return _digest(self.value)[:8]

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
    lasting = {name: claim for name, claim in claims.items() if name not in PASSING}
    owner = _digest(json.dumps(lasting, sort_keys=True, default=str)) if principal else ""
    return Token(value, expires, principal, owner)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
