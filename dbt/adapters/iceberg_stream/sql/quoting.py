"""Names in SQL."""

from __future__ import annotations


def quote(identifier: str) -> str:
    """Return an identifier in backticks, with its own backticks doubled."""
    return f"`{identifier.replace('`', '``')}`"
