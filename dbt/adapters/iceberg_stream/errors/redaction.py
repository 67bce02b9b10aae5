"""Addresses without the secrets that they hold, for messages."""

from __future__ import annotations

import re

HIDDEN = "…"
# `//user:password@`, also with a slash in the password, and Oracle's `thin:user/password@`.
USER_INFO = re.compile(
    # What stands there in addresses of Azure's storage is a container.
    r"(?<!abfs:)(?<!abfss:)(?<!wasb:)(?<!wasbs:)(?P<before>//)(?:[^/\s@?#]*|[^/\s:@?#]+:(?!\d+(?:[/?#]|\s|$))[^\s@?#]*)@"
    r"|(?P<oracle>thin:)[^@\s]*@"
)
PARAMETER = re.compile(
    r"(?P<name>[?&;,][\w.-]*(?:pass|pwd|secret|token|credential|signature|[-_.]?key|auth)[\w.-]*=)[^&;,\s'\")]+"
    r"|(?P<sas>[?&]sig=)[^&\s'\")]+",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """A text whose addresses name no user, password, token or key."""

    def user(found: re.Match[str]) -> str:
        return f"{found['before'] or found['oracle']}{HIDDEN}@"

    shown = USER_INFO.sub(user, text)
    return PARAMETER.sub(lambda found: f"{found['name'] or found['sas']}{HIDDEN}", shown)


def holds_secret(address: str) -> bool:
    """Whether an address has a secret in it, or a user, behind whom one may stand."""
    return without_secrets(address) != address
