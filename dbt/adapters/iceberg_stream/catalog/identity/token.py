"""A bearer token, and its owner and expiry if it is a JWT."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timezone

# Claims that name a person or client, the most readable first (RFC 7519, OpenID Connect Core 5.1).
NAME_CLAIMS = ("preferred_username", "upn", "email", "sub", "client_id", "azp")
# Claims of the token, not of its owner: a renewed token has others (RFC 7519, section 4.1).
TOKEN_CLAIMS = {"exp", "nbf", "iat", "jti", "auth_time", "nonce", "at_hash", "c_hash", "sid", "uti"}


@dataclass(frozen=True)
class Token:
    """A bearer token; its value is never shown.

    Attributes:
        value: the token in the Authorization header.
        expires: when it expires (UTC); None if unknown.
        principal: its owner's name; None if unknown.
        owner: digest of its owner's claims, roles included; of the value if it has none.
        has_claims: whether it says who its owner is.
    """

    value: str = field(repr=False)
    expires: datetime | None = None
    principal: str | None = None
    owner: str = ""
    has_claims: bool = False

    def __post_init__(self) -> None:
        if not self.owner:
            object.__setattr__(self, "owner", digest(self.value))

    @property
    def fingerprint(self) -> str:
        """Short digest of the value, for messages."""
        return digest(self.value)[:8]

    def seconds_left(self) -> float:
        """Return the seconds until it expires; infinite if unknown."""
        if self.expires is None:
            return float("inf")
        return (self.expires - datetime.now(timezone.utc)).total_seconds()


def read_token(value: str, expires: datetime | None = None) -> Token:
    """Parse a token, with the principal and expiry of its claims if it is a JWT.

    The signature is not checked: the catalog does that, and the claims serve messages only.

    Args:
        value: the token.
        expires: when it expires (UTC), if its source says so.
    """
    import jwt

    try:
        claims = jwt.decode(value, options={"verify_signature": False, "verify_exp": False})
    except jwt.PyJWTError:
        return Token(value, expires)
    principal = next((str(claims[name]) for name in NAME_CLAIMS if claims.get(name)), None)
    if expires is None and isinstance(claims.get("exp"), int | float):
        expires = datetime.fromtimestamp(claims["exp"], tz=timezone.utc)
    owner_claims = {name: claim for name, claim in claims.items() if name not in TOKEN_CLAIMS}
    if principal is None:
        return Token(value, expires)
    owner = digest(json.dumps(owner_claims, sort_keys=True, default=str))
    return Token(value, expires, principal, owner, has_claims=True)


def digest(text: str) -> str:
    """Return a digest of a text that may be secret."""
    return hashlib.sha256(text.encode()).hexdigest()
