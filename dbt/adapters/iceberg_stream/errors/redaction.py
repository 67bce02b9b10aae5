"""Removes secrets from addresses, for messages."""

from __future__ import annotations

import re

HIDDEN = "…"
# `//user:password@`, also with a slash in the password, and Oracle's `thin:user/password@`.
USER_INFO = re.compile(
    # In addresses of Azure's storage, the part before `@` is a container.
    r"(?<!abfs:)(?<!abfss:)(?<!wasb:)(?<!wasbs:)(?P<before>//)(?:[^/\s@?#]*|[^/\s:@?#]+:(?!\d+(?:[/?#]|\s|$))[^\s@?#]*)@"
    r"|(?P<oracle>thin:)[^@\s]*@"
)
PARAMETER = re.compile(
    r"(?P<name>[?&;,][\w.-]*(?:pass|pwd|secret|token|credential|signature|[-_.]?key|auth)[\w.-]*=)[^&;,\s'\")]+"
    r"|(?P<sas>[?&]sig=)[^&\s'\")]+",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Replace users, passwords, tokens and keys in the addresses of a text by an ellipsis."""

    def hide_user(match: re.Match[str]) -> str:
        return f"{match['before'] or match['oracle']}{HIDDEN}@"

    redacted = USER_INFO.sub(hide_user, text)
    return PARAMETER.sub(lambda match: f"{match['name'] or match['sas']}{HIDDEN}", redacted)


def holds_secret(address: str) -> bool:
    """Return whether an address contains a secret, or a user, whose password may follow."""
    return without_secrets(address) != address
